"""The gradients of segments, and the mean of their squares on the training split."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.config import AttentionSpan, EvalConfig
from txl_tf.data.lanes.evaluation_lanes import Segment
from txl_tf.data.lanes.training_lanes import Tokens
from txl_tf.errors import UserError
from txl_tf.models.architecture import make_model
from txl_tf.models.compilation import compile_function
from txl_tf.models.gradients import take_gradients
from txl_tf.models.segment_model import SegmentModel

_N_STRETCHES = 10  # of the training split, so that the statistics see texts of all kinds


class GradientStatistics(NamedTuple):
    """The squares of the gradients of the mean loss of batches."""

    sums: list[np.ndarray]  # over the batches, for each trainable weight, in its shape
    n_batches: int


def copy_without_dropout(model: SegmentModel) -> SegmentModel:
    """Returns a model with the same weights that drops nothing."""
    copied = make_model(model.config.without_dropout(), dtype=model.dtype_policy)
    for weight, source in zip(copied.weights, model.weights, strict=True):
        weight.assign(source)
    return copied


def score_with_gradients(
    model: SegmentModel,
    segment: Segment,
    memory: Any,
    *,
    span: AttentionSpan,
    filled: tf.Tensor | None = None,
) -> tuple[tf.Tensor, list[tf.Tensor], Any]:
    """Scores a segment of tensors, and differentiates the mean of the targets that count.

    A training step sums the losses of all of its targets instead; see `txl_tf.training.step`.

    Returns:
        -log p of each target in nats, (B, T) float32, 0 where the mask is false; the gradients in
        the order of `model.trainable_variables`, 0 if no target counts; the new memory.
    """
    with tf.GradientTape() as tape:
        # In training mode the layers are differentiated by hand, which is fast; nothing is dropped.
        hidden, memory = model(
            segment.ids,
            memory,
            span=span,
            training=True,
            document_starts=segment.document_starts,
            filled=filled,
        )
        nats = tf.where(segment.mask, model.nll(hidden, segment.targets), 0.0)
        count = tf.maximum(tf.reduce_sum(tf.cast(segment.mask, tf.float32)), 1.0)
        loss = tf.reduce_sum(nats) / count
    return nats, take_gradients(tape, loss, model), memory


def gather_statistics(
    model: SegmentModel,
    config: EvalConfig,
    split: Tokens,
    n_batches: int,
    *,
    jit: str = "auto",
    report: Callable[[int], object] = lambda n_batches: None,
) -> GradientStatistics:
    """Returns the statistics of the gradients on the training split; nothing is dropped.

    A batch is one segment of `tgt_len` tokens. The segments are consecutive, with memory, in ten
    stretches of the split that lie equally far apart. Each begins with an empty memory. A shorter
    split has fewer batches. `report` is called with 1 after each.

    Raises:
        UserError: If the split is shorter than a segment, or a gradient is not finite.
    """
    model = copy_without_dropout(model)

    def add(segment: Segment, memory: Any, sums: list[tf.Tensor]) -> tuple[Any, list[tf.Tensor]]:
        _, gradients, memory = score_with_gradients(model, segment, memory, span=config.span)
        return memory, [a + tf.square(b) for a, b in zip(sums, gradients, strict=True)]

    compiled = compile_function(add, jit, model.compute_dtype)
    sums = [tf.zeros(weight.shape) for weight in model.trainable_variables]
    empty = memory = model.initial_memory(1, config.mem_len)
    n_batches = min(n_batches, (len(split) - 1) // config.tgt_len)
    for segment in _read_segments(split, config, n_batches):
        if segment.begins[0]:
            memory = empty
        memory, sums = compiled(make_tensors(segment), memory, sums)
        report(1)
    arrays = [total.numpy() for total in sums]
    if not all(math.isfinite(float(array.sum())) for array in arrays):
        raise UserError("the gradients on the training split are not finite")
    return GradientStatistics(arrays, n_batches)


def make_tensors(segment: Segment) -> Segment:
    """Returns a segment of tensors, without what belongs to streams."""
    tensors: list[Any] = [None if a is None else tf.constant(a) for a in segment[:5]]
    return Segment(*tensors)


def _read_segments(split: Tokens, config: EvalConfig, n_batches: int) -> Iterator[Segment]:
    """Yields segments of one row, consecutive in each of ten stretches of the split."""
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
