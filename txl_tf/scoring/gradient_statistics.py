"""The mean square of the gradients on the training split, gathered once and kept beside the run."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.compilation import compile_function
from txl_tf.config import EvalConfig
from txl_tf.data.lanes.evaluation_lanes import Segment
from txl_tf.data.lanes.training_lanes import Tokens
from txl_tf.errors import UserError
from txl_tf.model import SegmentModel
from txl_tf.runs.array_store import ArrayStore, hash_arrays, hash_weights
from txl_tf.scoring.segment_gradients import copy_without_dropout, score_with_gradients

_N_STRETCHES = 10  # of the training split, so that the statistics see texts of all kinds


class GradientStatistics(NamedTuple):
    """The squares of the gradients of batches.

    Args:
        sums: For each trainable weight, the sum over the batches of the squared gradient of the
            mean loss, float32 in the shape of the weight.
        n_batches: The number of batches.
    """

    sums: list[np.ndarray]
    n_batches: int

    @property
    def sum_roots(self) -> list[np.ndarray]:
        """The root of the sum of the squares, for each weight."""
        return [np.sqrt(total) for total in self.sums]

    @property
    def mean_roots(self) -> list[np.ndarray]:
        """The root of the mean of the squares, for each weight."""
        return [np.sqrt(total / np.float32(self.n_batches)) for total in self.sums]


def find_statistics(
    model: SegmentModel,
    config: EvalConfig,
    split: Tokens,
    n_batches: int,
    *,
    folder: str | None = None,
    jit: str = "auto",
    report: Callable[[int, int], object] | None = None,
) -> GradientStatistics:
    """Returns the statistics that are kept for a model, or gathers them and keeps them.

    A batch is one segment of `tgt_len` tokens. The segments are consecutive, with memory, in ten
    stretches of the split that lie equally far apart. Each begins with an empty memory.

    Args:
        model: The model; nothing is dropped.
        config: Segment and span. The number of lanes does not matter.
        split: The training split.
        n_batches: The number of segments; as many as fit into a shorter split.
        folder: The folder in which statistics are kept; `None` to keep none.
        jit: How much of the model XLA compiles; one of `JIT_MODES`.
        report: Called after each segment with the number of segments done and of all.

    Raises:
        UserError: If the split is shorter than a segment, or the folder cannot be written.
    """
    starts = _choose_starts(len(split), config.tgt_len, n_batches)
    texts = (split.read(start, start + config.tgt_len + 1) for start, _ in starts)
    settings = {
        "weights": hash_weights(model),
        "segments": hash_arrays(texts),
        "evaluation": config.to_json() | {"eval_batch_size": 1},
        "batches": len(starts),
    }
    store = ArrayStore(folder, settings)
    arrays = store.load("squares")
    weights = model.trainable_variables
    if arrays is not None:
        sums = [arrays[f"{index}"] for index in range(len(arrays))]
        if [total.shape for total in sums] == [tuple(weight.shape) for weight in weights]:
            return GradientStatistics(sums, len(starts))
    sums = _gather(copy_without_dropout(model), config, split, starts, jit, report)
    store.save("squares", {f"{index}": total for index, total in enumerate(sums)})
    return GradientStatistics(sums, len(starts))


def _choose_starts(n_tokens: int, tgt_len: int, n_batches: int) -> list[tuple[int, bool]]:
    """Returns where each segment starts, and whether it begins a stretch."""
    n_segments = (n_tokens - 1) // tgt_len
    if n_segments < 1:
        raise UserError(
            "the training split must be longer than a segment to gather gradients. "
            f"Received: {n_tokens} tokens, tgt_len={tgt_len}"
        )
    n_batches = min(n_batches, n_segments)
    n_stretches = min(_N_STRETCHES, n_batches)
    starts = []
    for stretch in range(n_stretches):
        first = stretch * n_segments // n_stretches
        count = (stretch + 1) * n_batches // n_stretches - stretch * n_batches // n_stretches
        starts += [((first + index) * tgt_len, index == 0) for index in range(count)]
    return starts


def _read_segments(
    split: Tokens, starts: list[tuple[int, bool]], tgt_len: int
) -> Iterator[Segment]:
    """Yields a segment of one row for each start."""
    for start, begins in starts:
        segment = Segment.make_empty(1, tgt_len)
        segment.fill_row(0, split, start, tgt_len)
        segment.mask[:] = True
        segment.begins[:] = begins
        yield segment


def _gather(
    model: SegmentModel,
    config: EvalConfig,
    split: Tokens,
    starts: list[tuple[int, bool]],
    jit: str,
    report: Callable[[int, int], object] | None,
) -> list[np.ndarray]:
    """Returns for each trainable weight the sum of the squared gradients of the segments."""

    def add(segment: Segment, memory: Any, sums: list[tf.Tensor]) -> tuple[Any, list[tf.Tensor]]:
        starts = segment.document_starts if config.reset_at_documents else None
        _, gradients, memory = score_with_gradients(
            model,
            segment.ids,
            segment.targets,
            segment.mask,
            memory,
            span=config.span,
            document_starts=starts,
        )
        return memory, [a + tf.square(b) for a, b in zip(sums, gradients, strict=True)]

    compiled = compile_function(add, jit, model.compute_dtype)
    sums = [tf.zeros(weight.shape) for weight in model.trainable_variables]
    empty = memory = model.initial_memory(1, config.mem_len)
    for index, segment in enumerate(_read_segments(split, starts, config.tgt_len)):
        if segment.begins[0]:
            memory = empty
        memory, sums = compiled(Segment(*map(tf.constant, segment)), memory, sums)
        if report:
            report(index + 1, len(starts))
    arrays = [total.numpy() for total in sums]
    if not all(math.isfinite(float(array.sum())) for array in arrays):
        raise UserError("the gradients on the training split are not finite")
    return arrays
