"""The losses of token streams of any length, by continuous batching."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.architecture import make_cached_model
from txl_tf.cached_model import SegmentReader, State
from txl_tf.compilation import compile_function
from txl_tf.config import AttentionSpan, ModelConfig
from txl_tf.errors import UserError
from txl_tf.model import SegmentModel
from txl_tf.scoring.token_streams import Piece, StreamQueue, TokenSlot, arrange_slots

SCORING_BATCH_SIZE = 16
# The compiled shapes: segments of 8, 32, 128, ..., T tokens and batches of 1, 4, 16, ..., B rows.
_MIN_TGT_LEN, _GROWTH = 8, 4
# Whole streams are read in segments of 2 T, 4 T, ..., too: at most so many scores for each head.
_MAX_SCORES = 16 * 512**2
# Small batches are read in longer segments: 320 tokens in all, at most M / 6 for each row.
_JOINED_TOKENS, _MEMORY_DIVISOR = 320, 6


class _Step(NamedTuple):
    """The next segment of each row."""

    ids: np.ndarray  # (B, T) int32
    targets: np.ndarray  # (B, T) int32, the tokens that follow `ids`
    counts: np.ndarray  # (B,) int32, number of tokens in each row; the rest is padding
    fresh: np.ndarray  # (B,) bool, whether the row begins a stream


class Scorer:
    """Scores token streams. Each begins with an empty memory, which is carried to its end.

    Each row of a batch reads a stream, segment by segment. When the stream ends, the row clears its
    memory and takes the next stream (continuous batching). Streams may therefore have any length,
    only their next tokens are held, and they do not affect each other's scores, except for
    rounding.

    A stream of more than T tokens is cut into segments of T, as in evaluation. Shorter streams are
    read in shorter segments, which is faster and gives the same results. If an empty memory is
    masked and no stream of the batch is longer than the memory, each is read in one segment without
    any memory, where that is less work. With `span.same_length`, longer segments give the same
    results, too, and are faster for small batches.

    Args:
        model: The model. Its weights must not change during a call.
        span: The attention span.
        tgt_len: Segment length T. Without `span.same_length` it determines how much context the
            first tokens of a segment see; otherwise it affects only the speed.
        batch_size: Largest number of streams B to read at once; fewer streams use smaller batches.
        mask_empty_memory: See `CachedModel`.
        jit: How much of the step XLA compiles, once for each shape; one of `JIT_MODES`.
        temperature: The temperature of the softmax.

    Attributes:
        functions: The compiled steps, by batch size, segment length and whether they are read
            without memory.

    Raises:
        UserError: If `batch_size` is not positive, or the softmax cannot have the temperature.
    """

    def __init__(
        self,
        model: SegmentModel,
        span: AttentionSpan,
        tgt_len: int,
        *,
        batch_size: int = SCORING_BATCH_SIZE,
        mask_empty_memory: bool = True,
        jit: str = "auto",
        temperature: float = 1.0,
    ):
        if batch_size < 1:
            raise UserError(f"`batch_size` must be positive. Received: batch_size={batch_size}")
        self._batch_sizes = _list_sizes(1, batch_size)
        self._tgt_lens = {
            n_rows: join_segments(n_rows, tgt_len, span) for n_rows in self._batch_sizes
        }
        self._cached = make_cached_model(
            model,
            span,
            max(self._tgt_lens.values()),
            mask_empty_memory=mask_empty_memory,
            temperature=temperature,
            defer_products=True,  # each call begins with those of its weights
        )
        self._memoryless = self._cached.without_memory()
        self._whole_lens = {
            n_rows: _list_whole_lens(n_rows, self._tgt_lens[n_rows], self._cached)
            for n_rows in self._batch_sizes
        }
        self._dense_cost = _estimate_dense_cost(model.config)
        self._jit = jit
        self.functions: dict[tuple[int, int, bool], Callable[..., Any]] = {}

    def score(
        self, streams: Iterable[Iterable[np.ndarray]], *, in_order: bool = False
    ) -> Iterator[Piece]:
        """Scores streams.

        Args:
            streams: The ids of each stream, int32 in [0, V), in chunks (n,) of any length. They are
                consumed as needed.
            in_order: Whether each stream must be consumed before the next one is requested, as
                when all come from one file. Long streams are then read one at a time.

        Yields:
            The pieces of all streams: at least one for each, in the order of its tokens.
        """
        queue = StreamQueue(streams, in_order=in_order)
        self._cached.follow_weights()
        state: Any = None
        active: list[TokenSlot] = []
        while True:
            yield from queue.fill(active, self._batch_sizes[-1])
            if not active:
                return
            rows = arrange_slots(active, _fit(len(active), self._batch_sizes))
            nats, state = self._read(rows, state)
            for slot, losses in zip(rows, nats, strict=True):
                if slot is not None:
                    count = min(slot.n_inputs, len(losses))
                    ids = slot.advance(count)
                    slot.fill(self._cached.tgt_len)
                    yield Piece(slot.stream, ids, losses[:count], slot.is_done)
            active = [slot for slot in active if not slot.is_done]

    def _read(
        self, rows: Sequence[TokenSlot | None], state: State | None
    ) -> tuple[np.ndarray, State | None]:
        """Returns the losses of the next segment of each row, (B, T), and the new state."""
        slots = [slot for slot in rows if slot is not None]
        tgt_len = self._tgt_lens[len(rows)]
        whole_len = self._choose_whole_len(slots, len(rows))
        step = self._make_step(rows, whole_len or tgt_len)
        if whole_len and whole_len <= self._cached.max_len_without_memory:
            memoryless = self._memoryless
            nats, _ = self._compute(memoryless, step, memoryless.initial_state(len(rows)))
            return nats.numpy(), state
        nats, state = self._compute(self._cached, step, self._arrange_state(rows, state))
        for row, slot in enumerate(rows):
            if slot is not None:
                slot.row = row
        return nats.numpy(), state

    def _choose_whole_len(self, slots: Sequence[TokenSlot], n_rows: int) -> int | None:
        """Returns the length of a segment that holds all streams; `None` to read several."""
        whole_lens, tgt_len = self._whole_lens[n_rows], self._tgt_lens[n_rows]
        if not all(slot.is_whole(whole_lens[-1]) for slot in slots):
            return None
        n_inputs = [slot.n_inputs for slot in slots]
        whole_len = _fit(max(n_inputs), whole_lens)
        if whole_len <= tgt_len:
            return whole_len
        # The padding of streams of different lengths may cost more than reading the memory.
        n_segments = sum(-(-count // tgt_len) for count in n_inputs)
        n_keys = tgt_len + self._cached.span.mem_len
        whole_cost = n_rows * whole_len * (self._dense_cost + whole_len)
        segments_cost = n_segments * tgt_len * (self._dense_cost + n_keys)
        return whole_len if whole_cost <= segments_cost else None

    def _make_step(self, rows: Sequence[TokenSlot | None], tgt_len: int) -> _Step:
        """Returns the next segment of each row, padded to T; rows without a slot are empty."""
        shape = (len(rows), tgt_len)
        ids, targets = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        counts, fresh = np.zeros(len(rows), np.int32), np.ones(len(rows), np.bool_)
        for row, slot in enumerate(rows):
            if slot is not None:
                segment = slot.peek(tgt_len + 1)
                counts[row] = count = len(segment) - 1
                ids[row, :count], targets[row, :count] = segment[:-1], segment[1:]
                fresh[row] = slot.is_fresh
        return _Step(ids, targets, counts, fresh)

    def _arrange_state(self, rows: Sequence[TokenSlot | None], state: State | None) -> State:
        """Returns the state with each slot's state in its row; other rows are arbitrary."""
        if state is None:
            return self._cached.initial_state(len(rows))
        sources = [
            row if slot is None or slot.row is None else slot.row for row, slot in enumerate(rows)
        ]
        n_rows = state.n_read.shape[0]
        if sources == list(range(n_rows)):
            return state
        sources = [min(row, n_rows - 1) for row in sources]
        return tf.nest.map_structure(lambda states: tf.gather(states, sources), state)

    def _compute(self, cached: SegmentReader, step: _Step, state: State) -> tuple[tf.Tensor, State]:
        """Returns the losses of a step, (B, T), and the new state; compiles once per shape."""

        def compute(step: tuple[tf.Tensor, ...], state: State) -> tuple[tf.Tensor, State]:
            ids, targets, counts, fresh = step
            return cached.score(ids, targets, state.reset(fresh), counts)

        key = (*step.ids.shape, cached is self._memoryless)
        tensors = (tuple(map(tf.constant, step)), state)
        if key not in self.functions:
            function = compile_function(compute, self._jit, cached.model.compute_dtype)
            # TensorFlow warns about functions (not concrete ones) traced for many shapes.
            self.functions[key] = function.get_concrete_function(*tensors)
        return self.functions[key](*tensors)


