"""The losses of token streams of any length, many at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.cached_model import CachedModel, CachedState
from txl_tf.config import AttentionSpan
from txl_tf.errors import UserError
from txl_tf.inference.token_slots import StreamQueue, TokenSlot, arrange_slots
from txl_tf.model import TransformerXL

BATCH_SIZE = 16
# Shapes that are compiled: segments of 8, 32, 128, ... tokens up to T, batches of B, B/4, B/16, ...
_SHORTEST, _GROWTH = 8, 4
# Few rows are read in longer segments: up to so many tokens at once, and to this share of M.
_JOINED, _SHARE = 320, 6


class Piece(NamedTuple):
    """Tokens of a stream whose losses are known; the pieces of a stream come in order.

    Args:
        stream: its number, from 0 on.
        ids: (n,) int32.
        nats: -log p of the last of `ids`, float32: of all, (n,), but for the stream's first token,
            which has nothing before it.
        is_last: whether the stream ends here.
    """

    stream: int
    ids: np.ndarray
    nats: np.ndarray
    is_last: bool


class _Step(NamedTuple):
    """What the model reads at once.

    Args:
        ids: (B, T) int32.
        targets: (B, T) int32.
        counts: (B,) int32, how many of each row count.
        fresh: (B,) bool, the rows that begin a stream.
    """

    ids: np.ndarray
    targets: np.ndarray
    counts: np.ndarray
    fresh: np.ndarray


class Scorer:
    """Scores token streams, each from an empty memory on, with memory carried to its end.

    Each row of a batch reads a stream, segment by segment; where one ends, the row takes the next
    stream and forgets the last (continuous batching). So streams may be of any length, only what is
    read next is held of them, and the streams of a batch do not change each other's scores, but for
    rounding.

    A stream of more than T tokens is cut into segments of T, as in evaluation. A shorter one may
    be read in a shorter segment, which saves time: its tokens see the same either way. If all
    rows hold such ones and an empty memory is masked, none is read. With `span.same_length` tokens
    see the same in longer segments, too: few rows are read in such, which is faster.

    Args:
        model: the model; its weights must not change within a call.
        span: what it sees.
        tgt_len: segment length T. With `span.same_length` it changes the speed alone, and is the
            least; else it says what the first tokens of a segment see.
        batch_size: the most streams B to read at once. With fewer streams the batch is smaller.
        mask_empty_memory: as `CachedModel`'s.
        jit_compile: whether XLA compiles the step, once for each shape.

    Raises:
        UserError: `batch_size` is not positive.
    """

    def __init__(
        self,
        model: TransformerXL,
        span: AttentionSpan,
        tgt_len: int,
        *,
        batch_size: int = BATCH_SIZE,
        mask_empty_memory: bool = True,
        jit_compile: bool = True,
    ):
        if batch_size < 1:
            raise UserError(f"`batch_size` must be positive. Received: batch_size={batch_size}")
        self._batch_sizes = _list_sizes(1, batch_size)
        self._tgt_lens = {
            n_rows: join_segments(n_rows, tgt_len, span) for n_rows in self._batch_sizes
        }
        self._cached = CachedModel(
            model, span, max(self._tgt_lens.values()), mask_empty_memory=mask_empty_memory
        )
        self._alone = self._cached.without_memory()
        self._jit_compile = jit_compile
        self._functions: dict[tuple[int, int, bool], Callable[..., Any]] = {}

    def score(
        self, streams: Iterable[Iterable[np.ndarray]], *, in_order: bool = False
    ) -> Iterator[Piece]:
        """Scores streams.

        Args:
            streams: each the ids of a text, (n,) int32 in [0, V), in parts of any length; they
                are taken when they are needed.
            in_order: a stream must be taken to its end before the next one is asked for, as where
                all come from one file. Long streams are then read one at a time.

        Yields:
            The pieces of all streams; those of one are in order, and each has at least one.
        """
        queue = StreamQueue(streams, in_order=in_order)
        self._cached.follow_weights()
        state: CachedState | None = None
        active: list[TokenSlot] = []
        while True:
            while len(active) < self._batch_sizes[-1] and (slot := queue.take()):
                if slot.is_done:  # one token, or none
                    yield Piece(slot.stream, slot.peek(1), np.zeros(0, np.float32), True)
                else:
                    active.append(slot)
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
        self, rows: Sequence[TokenSlot | None], state: CachedState | None
    ) -> tuple[np.ndarray, CachedState | None]:
        """Returns the losses of the next segment of each row, (B, T), and the new state."""
        slots = [slot for slot in rows if slot is not None]
        tgt_len = self._tgt_lens[len(rows)]
        is_whole = [slot.is_whole(tgt_len) for slot in slots]
        if all(is_whole):
            longest = max(slot.n_inputs for slot in slots)
            tgt_len = _fit(longest, _list_sizes(_SHORTEST, tgt_len))
        step = self._make_step(rows, tgt_len)
        if all(is_whole) and tgt_len <= self._cached.longest_alone:
            nats, _ = self._compute(self._alone, step, self._alone.initial_state(len(rows)))
            return nats.numpy(), state
        nats, state = self._compute(self._cached, step, self._arrange_state(rows, state))
        for row, slot in enumerate(rows):
            if slot is not None:
                slot.row = row
        return nats.numpy(), state

    def _make_step(self, rows: Sequence[TokenSlot | None], tgt_len: int) -> _Step:
        """Returns the next segment of each row, padded to one length; rows may be empty."""
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

    def _arrange_state(
        self, rows: Sequence[TokenSlot | None], state: CachedState | None
    ) -> CachedState:
        """Returns the state with that of each slot in its row; others hold anything."""
        if state is None:
            return self._cached.initial_state(len(rows))
        own = [
            row if slot is None or slot.row is None else slot.row for row, slot in enumerate(rows)
        ]
        n_rows = state.n_read.shape[0]
        if own == list(range(n_rows)):
            return state
        places = [min(place, n_rows - 1) for place in own]
        return tf.nest.map_structure(lambda states: tf.gather(states, places), state)

    def _compute(
        self, cached: CachedModel, step: _Step, state: CachedState
    ) -> tuple[tf.Tensor, CachedState]:
        """Returns the losses of a step, (B, T), and the new state; compiled once a shape."""

        def compute(
            step: tuple[tf.Tensor, ...], state: CachedState
        ) -> tuple[tf.Tensor, CachedState]:
            ids, targets, counts, fresh = step
            return cached.score(ids, targets, state.reset(fresh), counts)

        key = (*step.ids.shape, cached is self._alone)
        tensors = (tuple(map(tf.constant, step)), state)
        if key not in self._functions:
            function = tf.function(compute, jit_compile=self._jit_compile, autograph=False)
            # A concrete one: tensorflow warns of functions that are traced for many shapes.
            self._functions[key] = function.get_concrete_function(*tensors)
        return self._functions[key](*tensors)


def join_segments(n_rows: int, tgt_len: int, span: AttentionSpan) -> int:
    """Returns how many tokens of each row to read at once, where T would be right.

    With `span.same_length` a token sees as much in any segment. Products of more rows are faster,
    and the memory is moved less often; but keys that most of a longer segment do not see cost more.

    >>> span = AttentionSpan(2100, same_length=True)
    >>> [join_segments(n_rows, 80, span) for n_rows in (1, 2, 4, 16)]
    [320, 160, 80, 80]
    """
    if not span.same_length:
        return tgt_len
    return max(tgt_len, min(_JOINED // n_rows, span.mem_len // _SHARE))


def _list_sizes(first: int, last: int) -> list[int]:
    """Returns the sizes up to `last`, which is one of them, that are compiled.

    >>> _list_sizes(8, 100), _list_sizes(8, 5), _list_sizes(1, 16)
    ([8, 32, 100], [5], [1, 4, 16])
    """
    sizes = []
    while first < last:
        sizes.append(first)
        first *= _GROWTH
    return [*sizes, last]


def _fit(n: int, sizes: Sequence[int]) -> int:
    """Returns the least of some rising sizes that is large enough."""
    return next(size for size in sizes if size >= n)
