"""Compares a model with the reference term by term, to find a term that is wrong.

Rounding errors of float32 are about 1e-6 of the largest value of a term; those of a wrong term are
seldom below 1e-3.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.config import AttentionSpan, ModelConfig
from txl_tf.errors import UserError
from txl_tf.model import TransformerXL
from txl_tf.release import reference
from txl_tf.release.checkpoint import open_release_checkpoint
from txl_tf.release.comparison import Comparison
from txl_tf.release.verdict import Check


class Shape(NamedTuple):
    """The size of the text that is compared.

    Args:
        tgt_len: The segment length T.
        batch_size: The number of rows B.
        n_segments: The least number of segments; the memory is carried from each to the next.
        seed: The seed of the ids.
    """

    tgt_len: int = 8
    batch_size: int = 2
    n_segments: int = 2
    seed: int = 0


SHAPE = Shape()
# The memory is longer than a segment, so that it keeps states of several segments. Some distances
# are clamped, and others are not.
SPANS = (AttentionSpan(12), AttentionSpan(12, same_length=True, clamp_len=7))


class CheckpointVariables(Mapping[str, np.ndarray]):
    """The variables of a checkpoint by name, each read on access.

    Args:
        path: The path of the checkpoint without `.index`.

    Raises:
        UserError: If the checkpoint or a variable cannot be read.
    """

    def __init__(self, path: str):
        self._path = path
        with open_release_checkpoint(path) as reader:
            self._names = set(reader.get_variable_to_shape_map())

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise UserError(f"{self._path} lacks {name}")
        with open_release_checkpoint(self._path) as reader:
            return reader.get_tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def extend_shape(config: ModelConfig, shape: Shape = SHAPE) -> Shape:
    """Returns the shape with enough segments to draw the first and the last id of every bin.

    Raises:
        UserError: If a segment has fewer tokens than there are bins.
    """
    per_bin = shape.batch_size * shape.tgt_len // len(config.bins)
    if not per_bin:
        raise UserError(
            "`tgt_len` must leave room for every bin in a segment. "
            f"Received: tgt_len={shape.tgt_len} in {shape.batch_size} rows, "
            f"{len(config.bins)} bins"
        )
    # The first segment may hold inputs that are no targets. Others hold each bin `per_bin` times.
    return shape._replace(n_segments=max(shape.n_segments, 1 + -(-2 // per_bin)))


def draw_text(config: ModelConfig, shape: Shape = SHAPE) -> np.ndarray:
    """Returns ids (B, n_segments T + 1), with the `n_segments` of `extend_shape`.

    Every bin occurs in every segment. The first and the last id of every bin occur both as an
    input and as a target, because only they show a bound that is off by one.

    Raises:
        UserError: If a segment has fewer tokens than there are bins.
    """
    shape = extend_shape(config, shape)
    rng, n_bins, n_ids = np.random.default_rng(shape.seed), len(config.bins), shape.tgt_len
    size = shape.batch_size * n_ids
    segments = [
        rng.permutation(np.arange(size) % n_bins).reshape(shape.batch_size, -1)
        for _ in range(shape.n_segments + 1)
    ]
    bins = np.concatenate(segments, axis=1)[:, : shape.n_segments * n_ids + 1]
    low, high = np.array(config.bins).T[:, bins]
    kinds = rng.integers(4, size=bins.shape)
    ids = np.where(kinds == 0, low, np.where(kinds == 1, high - 1, rng.integers(low, high)))
    # Between the first segment and the last column every token is a target and then an input.
    inner = ids[:, n_ids:-1]
    for index, (first, end) in enumerate(config.bins):
        places = rng.permutation(np.argwhere(bins[:, n_ids:-1] == index))
        for (row, column), edge in zip(places, (first, end - 1), strict=False):
            inner[row, column] = edge
    return ids.astype(np.int32)


def compare_model(
    model: TransformerXL,
    variables: reference.Variables,
    *,
    shape: Shape = SHAPE,
    spans: Sequence[AttentionSpan] = SPANS,
) -> list[Check]:
    """Compares a model with the reference on segments with memory, once for each span.

    Args:
        model: The model with the weights of the checkpoint, in float32.
        variables: The variables of the checkpoint by name.
        shape: The size of the text.
        spans: The attention spans.

    Returns:
        All checks in the order of the computation.

    Raises:
        UserError: If the text is too short, or the checkpoint cannot be read.
    """
    shape = extend_shape(model.config, shape)
    text, length, checks = draw_text(model.config, shape), shape.tgt_len, []
    was_on = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)  # it has only 10 bits
    try:
        for span in spans:
            memory = reference.make_empty_memory(model.config, shape.batch_size, span.mem_len)
            own_memory = model.initial_memory(shape.batch_size, span.mem_len)
            for segment in range(shape.n_segments):
                ids = text[:, segment * length : (segment + 1) * length]
                targets = text[:, segment * length + 1 : (segment + 1) * length + 1]
                trace = reference.trace_segment(variables, model.config, ids, targets, memory, span)
                comparison = Comparison(model, variables, trace, span, segment)
                if segment == 0:
                    comparison.compare_first_memory(own_memory)
                comparison.compare(ids, targets, memory)
                own_memory = comparison.compare_end_to_end(ids, targets, own_memory)
                checks += comparison.checks
                memory = trace.new_memory
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(was_on)
    return checks