def join_segments(n_rows: int, tgt_len: int, span: AttentionSpan) -> int:
    """Returns the fastest segment length, at least T, that gives the same losses as T.

    With `span.same_length`, a token sees the same keys in segments of any length. Longer segments
    mean larger matrix products and fewer updates of the memory, but also more keys that most
    queries do not see.

    >>> span = AttentionSpan(2100, same_length=True)
    >>> [join_segments(n_rows, 80, span) for n_rows in (1, 2, 4, 16)]
    [320, 160, 80, 80]
    """
    if not span.same_length:
        return tgt_len
    return max(tgt_len, min(_JOINED_TOKENS // n_rows, span.mem_len // _MEMORY_DIVISOR))


def _list_whole_lens(n_rows: int, tgt_len: int, cached: SegmentReader) -> list[int]:
    """Returns the lengths, ascending, of segments that hold whole streams."""
    sizes = _list_sizes(_MIN_TGT_LEN, tgt_len)
    limit = min(cached.max_len_without_memory, math.isqrt(_MAX_SCORES // n_rows))
    while 2 * sizes[-1] <= limit:
        sizes.append(2 * sizes[-1])
    return sizes


def _estimate_dense_cost(config: ModelConfig) -> float:
    """Returns how many keys cost a query as much as the kernels of its layer.

    A key takes part in three products: content, position and value. They are taken to be half as
    fast as those with kernels, because they are smaller, and are followed by a softmax.
    """
    d_heads = config.n_head * config.d_head
    return config.d_model * (4 * d_heads + 2 * config.d_inner) / (3 * d_heads) / 2


def _list_sizes(first: int, last: int) -> list[int]:
    """Returns the sizes to compile, up to and including `last`.

    >>> _list_sizes(8, 100), _list_sizes(8, 5), _list_sizes(1, 16)
    ([8, 32, 100], [5], [1, 4, 16])
    """
    sizes = []
    while first < last:
        sizes.append(first)
        first *= _GROWTH
    return [*sizes, last]


def _fit(n: int, sizes: Sequence[int]) -> int:
    """Returns the smallest sufficient size of an ascending list."""
    return next(size for size in sizes if size >= n)
