"""Compares a model with the reference term by term, to find the term that is wrong.

Float32 rounding errors are about 1e-6 of the largest value of a term; the errors of a wrong term
are seldom below 1e-3.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

import keras
import numpy as np

from txl_tf import TransformerXL
from txl_tf.config import AttentionSpan, ModelConfig
from txl_tf.lab.verify import reference
from txl_tf.lab.verify.reference import LayerTrace, SegmentTrace
from txl_tf.layers.attention import (
    compute_weights,
    join_memory,
    score_content,
    score_position,
    sum_values,
)

# Differences between float32 and float64, relative to the largest value of a term, are up to 1e-6
# for models with D = 1024. Errors add up over several terms, and from layer to layer.
TOLERANCE, WHOLE_TOLERANCE = 2e-5, 1e-3
# LayerNorm is also compared on small states; at this scale, an epsilon of 1e-9 shows.
SMALL = 1e-3
BATCH_SIZE = 2
LAYER_TERMS = ("memory", "content", "position", "mask", "output", "LayerNorm", "feed-forward")
EMBEDDING, SOFTMAX, END_TO_END = "embedding bin", "softmax bin", "end to end"
# The usual mistakes in each term, as seen in ports of the release.
HINTS = {
    "memory": "the memory holds the inputs of the layer, not its outputs: the last M of them, over "
    "all segments; before the first segment it is zeros, which are attended to",
    "content": "the columns of the qkv kernel are q, k, v in this order, each head by head; the "
    "content bias u is r_w_bias, the position bias v is r_r_bias; scores are divided by sqrt(H)",
    "position": "all sines come first, then all cosines, not interleaved; the first row of the "
    "table is the largest distance; clamp_len; the left shift; the position bias v is r_r_bias",
    "mask": "query i sees key j if j <= i + M, and with same_length only if j >= i, which leaves "
    "M + 1 keys, not M; the zeros before the first segment are seen",
    "output": "the columns of the values in the qkv kernel; the output projection has no bias; the "
    "residual is added before LayerNorm",
    "LayerNorm": "its epsilon is 1e-12 in the release; it comes after the residual; gamma and beta",
    "feed-forward": "the activation is relu, between layer_1 and layer_2; both have biases",
    EMBEDDING: "embeddings are multiplied by sqrt(D); each bin has a table and a projection of its "
    "own, from E // div_val**i to D; bins begin at the cutoffs",
    SOFTMAX: "bin i has row i - 1 of cluster_W and cluster_b; the projection is the embedding's "
    "(proj_share_all_but_first) or the bin's own, applied as h P^T; the bin's bias",
    END_TO_END: "every term agrees if given the inputs of the reference, so the output of a layer "
    "does not reach the next layer, or the memory does not reach the next segment",
}


class Check(NamedTuple):
    """One comparison of the model with the reference."""

    span: AttentionSpan
    segment: int
    layer: int | None  # `None` outside of the layers
    term: str  # one of `HINTS`; embedding and softmax are followed by the number of a bin
    quantity: str  # the name of the compared values
    difference: float  # relative to the largest value of the reference
    agrees: bool  # whether float32 explains the difference

    @property
    def place(self) -> str:
        """The layer and the term, in words."""
        return self.term if self.layer is None else f"layer {self.layer}, {self.term}"


def compare_model(
    model: TransformerXL,
    variables: reference.Variables,
    *,
    tgt_len: int,
    spans: Sequence[AttentionSpan],
) -> list[Check]:
    """Compares a float32 model with the reference on segments with memory, once for each span.

    The model's own `call` runs, but each part gets the reference's inputs, and the next part
    continues with the reference's outputs. An error therefore shows only in its own term.
    """
    text = draw_text(model.config, tgt_len)
    checks: list[Check] = []
    for span in spans:
        memory = reference.make_empty_memory(model.config, BATCH_SIZE, span.mem_len)
        own_memory = model.initial_memory(BATCH_SIZE, span.mem_len)
        for segment, start in enumerate(range(0, text.shape[1] - 1, tgt_len)):
            ids = text[:, start : start + tgt_len]
            targets = text[:, start + 1 : start + tgt_len + 1]
            trace = reference.trace_segment(variables, model.config, ids, targets, memory, span)
            comparison = _Comparison(model, variables, trace, span, segment, checks)
            if segment == 0:
                comparison.compare_memory("the memory before the text", own_memory, memory)
            comparison.compare(ids, targets, memory)
            hidden, own_memory = model(ids, own_memory, span=span)
            found, name = model.nll(hidden, targets), "-log p(target)"
            comparison.check(None, END_TO_END, name, found, trace.nll, tolerance=WHOLE_TOLERANCE)
            memory = trace.new_memory
    return checks


def draw_text(config: ModelConfig, tgt_len: int, *, seed: int = 0) -> np.ndarray:
    """Returns ids (B, n T + 1) of two segments, or of more if they are very short.

    The first and the last id of every bin occur both as an input and as a target, because only they
    reveal a bound that is off by one.
    """
    rng, bins = np.random.default_rng(seed), np.array(config.bins)
    edges = [edge for low, high in bins for edge in (low, high - 1)]
    n_segments = max(2, -(-(len(edges) + 1) // tgt_len))
    places = rng.integers(len(bins), size=(BATCH_SIZE, n_segments * tgt_len + 1))
    ids = rng.integers(*bins.T[:, places])
    # Every token but the first and the last is a target and then an input.
    ids[0, 1 + rng.permutation(n_segments * tgt_len - 1)[: len(edges)]] = edges
    return ids.astype(np.int32)


@dataclass
class _Comparison:
    """The comparison of one segment with the reference's trace of it."""

    model: TransformerXL
    variables: reference.Variables
    trace: SegmentTrace
    span: AttentionSpan
    segment: int
    checks: list[Check]

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
        """Records a difference, relative to a scale, and returns whether it is small enough."""
        difference = measure_difference(np.asarray(found), expected, scale=scale)
        agrees = difference <= tolerance
        place = (self.span, self.segment, layer, term, quantity)
        self.checks.append(Check(*place, difference, agrees))
        return agrees

    def compare(self, ids: np.ndarray, targets: np.ndarray, memory: Sequence[np.ndarray]) -> None:
        """Runs the model's `call` with the embedding and each layer replaced by its comparison."""
        model, last = self.model, self.trace.layers[-1].output
        with contextlib.ExitStack() as stack:
            _replace_call(stack, model.embedding, self.compare_embedding)
            for index, layer in enumerate(model.decoder_layers):
                _replace_call(stack, layer, self.compare_layer, index)
            hidden, new_memory = model(ids, tuple(map(_as_tensor, memory)), span=self.span)
        self.compare_memory("the memory that is kept", new_memory, self.trace.new_memory)
        self.check(len(memory) - 1, "output", "the hidden states that are returned", hidden, last)
        self.compare_softmax(targets, _as_tensor(last))

    def compare_memory(self, quantity: str, found: Any, expected: Sequence[np.ndarray]) -> None:
        for index, states in enumerate(zip(found, expected, strict=True)):
            self.check(index, "memory", quantity, *states)

    def compare_embedding(self, call: Callable[..., Any], ids: Any) -> Any:
        """Compares the embeddings bin by bin, and returns the reference's."""
        found, expected, ids = np.asarray(call(ids)), self.trace.embeddings, np.asarray(ids)
        for index, (low, high) in enumerate(self.model.config.bins):
            inside = (low <= ids) & (ids < high)
            if inside.any():
                term = f"{EMBEDDING} {index}"
                self.check(None, term, "embeddings", found[inside], expected[inside])
        return _as_tensor(expected)

    def compare_layer(
        self, call: Callable[..., Any], index: int, hidden: Any, memory: Any, *others: Any, **_: Any
    ) -> Any:
        """Compares the terms of a layer, then the whole layer, and returns the reference's output.

        The arguments after `index` are those of `DecoderLayer`.
        """
        positions, content_bias, position_bias, mask = others
        trace, start = self.trace.layers[index], len(self.checks)
        check, tensors = functools.partial(self.check, index), LayerTrace(*map(_as_tensor, trace))
        layer = self.model.decoder_layers[index]
        attention = layer.attention
        check("output", "the input of the layer", hidden, trace.hidden)
        check("memory", "the memory that is read", memory, trace.memory)
        segment, old = attention.project(tensors.hidden, tensors.memory)
        self._compare_projections(index, *join_memory(segment, old, attention.n_head))
        found = score_content(tensors.queries, tensors.keys, content_bias)
        check("content", "the content scores (a) + (c)", found, trace.content)
        distance_keys = attention.project_positions(positions)
        found = score_position(tensors.queries, distance_keys, position_bias)
        if found.shape == trace.position.shape:  # scores of keys after the query are arbitrary
            n_queries, n_keys = trace.mask.shape
            found = np.where(np.tri(n_queries, n_keys, self.span.mem_len), found, 0)
        check("position", "the position scores (b) + (d)", found, trace.position)
        check("mask", "which keys a query sees", mask, trace.mask)
        found = compute_weights(tensors.content, tensors.position, mask)
        largest = float(np.abs(trace.content + trace.position).max())
        check("mask", "the weights of the keys", found, trace.weights, scale=largest)
        found = sum_values(tensors.weights, tensors.values) @ attention.o_kernel
        check("output", "the attention's output", found, trace.attended)
        self._compare_norm(index, "rel_attn", layer.attention_norm, trace.hidden + trace.attended)
        found = layer.feed_forward(tensors.normed, training=False)
        check("feed-forward", "the output of the feed-forward network", found, trace.changed)
        self._compare_norm(index, "ff", layer.feed_forward_norm, trace.normed + trace.changed)
        if all(check.agrees for check in self.checks[start:]):
            found = call(tensors.hidden, tensors.memory, *others, training=False)
            check("output", "the whole layer", found, trace.output, tolerance=WHOLE_TOLERANCE)
        return tensors.output

    def _compare_projections(self, index: int, queries: Any, keys: Any, values: Any) -> None:
        """Compares queries, keys and values, separately for the memory and the segment."""
        trace, mem_len = self.trace.layers[index], self.span.mem_len
        self.check(index, "content", "the queries", queries, trace.queries)
        for term, name, states in (
            ("content", "keys", (np.asarray(keys), trace.keys)),
            ("output", "values", (np.asarray(values), trace.values)),
        ):
            of_segment = (array[:, mem_len:] for array in states)
            agrees = self.check(index, term, f"the {name} of the segment", *of_segment)
            # An error only in the memory is not in the kernel.
            of_memory = (array[:, :mem_len] for array in states)
            fault = "memory" if agrees else term
            self.check(index, fault, f"the {name} of the memory", *of_memory)

    def _compare_norm(self, index: int, part: str, norm: Any, states: np.ndarray) -> None:
        """Compares a LayerNorm on its input, and on small states, which its epsilon affects."""
        scope = f"{reference.PREFIX}layer_{index}/{part}"
        for factor, size in ((1, ""), (SMALL, f", of {SMALL:g} times its input")):
            expected = reference.normalize(self.variables, scope, states * factor)
            found = norm(_as_tensor(states * factor))
            self.check(index, "LayerNorm", f"LayerNorm of {part}{size}", found, expected)

    def compare_softmax(self, targets: np.ndarray, hidden: Any) -> None:
        """Compares log p of all ids within their bins, of the bins, and of the targets."""
        add = functools.partial(np.logaddexp.reduce, axis=-1)
        log_probs = np.asarray(self.model.log_probs(hidden), np.float64)
        nll = np.asarray(self.model.nll(hidden, targets))
        first, head = self.model.config.bins[0][1], self.trace.head
        expected_inside = (reference.log_softmax(head[..., :first]), *self.trace.bins)
        expected_bins = [add(head[..., :first]), *np.moveaxis(head[..., first:], -1, 0)]
        scale = max(float(np.abs(part).max()) for part in expected_inside)
        check = functools.partial(self.check, None, scale=scale)
        first_bin = add(log_probs[..., :first])
        for index, (low, high) in enumerate(self.model.config.bins):
            term, part = f"{SOFTMAX} {index}", log_probs[..., low:high]
            of_bin = add(part)
            found = part - of_bin[..., None]
            check(term, "log p(id | bin)", found, expected_inside[index])
            if index:  # relative to bin 0, as a wrong cluster changes the sum of all
                expected = expected_bins[index] - expected_bins[0]
                check(term, "log p(bin) - log p(bin 0)", of_bin - first_bin, expected)
            inside = (low <= targets) & (targets < high)
            if inside.any():
                check(term, "-log p(target)", nll[inside], self.trace.nll[inside])


