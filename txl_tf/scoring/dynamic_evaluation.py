"""Dynamic evaluation: the weights learn from each segment after it has been scored."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf.config import AttentionSpan, EvalConfig
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.data.lanes.evaluation_lanes import Segment
from txl_tf.data.lanes.training_lanes import Tokens
from txl_tf.data.records.reading import Records
from txl_tf.errors import UserError
from txl_tf.layers.memory import clear_rows
from txl_tf.models.architecture import make_model
from txl_tf.models.compilation import choose_jit, compile_function
from txl_tf.models.gradients import take_gradients
from txl_tf.models.segment_model import SegmentModel
from txl_tf.progress import Bar

_N_STRETCHES = 10  # of the training split, so that the roots cover all kinds of texts


class AdaptingReader:
    """A reader whose weights take a gradient step on each segment after scoring it.

    The losses are valid: a token is scored before the weights learn from it. A step does not
    recompute the states in the memory. When all rows begin a text, the weights are reset to those
    of the given model, which is not changed. The weights do not learn from targets that do not
    count, such as those that only warm up a lane.

    `roots` come from `gather_roots`, for a rule that needs them. The other arguments are those of
    `FrozenReader`.
    """

    def __init__(
        self,
        model: SegmentModel,
        span: AttentionSpan,
        dynamic: DynamicConfig,
        roots: list[np.ndarray] | None = None,
        *,
        mask_empty_memory: bool = False,
        jit: str = "auto",
    ):
        self.model = copy_without_dropout(model)
        self.dynamic = dynamic
        self._source = model
        self._span = span
        self._mask_empty_memory = mask_empty_memory
        # The weights of the given model may be frozen; those of its copy are not.
        pairs = zip(self.model.weights, model.weights, strict=True)
        sources = {id(weight): source for weight, source in pairs}
        self._starts = [sources[id(weight)] for weight in self.model.trainable_variables]
        self._roots: list[Any] = [None] * len(self._starts)
        if roots is not None:
            self._roots = [tf.constant(root) for root in roots]
            # mean(S): the mean, over the weights, of the mean of each.
            self._mean_root = float(np.mean([root.mean(dtype=np.float64) for root in roots]))
        is_compiled = choose_jit(jit, model.compute_dtype) != "none"
        # Weights of one shape share a compiled function.
        self._step = tf.function(self._step_weight, jit_compile=is_compiled, autograph=False)
        self._score = compile_function(self._score_segment, jit, model.compute_dtype)
        self._read = tf.function(self._read_and_step, autograph=False)

    def begin(self) -> None:
        """Sets the weights to those of the given model."""
        for weight, source in zip(self.model.weights, self._source.weights, strict=True):
            weight.assign(source)

    def read(self, segment: Segment, state: Any) -> tuple[np.ndarray, Any]:
        """Scores a segment, then takes a step on the mean loss of the targets that count.

        Returns the losses, (B, T) float32, 0 where the mask is false, and the new state, which is
        the memory of the model.
        """
        if state is not None and segment.begins.all():
            self.begin()
            state = None
        if state is None:
            mask_empty = self._mask_empty_memory or segment.document_starts is not None
            state = self.model.initial_memory(len(segment.ids), self._span.mem_len, mask_empty)
        elif segment.begins.any():
            state = clear_rows(state, segment.begins)
        losses, state = self._read(_make_tensors(segment), state)
        nats = losses.numpy()
        if not math.isfinite(nats.sum(dtype=np.float64)):
            raise UserError(
                "the loss is not finite: the weights diverge. Received: "
                f"learning_rate={self.dynamic.learning_rate:g}"
            )
        return nats, state

    def _read_and_step(self, segment: Segment, memory: Any) -> tuple[tf.Tensor, Any]:
        nats, gradients, memory = self._score(segment, memory)
        for weight, source, gradient, root in zip(
            self.model.trainable_variables,
            self._starts,
            gradients,
            self._roots,
            strict=True,
        ):
            # As tensors: a compiled function would keep a variable's value from tracing.
            now, start = map(tf.convert_to_tensor, (weight, source))
            weight.assign(self._step(now, start, gradient, root))
        return nats, memory

    def _score_segment(
        self, segment: Segment, memory: Any
    ) -> tuple[tf.Tensor, list[tf.Tensor], Any]:
        return _score_with_gradients(self.model, segment, memory, self._span)

    def _step_weight(
        self, weight: tf.Tensor, start: tf.Tensor, gradient: tf.Tensor, root: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns a weight after a step of the rule in `DynamicConfig`; `start` is W_0."""
        rate, decay = self.dynamic.learning_rate, self.dynamic.decay
        if root is None:  # sgd
            return weight + decay * (start - weight) - rate * gradient
        pull = tf.minimum(decay * root / self._mean_root, 1.0)
        return weight + (pull * (start - weight) - rate * gradient / (root + self.dynamic.epsilon))


