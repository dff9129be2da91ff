"""Generation: prompts are read in segments, and one compiled loop draws the tokens."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.cached_model import CachedModel, CachedState
from txl_tf.config import MAX_DRAFT_LEN, MAX_SAMPLING_SEED
from txl_tf.errors import UserError
from txl_tf.generation.loop_state import LoopState, join_rows, take_row
from txl_tf.generation.prompt_lookup import LookupLoop
from txl_tf.generation.sampling import (
    UNIFORMS_PER_BLOCK,
    SamplingConfig,
    SamplingTensors,
    draw_uniforms,
)
from txl_tf.generation.token_loop import TokenLoop, take_positions

_TOKENS_PER_CALL = UNIFORMS_PER_BLOCK  # the tokens do not depend on how calls are split
_NO_IDS = np.zeros(0, np.int32)


class Generator:
    """Continues prompts at a constant cost per token, whatever the length of the texts.

    Args:
        cached: The model. It reads prompts in segments of its `tgt_len`.
        jit_compile: Whether to compile with XLA.

    Raises:
        UserError: If the model's position encoding allows no memory.
    """

    def __init__(self, cached: CachedModel, *, jit_compile: bool = True):
        cached.model.config.check_memory("generation")
        self.cached = cached
        self._jit_compile = jit_compile
        self._read_segment = tf.function(
            lambda ids, state, counts: cached.read(ids, state, counts)[1],
            jit_compile=jit_compile,
            autograph=False,
        )
        self._loops: dict[tuple[int | None, bool, int], CompiledLoop] = {}
        self._loop_positions = take_positions(cached)

    def follow_weights(self) -> None:
        """Recomputes the cached products after a change of the weights."""
        self.cached.follow_weights()
        self._loop_positions = take_positions(self.cached)

    def start(
        self,
        prompts: Sequence[np.ndarray],
        sampling: SamplingConfig,
        seeds: Sequence[int],
        *,
        draft_len: int = 0,
    ) -> "TokenSession":
        """Reads prompts of any lengths and returns the session that continues them.

        Args:
            prompts: The ids of each prompt, (n,) int32, not empty.
            sampling: The sampling settings.
            seeds: A seed for each text, which does not depend on the other texts of the batch.
            draft_len: The number of tokens to draft by prompt lookup; see
                `txl_tf.generation.prompt_lookup`.

        Raises:
            UserError: If there is no prompt, a prompt is empty, or a seed or `draft_len` is out of
                range.
        """
        if not 0 <= draft_len <= MAX_DRAFT_LEN:
            raise UserError(
                f"`draft_len` must be from 0 to {MAX_DRAFT_LEN}. Received: draft_len={draft_len}"
            )
        for seed in seeds:
            if not 0 <= seed <= MAX_SAMPLING_SEED:
                raise UserError(
                    f"`seed` must be from 0 to {MAX_SAMPLING_SEED:,}. Received: seed={seed}"
                )
        if not len(prompts):
            raise UserError("`prompts` must hold at least one prompt. Received: none")
        if not all(map(len, prompts)):
            raise UserError("`prompt` must hold at least one token. Received: an empty text")
        n_token = self.cached.model.config.n_token
        seen = np.zeros((len(prompts), n_token), bool)
        for row, prompt in enumerate(prompts):
            seen[row, prompt] = True
        prompt_state = self._read_prompts(prompts)
        # Without bins, settings that differ in this share one compiled loop.
        by_bins = bool(self.cached.model.config.cutoffs) and sampling.draws_by_bins
        compiled = self._get_loop(sampling.count_candidates(n_token), by_bins, draft_len)
        history = _make_history(prompts, compiled.loop.history_len)
        state = compiled.loop.begin(prompt_state, tf.constant(seen), tf.constant(history))
        tensors = sampling.make_tensors(n_token)
        return TokenSession(compiled, state, self._loop_positions, tensors, seeds)

    def _read_prompts(self, prompts: Sequence[np.ndarray]) -> CachedState:
        tgt_len = self.cached.tgt_len
        lengths = np.array([len(prompt) for prompt in prompts])
        state = self.cached.initial_state(len(prompts))
        for start in range(0, lengths.max(), tgt_len):
            ids = np.zeros((len(prompts), tgt_len), np.int32)
            for row, prompt in enumerate(prompts):
                segment = prompt[start : start + tgt_len]
                ids[row, : len(segment)] = segment
            counts = np.clip(lengths - start, 0, tgt_len).astype(np.int32)
            state = self._read_segment(tf.constant(ids), state, tf.constant(counts))
        return state

    def _get_loop(self, n_candidates: int | None, by_bins: bool, draft_len: int) -> "CompiledLoop":
        key = (n_candidates, by_bins, draft_len)
        if key not in self._loops:
            loop = (LookupLoop if draft_len else TokenLoop)(
                self.cached,
                n_candidates,
                by_bins=by_bins,
                is_compiled=self._jit_compile,
                max_new=1 + draft_len,
            )
            run, read = (
                tf.function(function, jit_compile=self._jit_compile, autograph=False)
                for function in (loop.run, loop.read)
            )
            self._loops[key] = CompiledLoop(loop, run, read)
        return self._loops[key]


class CompiledLoop(NamedTuple):
    """A loop with its methods `run` and `read` as functions, compiled at their first call."""

    loop: TokenLoop
    run: tf.function
    read: tf.function


class _EndedText(NamedTuple):
    """The data that lets a text continue after its end.

    The row of an ended text is still computed with the batch, with tokens that do not belong to it.
    """

    state: LoopState  # of the row, before the tokens to draw again
    uniforms: tf.Tensor  # (C, 1) float32, the random numbers of these tokens
    n_redrawn: int
    rest: np.ndarray  # (k,) int32, tokens to read after them


class TokenSession:
    """A batch of texts that can be continued any number of times; see `Generator.start`.

    Args:
        compiled: The loop.
        state: The state after the prompts.
        positions: The loop's position products.
        sampling: The sampling settings.
        seeds: The seed of each text.
    """

    def __init__(
        self,
        compiled: CompiledLoop,
        state: LoopState,
        positions: Sequence[tf.Tensor],
        sampling: SamplingTensors,
        seeds: Sequence[int],
    ):
        self._compiled = compiled
        self._state = state
        self._positions = positions
        self._sampling = sampling
        self._seeds = seeds
        self._n_drawn = np.zeros(len(seeds), np.int64)
        self._previous = state  # before the last call of the loop
        self._uniforms = tf.zeros((_TOKENS_PER_CALL, len(seeds)))
        self._ended: dict[int, _EndedText] = {}

    @property
    def has_ended(self) -> np.ndarray:
        """(B,) bool, whether each text has ended."""
        return self._state.is_done.numpy()

    @property
    def n_passes(self) -> int:
        """The number of passes over the weights since the prompts: one for each token or draft."""
        return int(self._state.n_passes)

    def draw(self, n_new: int) -> Iterator[np.ndarray]:
        """Draws tokens.

        Args:
            n_new: The number of tokens for each text.

        Yields:
            The next tokens of all texts, (B, up to 32) int32, with -1 after the end of a text. The
            iterator stops when all texts have ended.
        """
        while n_new > 0 and not self.has_ended.all():
            count = min(n_new, _TOKENS_PER_CALL)
            had_ended, self._previous = self.has_ended, self._state
            rows = zip(self._seeds, self._n_drawn.tolist(), strict=True)
            self._uniforms = tf.stack([_draw_uniforms(seed, first) for seed, first in rows], axis=1)
            tokens, self._state = self._compiled.run(
                self._state,
                self._positions,
                self._uniforms,
                tf.constant(count),
                self._sampling,
            )
            n_new -= count
            drawn = tokens.numpy()[:count].T
            n_drawn = (drawn >= 0).sum(axis=1)
            self._n_drawn += n_drawn
            for row in np.flatnonzero(self.has_ended & ~had_ended).tolist():
                # Rows that drew to the end of the call are at their end in the new state.
                is_current = n_drawn[row] == n_drawn.max()
                state = self._state if is_current else self._previous
                self._store_end(row, state, 0 if is_current else int(n_drawn[row]), _NO_IDS)
            yield drawn

    def end(self, row: int, n_drawn: int, n_kept: int, rest: np.ndarray = _NO_IDS) -> None:
        """Ends a text within the tokens that `draw` last yielded.

        Args:
            row: The text.
            n_drawn: The number of its tokens that were yielded.
            n_kept: The number of these tokens that it keeps.
            rest: (k,) int32, the tokens that replace the next token; empty if the text ends with a
                whole token.
        """
        self._n_drawn[row] += n_kept + (len(rest) > 0) - n_drawn
        self._store_end(row, self._previous, n_kept, rest)
        is_done = self.has_ended
        is_done[row] = True
        self._state = self._state._replace(is_done=tf.constant(is_done))

    def resume(self) -> None:
        """Lets texts that have ended continue after their end."""
        if not self._ended:
            return
        rows = [take_row(self._state, row) for row in range(len(self._seeds))]
        for row, ended in self._ended.items():
            rows[row] = self._restore(ended)
        self._state = join_rows(rows)
        self._previous = self._state
        self._ended = {}

    def _store_end(self, row: int, state: LoopState, n_redrawn: int, rest: np.ndarray) -> None:
        uniforms = self._uniforms[:, row : row + 1]
        self._ended[row] = _EndedText(take_row(state, row), uniforms, n_redrawn, rest)

    def _restore(self, ended: _EndedText) -> LoopState:
        """Returns the state of a text's row right after its end."""
        state = ended.state
        if ended.n_redrawn:  # the same random numbers draw the same tokens
            _, state = self._compiled.run(
                state, self._positions, ended.uniforms, tf.constant(ended.n_redrawn), self._sampling
            )
        for token in ended.rest.tolist():
            state = self._compiled.read(
                tf.constant([token]), state, self._positions, self._sampling
            )
        return state._replace(is_done=tf.constant([False]))


def _make_history(prompts: Sequence[np.ndarray], history_len: int) -> np.ndarray:
    """Returns the last tokens of each prompt, (B, W) int32, after -1 where a prompt is shorter."""
    history = np.full((len(prompts), history_len), -1, np.int32)
    for row, prompt in enumerate(prompts):
        last = prompt[-history_len:] if history_len else _NO_IDS
        history[row, history_len - len(last) :] = last
    return history


def _draw_uniforms(seed: int, first: int) -> tf.Tensor:
    """Returns the random numbers of a text's tokens from index `first` on, (32,) float32."""
    block, offset = divmod(first, UNIFORMS_PER_BLOCK)
    uniforms = draw_uniforms(seed, block)
    if offset:  # the last call drew less than a block
        following = draw_uniforms(seed, block + 1)
        uniforms = tf.concat([uniforms[offset:], following[:offset]], axis=0)
    return uniforms
