"""The loop that scores segments from any source with any reader."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from txl_tf.config import EvalConfig
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.data.lanes.evaluation_lanes import Segment
from txl_tf.layers.memory import clear_rows
from txl_tf.models.architecture import make_frozen_model
from txl_tf.models.cached_model import FrozenModel
from txl_tf.models.compilation import Recent, compile_function
from txl_tf.models.segment_model import SegmentModel

MOST_STEPS = 64  # compiled steps that a reader keeps; a `Scorer` needs about 20


class Reader(Protocol):
    """A model that reads segments and scores their targets."""

    @property
    def dynamic(self) -> DynamicConfig | None:
        """The rule by which the weights learn; `None` if they are fixed."""

    def begin(self) -> None:
        """Prepares to read with the current weights of the model."""

    def read(self, segment: Segment, state: Any) -> tuple[Any, Any]:
        """Returns -log p of the targets in nats, (B, T) float32, and the new state.

        The state is `None` before the first segment. Losses of padding are arbitrary.
        """


def score_segments(
    reader: Reader, segments: Iterable[Segment]
) -> Iterator[tuple[Segment, np.ndarray]]:
    """Scores segments, carrying the memory from each to the next.

    Yields:
        Each segment with -log p of its targets in nats, (B, T) float32, which is arbitrary for
        padding. A reader may return other results instead.
    """
    reader.begin()
    state = None
    for segment in segments:
        nats, state = reader.read(segment, state)
        yield segment, nats


def cut_rows(
    ids: np.ndarray, lengths: np.ndarray, seg_len: int, *, uses_memory: bool = True
) -> Iterator[Segment]:
    """Cuts texts, one per row, and yields their segments: at least one.

    Args:
        ids: The texts, (B, n) int32.
        lengths: The number of inputs of each text, (B,) int32: one less than its tokens.
        seg_len: The length of a segment.
        uses_memory: Whether the memory is read and written.
    """
    n_inputs = max(1, -(-lengths.max() // seg_len)) * seg_len
    known = np.zeros((len(ids), n_inputs + 1), np.int32)
    known[:, : ids.shape[1]] = ids
    for start in range(0, n_inputs, seg_len):
        counts = np.clip(lengths - start, 0, seg_len)
        yield Segment(
            known[:, start : start + seg_len],
            known[:, start + 1 : start + seg_len + 1],
            mask=np.arange(seg_len) < counts[:, None],
            document_starts=None,
            begins=np.full(len(ids), start == 0),
            counts=counts,
            uses_memory=uses_memory,
        )


class FrozenReader:
    """A reader with fixed weights, whose memory holds keys and values.

    Args:
        model: The model. Its weights may change between two loops.
        config: The segment length, the span and the temperature.
        max_len: The maximum number of tokens in a segment; `None` for that of the config.
        mask_empty_memory: See `CachedModel`.
        jit: How much of a step XLA compiles, once for each shape; one of `JIT_MODES`.
        score: What a step computes: `FrozenModel.score`, or a function with the same arguments that
            returns other results, a nest of tensors, and the new state.

    Raises:
        UserError: If the model does not support the config.
    """

    dynamic = None

    def __init__(
        self,
        model: SegmentModel,
        config: EvalConfig,
        *,
        max_len: int | None = None,
        mask_empty_memory: bool = False,
        jit: str = "auto",
        score: Callable[..., tuple[Any, Any]] = FrozenModel.score,
    ):
        self.cached = make_frozen_model(
            model,
            config.span,
            max_len or config.tgt_len,
            mask_empty_memory=mask_empty_memory,
            temperature=config.temperature,
            defer_products=True,  # each loop begins by computing them
        )
        self._memoryless = self.cached.without_memory()
        self._jit = jit
        self._score = score
        # The steps, by use of the memory, shape of the segment and which of its fields are `None`.
        self.functions: Recent[tuple[Any, ...], Any] = Recent(MOST_STEPS)

    def begin(self) -> None:
        """Recomputes what is cached from the weights."""
        self.cached.follow_weights()

    def read(self, segment: Segment, state: Any) -> tuple[Any, Any]:
        """Reads a segment; see `Reader`."""
        cached = self.cached if segment.uses_memory else self._memoryless
        before = state
        if state is None or not segment.uses_memory:
            before = cached.initial_state(len(segment.ids))
        elif segment.sources is not None:
            before = tf.nest.map_structure(lambda rows: tf.gather(rows, segment.sources), state)
        begins: np.ndarray | None = segment.begins
        if segment.counts is None:
            # Lanes rarely begin: clearing rows here costs less than compiling a second step.
            if state is not None and segment.begins.any():
                before = clear_rows(before, segment.begins)
            begins = None
        arrays = (segment.ids, segment.targets, segment.counts, segment.document_starts, begins)
        ids, targets, *others = (None if array is None else tf.constant(array) for array in arrays)
        tensors = (ids, targets, before, *others)
        key = (segment.uses_memory, segment.ids.shape, *(tensor is None for tensor in others))
        step = self.functions.get_or_make(key, lambda: self._compile(cached, tensors))
        results, after = step(*tensors)
        results = tf.nest.map_structure(lambda result: result.numpy(), results)
        return results, after if segment.uses_memory else state

    def _compile(self, cached: FrozenModel, tensors: tuple[Any, ...]) -> Any:
        score = functools.partial(self._score, cached)
        function = compile_function(score, self._jit, cached.model.compute_dtype)
        # A concrete function is called faster, and never traced again.
        return function.get_concrete_function(*tensors)