def measure_difference(found: np.ndarray, expected: np.ndarray, *, scale: float = 0.0) -> float:
    """Returns the largest difference, relative to the largest expected value, or `scale` if larger.

    It is infinite if the shapes differ or a value is not finite.

    >>> measure_difference(np.array([1.0, 3.0]), np.array([1.0, 4.0]))
    0.25
    """
    if found.shape != expected.shape:
        return float("inf")
    expected = expected.astype(np.float64)
    difference = np.max(np.abs(found - expected), initial=0.0)
    scale = np.max(np.abs(expected), initial=scale) or 1.0
    return float(difference / scale) if np.isfinite(difference) else float("inf")


def _as_tensor(array: np.ndarray) -> Any:
    """Returns an array as a tensor in the precision of the model."""
    dtype = "bool" if array.dtype == bool else "float32"
    return keras.ops.convert_to_tensor(array, dtype=dtype)


def _replace_call(
    stack: contextlib.ExitStack, layer: Any, call: Callable[..., Any], *arguments: Any
) -> None:
    """Replaces the `call` of a layer until the stack ends; the new one gets the original one."""
    new_call = functools.partial(call, layer.call, *arguments)
    stack.enter_context(mock.patch.object(layer, "call", new_call))


def find_first(checks: list[Check]) -> Check | None:
    """Returns the first check in the order of the computation that does not agree, if any."""
    return next((check for check in checks if not check.agrees), None)