def make_adapting_reader(
    model: SegmentModel,
    config: EvalConfig,
    dynamic: DynamicConfig,
    records: Records | None,
    *,
    mask_empty_memory: bool = False,
    jit: str = "auto",
) -> AdaptingReader:
    """Returns a reader whose weights learn.

    If the rule needs gradients on the training split, they are gathered from the records.

    Raises:
        UserError: If the temperature is not 1, or the rule needs a training split that is missing
            or too short.
    """
    if config.temperature != 1:
        raise UserError(
            "`temperature` must be 1 in dynamic evaluation: add `--temperature 1`, or set it in "
            f"the `evaluation` of the language model. Received: temperature={config.temperature}"
        )
    roots = None
    if dynamic.has_statistics:
        if records is None or "train" not in records.splits:
            where = records.data_dir if records else "the run"
            raise UserError(
                f"rule={dynamic.rule} needs the gradients of the training split, and {where} has "
                "none: choose rule=sgd"
            )
        split, n_batches = records.split("train"), dynamic.n_batches
        with Bar("gradients of train", unit="segment", total=n_batches) as bar:
            roots = gather_roots(model, config, split, n_batches, jit=jit, report=bar.update)
    return AdaptingReader(
        model, config.span, dynamic, roots, mask_empty_memory=mask_empty_memory, jit=jit
    )


def gather_roots(
    model: SegmentModel,
    config: EvalConfig,
    split: Tokens,
    n_batches: int,
    *,
    jit: str = "auto",
    report: Callable[[int], object] = lambda n_batches: None,
) -> list[np.ndarray]:
    """Returns S of each trainable weight: the root mean square of its gradients on a split.

    A batch is one segment of `tgt_len` tokens; its gradient is that of the mean loss, without
    dropout. The segments are taken from ten evenly spaced stretches of the split. Within a stretch
    they are consecutive and carry the memory, which is empty at its beginning. A shorter split has
    fewer batches. `report` is called with 1 after each batch.

    Raises:
        UserError: If the split is shorter than a segment, or a gradient is not finite.
    """
    model = copy_without_dropout(model)

    def add(segment: Segment, memory: Any, sums: list[tf.Tensor]) -> tuple[Any, list[tf.Tensor]]:
        _, gradients, memory = _score_with_gradients(model, segment, memory, config.span)
        return memory, [a + tf.square(b) for a, b in zip(sums, gradients, strict=True)]

    compiled = compile_function(add, jit, model.compute_dtype)
    sums = [tf.zeros(weight.shape) for weight in model.trainable_variables]
    empty = memory = model.initial_memory(1, config.mem_len, config.reset_at_documents)
    n_batches = min(n_batches, (len(split) - 1) // config.tgt_len)
    for segment in _read_stretches(split, config, n_batches):
        if segment.begins[0]:
            memory = empty
        memory, sums = compiled(_make_tensors(segment), memory, sums)
        report(1)
    roots = [np.sqrt(total.numpy() / np.float32(n_batches)) for total in sums]
    if not all(math.isfinite(float(root.sum())) for root in roots):
        raise UserError("the gradients on the training split are not finite")
    return roots


def _read_stretches(split: Tokens, config: EvalConfig, n_batches: int) -> Iterator[Segment]:
    """Yields segments of one row, consecutive within each of ten stretches of the split."""
    tgt_len, n_segments = config.tgt_len, (len(split) - 1) // config.tgt_len
    if n_segments < 1:
        raise UserError(
            "the training split must be longer than a segment to gather gradients. "
            f"Received: {len(split)} tokens, tgt_len={tgt_len}"
        )
    n_stretches = min(_N_STRETCHES, n_batches)
    for stretch in range(n_stretches):
        first = stretch * n_segments // n_stretches
        count = (stretch + 1) * n_batches // n_stretches - stretch * n_batches // n_stretches
        for index in range(count):
            segment = Segment.make_empty(1, tgt_len)
            segment.fill_row(0, split, (first + index) * tgt_len, tgt_len)
            segment.mask[:] = True
            segment.begins[:] = index == 0
            yield segment if config.reset_at_documents else segment._replace(document_starts=None)


def _score_with_gradients(
    model: SegmentModel,
    segment: Segment,
    memory: Any,
    span: AttentionSpan,
) -> tuple[tf.Tensor, list[tf.Tensor], Any]:
    """Scores a segment of tensors, and differentiates the mean loss of the targets that count.

    A training step has no mask of targets; see `txl_tf.training.step`.

    Returns:
        -log p of each target in nats, (B, T) float32, 0 where the mask is false; the gradients in
        the order of `model.trainable_variables`, 0 if no target counts; the new memory.
    """
    with tf.GradientTape() as tape:
        # In training mode, the hand-written gradients are used, which are fast; without dropout.
        hidden, memory = model(
            segment.ids,
            memory,
            span=span,
            training=True,
            document_starts=segment.document_starts,
        )
        nats = tf.where(segment.mask, model.nll(hidden, segment.targets), 0.0)
        count = tf.maximum(tf.reduce_sum(tf.cast(segment.mask, tf.float32)), 1.0)
        loss = tf.reduce_sum(nats) / count
    return nats, take_gradients(tape, loss, model), memory


def copy_without_dropout(model: SegmentModel) -> SegmentModel:
    """Returns a copy of a model without dropout."""
    copied = make_model(model.config.without_dropout(), dtype=model.dtype_policy)
    for weight, source in zip(copied.weights, model.weights, strict=True):
        weight.assign(source)
    return copied


def _make_tensors(segment: Segment) -> Segment:
    """Returns a segment of tensors, without the fields that only streams use."""
    tensors: list[Any] = [None if a is None else tf.constant(a) for a in segment[:5]]
    return Segment(*tensors)
