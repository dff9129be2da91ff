"""Compares the terms of a model with those of the reference, on one segment."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from txl_tf.config import AttentionSpan
from txl_tf.model import TransformerXL
from txl_tf.release import reference
from txl_tf.release.reference import LayerTrace, SegmentTrace
from txl_tf.release.verdict import EMBEDDING, END_TO_END, SOFTMAX, Check

# Differences of float32 from float64, relative to the largest value of a term: up to 1e-6 for
# models with D = 1024. Errors add up over several terms, and from layer to layer.
TOLERANCE, WHOLE_TOLERANCE = 2e-5, 1e-3
# LayerNorm is also compared on small states; at this scale an epsilon of 1e-9 shows.
SMALL = 1e-3


class Comparison:
    """Compares a model with the trace of one segment.

    The model's own call runs, but each part is given the reference's inputs, and the next part
    continues with the reference's outputs. An error therefore shows only in its own term.

    Args:
        model: The model with the weights of the checkpoint, in float32.
        variables: The variables of the checkpoint by name.
        trace: The reference's trace of the segment.
        span: The attention span of the trace.
        segment: The number of the segment.
    """

    def __init__(
        self,
        model: TransformerXL,
        variables: reference.Variables,
        trace: SegmentTrace,
        span: AttentionSpan,
        segment: int,
    ):
        self.model, self.variables, self.trace = model, variables, trace
        self.span, self.segment = span, segment
        self.checks: list[Check] = []

    def check(
        self,
        layer: int | None,
        term: str,
        quantity: str,
        found: Any,
        expected: np.ndarray,
        *,
        scale: float = 0.0,
        tolerance: float = TOLERANCE,
    ) -> bool:
        """Records the difference of values from the reference, and returns whether they agree.

        Values computed from larger ones need the `scale` of these; values computed from several
        terms that agree need a wider `tolerance`.
        """
        difference = measure_difference(np.asarray(found), expected, scale=scale)
        agrees = difference <= tolerance
        place = (self.span, self.segment, layer, term, quantity)
        self.checks.append(Check(*place, difference, agrees))
        return agrees

    def compare_first_memory(self, memory: Sequence[Any]) -> None:
        """Compares the memory before the first segment with zeros."""
        for index, (found, layer) in enumerate(zip(memory, self.trace.layers, strict=True)):
            self.check(index, "memory", "the memory before the text", found, layer.memory)

    def compare(self, ids: np.ndarray, targets: np.ndarray, memory: tuple[np.ndarray, ...]) -> None:
        """Runs the model's call with each part replaced by its comparison."""
        model, layers = self.model, self.trace.layers
        with contextlib.ExitStack() as stack:
            replace = functools.partial(_replace_call, stack)
            replace(model.embedding, self.compare_embedding)
            for index, layer in enumerate(model.decoder_layers):
                replace(layer, self.compare_layer, index)
                replace(layer.attention, self.compare_attention, index)
                replace(layer.attention_norm, self.compare_norm, index, "rel_attn")
                replace(layer.feed_forward, self.compare_feed_forward, index)
                replace(layer.feed_forward_norm, self.compare_norm, index, "ff")
            hidden, new_memory = model(ids, tuple(map(_as_tensor, memory)), span=self.span)
        last = layers[-1].output
        for index, (found, expected) in enumerate(
            zip(new_memory, self.trace.new_memory, strict=True)
        ):
            self.check(index, "memory", "the memory that is kept", found, expected)
        self.check(len(layers) - 1, "output", "the hidden states that are returned", hidden, last)
        self.compare_softmax(targets, _as_tensor(last))

    def compare_embedding(self, call: Callable[..., Any], ids: Any) -> Any:
        """Compares the embeddings bin by bin."""
        found, expected = np.asarray(call(ids)), self.trace.embeddings
        ids = np.asarray(ids)
        for index, (low, high) in enumerate(self.model.config.bins):
            inside = (low <= ids) & (ids < high)
            if inside.any():
                term = f"{EMBEDDING} {index}"
                self.check(None, term, "embeddings", found[inside], expected[inside])
        return _as_tensor(expected)

    def compare_layer(
        self, call: Callable[..., Any], index: int, hidden: Any, *arguments: Any, **options: Any
    ) -> Any:
        """Compares the input and the output of a layer; its parts are compared in between."""
        trace = self.trace.layers[index]
        self.check(index, "output", "the input of the layer", hidden, trace.hidden)
        output = call(hidden, *arguments, **options)
        self.check(index, "output", "the output of the layer", output, trace.output)
        return _as_tensor(trace.output)

    def compare_attention(
        self,
        call: Callable[..., Any],
        index: int,
        hidden: Any,
        memory: Any,
        positions: Any,
        content_bias: Any,
        position_bias: Any,
        mask: Any,
        same_document: Any = None,
        training: bool = False,
    ) -> Any:
        """Compares the terms of the attention of a layer, and then its output as a whole."""
        trace, start = self.trace.layers[index], len(self.checks)
        check, tensors = functools.partial(self.check, index), LayerTrace(*map(_as_tensor, trace))
        attention = self.model.decoder_layers[index].attention
        check("output", "the input of the attention", hidden, trace.hidden)
        check("memory", "the memory that is read", memory, trace.memory)
        self.compare_projections(index, *attention.project(tensors.hidden, tensors.memory))
        content = attention.score_content(tensors.queries, tensors.keys, content_bias)
        check("content", "the content scores (a) + (c)", content, trace.content)
        distance_keys = attention.project_positions(positions)
        found = attention.score_position(tensors.queries, distance_keys, position_bias)
        if found.shape == trace.position.shape:  # scores of keys after the query are arbitrary
            n_queries, n_keys = trace.mask.shape
            is_after = np.arange(n_keys) > np.arange(n_queries)[:, None] + self.span.mem_len
            found = np.where(is_after, 0, found)
        check("position", "the position scores (b) + (d)", found, trace.position)
        check("mask", "which keys a query sees", mask, trace.mask)
        weights = attention.compute_attention_weights(tensors.content, tensors.position, mask)
        largest = float(np.abs(trace.content + trace.position).max())
        check("mask", "the weights of the keys", weights, trace.weights, scale=largest)
        attended = attention.attend(tensors.weights, tensors.values)
        check("output", "the attention's output", attended, trace.attended)
        if all(check.agrees for check in self.checks[start:]):
            states = (tensors.hidden, tensors.memory, positions, content_bias, position_bias)
            whole = call(*states, mask, same_document, training=training)
            tolerance = WHOLE_TOLERANCE
            check("output", "the whole attention", whole, trace.attended, tolerance=tolerance)
        return tensors.attended

    def compare_projections(self, index: int, queries: Any, keys: Any, values: Any) -> None:
        """Compares queries, keys and values, of the memory and of the segment separately."""
        trace, mem_len = self.trace.layers[index], self.span.mem_len
        self.check(index, "content", "the queries", queries, trace.queries)
        for term, name, found, expected in (
            ("content", "keys", np.asarray(keys), trace.keys),
            ("output", "values", np.asarray(values), trace.values),
        ):
            of_segment = (found[:, mem_len:], expected[:, mem_len:])
            agrees = self.check(index, term, f"the {name} of the segment", *of_segment)
            if mem_len:  # an error only in the memory is not in the kernel
                of_memory = (found[:, :mem_len], expected[:, :mem_len])
                fault = "memory" if agrees else term
                self.check(index, fault, f"the {name} of the memory", *of_memory)

    def compare_norm(self, call: Callable[..., Any], index: int, part: str, states: Any) -> Any:
        """Compares a LayerNorm on its input, and on small states, which its epsilon affects."""
        trace, attends = self.trace.layers[index], part == "rel_attn"
        residual = trace.hidden + trace.attended if attends else trace.normed + trace.changed
        name = f"LayerNorm of {'attention' if attends else 'feed-forward'}"
        self.check(index, "output", f"the input of the {name}", states, residual)
        scope = f"{reference.PREFIX}layer_{index}/{part}"
        for factor, size in ((1, ""), (SMALL, f", of {SMALL:g} times its input")):
            expected = reference.normalize(self.variables, scope, residual * factor)
            found = call(_as_tensor(residual * factor))
            self.check(index, "LayerNorm", f"the {name}{size}", found, expected)
        return _as_tensor(trace.normed if attends else trace.output)

    def compare_feed_forward(
        self, call: Callable[..., Any], index: int, states: Any, training: bool = False
    ) -> Any:
        """Compares the feed-forward network of a layer."""
        trace, check = self.trace.layers[index], functools.partial(self.check, index)
        check("output", "the input of the feed-forward network", states, trace.normed)
        changed = call(_as_tensor(trace.normed), training=training)
        check("feed-forward", "the output of the feed-forward network", changed, trace.changed)
        return _as_tensor(trace.changed)

    def compare_softmax(self, targets: np.ndarray, hidden: Any) -> None:
        """Compares log p of all ids within their bins, of the bins, and of the targets."""
        log_probs = np.asarray(self.model.log_probs(hidden), np.float64)
        nll = np.asarray(self.model.nll(hidden, targets))
        first, head = self.model.config.bins[0][1], self.trace.head
        expected_inside = (reference.log_softmax(head[..., :first]), *self.trace.bins)
        expected_bins = [_add_log_probs(head[..., :first]), *np.moveaxis(head[..., first:], -1, 0)]
        scale = max(float(np.abs(part).max()) for part in expected_inside)
        check, found_bins = functools.partial(self.check, None, scale=scale), []
        for index, (low, high) in enumerate(self.model.config.bins):
            term, part = f"{SOFTMAX} {index}", log_probs[..., low:high]
            found_bins.append(_add_log_probs(part))
            inside = part - found_bins[index][..., None]
            check(term, "log p(id | bin)", inside, expected_inside[index])
            if index:  # relative to bin 0, as a wrong cluster changes the sum of all
                both = (found_bins, expected_bins)
                found, expected = (values[index] - values[0] for values in both)
                check(term, "log p(bin) - log p(bin 0)", found, expected)
        total = _add_log_probs(log_probs)
        check(f"{SOFTMAX} 0", "the log of the sum of all p", total, np.zeros_like(total))
        for index, (low, high) in enumerate(self.model.config.bins):
            inside = (low <= targets) & (targets < high)
            if inside.any():
                found, expected = nll[inside], self.trace.nll[inside]
                check(f"{SOFTMAX} {index}", "-log p(target)", found, expected)

    def compare_end_to_end(
        self, ids: np.ndarray, targets: np.ndarray, memory: Sequence[Any]
    ) -> Sequence[Any]:
        """Compares the losses of the unmodified model, and returns its new memory."""
        hidden, memory = self.model(ids, memory, span=self.span)
        found, quantity = self.model.nll(hidden, targets), "-log p(target)"
        self.check(None, END_TO_END, quantity, found, self.trace.nll, tolerance=WHOLE_TOLERANCE)
        return memory