def describe_verdict(checks: list[Check]) -> Iterator[str]:
    """Yields lines that say whether all terms agree, or where they first differ and why."""
    first = find_first(checks)
    if first is None:
        largest = max(check.difference for check in checks)
        yield f"All terms agree: the largest difference is {largest:.1e}"
        return
    yield f"They first differ at {first.place}: {first.quantity}, by {first.difference:.1e}"
    yield f"  in segment {first.segment}, {describe_attention_span(first.span)}."
    yield f"  Usual causes: {HINTS[first.term.rstrip('0123456789 ')]}."


def describe_attention_span(span: AttentionSpan) -> str:
    """Returns an attention span in words."""
    clamp = f"clamp_len {span.clamp_len}" if span.clamp_len > 0 else "no clamp_len"
    return f"mem_len {span.mem_len}, {'same_length' if span.same_length else 'plain'}, {clamp}"


def format_table(checks: list[Check]) -> Iterator[str]:
    """Yields a table of the largest difference per layer and term; `!` marks disagreement."""
    width = max(map(len, LAYER_TERMS)) + 1
    found: dict[tuple[int | None, str], list[Check]] = {}
    for check in checks:
        found.setdefault((check.layer, check.term), []).append(check)

    def format_cell(layer: int | None, term: str) -> str:
        of_place = found[layer, term]
        mark = " " if all(check.agrees for check in of_place) else "!"
        return f"{max(check.difference for check in of_place):.1e}".rjust(width - 1) + mark

    def format_outside(kind: str) -> Iterator[str]:
        terms = [term for layer, term in found if layer is None and term.startswith(kind)]
        return (f"{term:<15}{format_cell(None, term)}" for term in terms)

    yield from format_outside(EMBEDDING)
    yield " " * 15 + "".join(term.rjust(width - 1) + " " for term in LAYER_TERMS)
    for layer in sorted({check.layer for check in checks if check.layer is not None}):
        yield f"layer {layer:<9}" + "".join(format_cell(layer, term) for term in LAYER_TERMS)
    yield from format_outside(SOFTMAX)
    yield from format_outside(END_TO_END)