def measure_difference(found: np.ndarray, expected: np.ndarray, *, scale: float = 0.0) -> float:
    """Returns the largest difference, relative to the largest expected value or a larger scale.

    It is infinite if the shapes differ or a value is not finite, and absolute if all expected
    values are 0.

    >>> measure_difference(np.array([1.0, 3.0]), np.array([1.0, 4.0]))
    0.25
    """
    if found.shape != expected.shape:
        return float("inf")
    expected = expected.astype(np.float64)
    difference = np.max(np.abs(found - expected), initial=0.0)
    scale = np.max(np.abs(expected), initial=scale) or 1.0
    return float(difference / scale) if np.isfinite(difference) else float("inf")


def _add_log_probs(log_probs: np.ndarray) -> np.ndarray:
    """Returns the log of the sum of probabilities over the last axis."""
    largest = log_probs.max(axis=-1)
    return largest + np.log(np.sum(np.exp(log_probs - largest[..., None]), axis=-1))


def _as_tensor(array: np.ndarray) -> Any:
    """Returns an array as a tensor in the precision of the model."""
    dtype = "bool" if array.dtype == bool else "float32"
    return keras.ops.convert_to_tensor(array, dtype=dtype)


def _replace_call(
    stack: contextlib.ExitStack, layer: Any, call: Callable[..., Any], *arguments: Any
) -> None:
    """Replaces the call of a layer until the stack ends; the new call gets the original one."""
    own = vars(layer).get("call")  # set on this layer alone, for example by a test
    if own is None:
        stack.callback(delattr, layer, "call")
    else:
        stack.callback(setattr, layer, "call", own)
    layer.call = functools.partial(call, layer.call, *arguments)
