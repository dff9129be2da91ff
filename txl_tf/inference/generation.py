"""Generation: prompts are read in segments, tokens are drawn in one compiled loop."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.cached_model import CachedModel, CachedState
from txl_tf.errors import UserError
from txl_tf.inference.sampling import (
    UNIFORMS_PER_BLOCK,
    SamplingConfig,
    SamplingTensors,
    draw_uniforms,
)
from txl_tf.inference.token_loop import (
    LoopState,
    TokenLoop,
    join_rows,
    take_positions,
    take_row,
)

_TOKENS_PER_CALL = UNIFORMS_PER_BLOCK  # where calls are split changes no token
_MAX_SEED = 2**63 - 1
_NO_IDS = np.zeros(0, np.int32)


class Generator:
    """Continues prompts at a constant cost for each token, however long the texts are.

    Args:
        cached: the model; it reads prompts in segments of its `tgt_len`.
        jit_compile: whether XLA compiles what it computes.
    """

    def __init__(self, cached: CachedModel, *, jit_compile: bool = True):
        self.cached = cached
        self._jit_compile = jit_compile
        self._read_segment = tf.function(
            lambda ids, state, counts: cached.read(ids, state, counts)[1],
            jit_compile=jit_compile,
            autograph=False,
        )
        self._loops: dict[int | None, CompiledLoop] = {}
        self._loop_positions = take_positions(cached)

    def follow_weights(self) -> None:
        """Computes anew what is kept of the weights; to be called once they have changed."""
        self.cached.follow_weights()
        self._loop_positions = take_positions(self.cached)

    def start(
        self, prompts: Sequence[np.ndarray], choice: SamplingConfig, seeds: Sequence[int]
    ) -> "Texts":
        """Reads prompts of any lengths.

        Args:
            prompts: (n,) int32 each, not empty.
            choice: how tokens will be chosen.
            seeds: one for each; a text depends on its own alone, not on those beside it.

        Returns:
            The texts, to go on with.

        Raises:
            UserError: there is no prompt, one is empty, or a seed is out of its range.
        """
        for seed in seeds:
            if not 0 <= seed <= _MAX_SEED:
                raise UserError(f"`seed` must be from 0 to {_MAX_SEED:,}. Received: seed={seed}")
        if not len(prompts):
            raise UserError("`prompts` must hold at least one prompt. Received: none")
        if not all(map(len, prompts)):
            raise UserError("`prompt` must hold at least one token. Received: an empty text")
        n_token = self.cached.model.config.n_token
        seen = np.zeros((len(prompts), n_token), bool)
        for row, prompt in enumerate(prompts):
            seen[row, prompt] = True
        prompt_state = self._read_prompts(prompts)
        compiled = self._get_loop(choice.count_candidates(n_token))
        state = compiled.loop.begin(prompt_state, tf.constant(seen))
        return Texts(compiled, state, self._loop_positions, choice.make_tensors(n_token), seeds)

    def _read_prompts(self, prompts: Sequence[np.ndarray]) -> CachedState:
        """Returns the state after prompts."""
        tgt_len = self.cached.tgt_len
        lengths = np.array([len(prompt) for prompt in prompts])
        state = self.cached.initial_state(len(prompts))
        for start in range(0, lengths.max(), tgt_len):
            ids = np.zeros((len(prompts), tgt_len), np.int32)
            for row, prompt in enumerate(prompts):
                part = prompt[start : start + tgt_len]
                ids[row, : len(part)] = part
            counts = np.clip(lengths - start, 0, tgt_len).astype(np.int32)
            state = self._read_segment(tf.constant(ids), state, tf.constant(counts))
        return state

    def _get_loop(self, n_candidates: int | None) -> "CompiledLoop":
        if n_candidates not in self._loops:
            loop = TokenLoop(self.cached, n_candidates)
            run, read = (
                tf.function(function, jit_compile=self._jit_compile, autograph=False)
                for function in (loop.run, loop.read)
            )
            self._loops[n_candidates] = CompiledLoop(loop, run, read)
        return self._loops[n_candidates]


class CompiledLoop(NamedTuple):
    """A loop and its functions, which are compiled when they are first called.

    Args:
        loop: the loop.
        run: `loop.run`.
        read: `loop.read`.
    """

    loop: TokenLoop
    run: tf.function
    read: tf.function


class _EndedText(NamedTuple):
    """What it takes to let a text go on that has ended.

    Its row goes on being computed beside the others, with tokens that are not its own.

    Args:
        state: of its row alone, before the tokens below.
        uniforms: (C, 1) float32, of the tokens to draw again.
        n_again: how many to draw again.
        rest: (k,) int32, tokens to read after those.
    """

    state: LoopState
    uniforms: tf.Tensor
    n_again: int
    rest: np.ndarray


class Texts:
    """Texts that can be gone on with, as often as wanted; `Generator.start` makes them.

    Args:
        compiled: the loop.
        state: where they stand.
        positions: of the loop.
        sampling: how tokens are chosen.
        seeds: one for each text.
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
        self._before = state  # the last call of the loop
        self._uniforms = tf.zeros((_TOKENS_PER_CALL, len(seeds)))
        self._ended: dict[int, _EndedText] = {}

    @property
    def has_ended(self) -> np.ndarray:
        """Which texts have ended, (B,) bool."""
        return self._state.is_done.numpy()

    def draw(self, n_new: int) -> Iterator[np.ndarray]:
        """Draws tokens.

        Args:
            n_new: how many for each text.

        Yields:
            The next tokens of all texts, (B, up to 32) int32, with -1 behind the end of a text.
            Nothing comes once all have ended.
        """
        while n_new > 0 and not self.has_ended.all():
            count = min(n_new, _TOKENS_PER_CALL)
            had_ended, self._before = self.has_ended, self._state
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
                self._keep(row, int(n_drawn[row]), n_drawn.max() == n_drawn[row], _NO_IDS)
            yield drawn

    def end(self, row: int, n_drawn: int, n_kept: int, rest: np.ndarray = _NO_IDS) -> None:
        """Ends a text within the tokens that `draw` yielded last.

        Args:
            row: the text.
            n_drawn: how many of its tokens came.
            n_kept: how many of these it keeps.
            rest: (k,) int32, what it holds in the place of the token after these; empty if it
                ends with a whole token.
        """
        self._n_drawn[row] += n_kept + (len(rest) > 0) - n_drawn
        self._keep(row, n_kept, False, rest)
        is_done = self.has_ended
        is_done[row] = True
        self._state = self._state._replace(is_done=tf.constant(is_done))

    def resume(self) -> None:
        """Lets the texts that have ended go on, each from its end."""
        if not self._ended:
            return
        rows = [take_row(self._state, row) for row in range(len(self._seeds))]
        for row, ended in self._ended.items():
            rows[row] = self._catch_up(ended)
        self._state = join_rows(rows)
        self._before = self._state
        self._ended = {}

    def _keep(self, row: int, n_again: int, is_there: bool, rest: np.ndarray) -> None:
        """Keeps what `resume` needs of a text; it needs little where the row is at its end."""
        state, n_again = (self._state, 0) if is_there else (self._before, n_again)
        uniforms = self._uniforms[:, row : row + 1]
        self._ended[row] = _EndedText(take_row(state, row), uniforms, n_again, rest)

    def _catch_up(self, ended: _EndedText) -> LoopState:
        """Returns the state of a text's row right after its end."""
        state = ended.state
        if ended.n_again:  # the same numbers draw the same tokens
            _, state = self._compiled.run(
                state, self._positions, ended.uniforms, tf.constant(ended.n_again), self._sampling
            )
        for token in ended.rest.tolist():
            state = self._compiled.read(
                tf.constant([token]), state, self._positions, self._sampling
            )
        return state._replace(is_done=tf.constant([False]))


def _draw_uniforms(seed: int, first: int) -> tf.Tensor:
    """Returns the numbers of a text's tokens from number `first` on, (32,) float32."""
    block, offset = divmod(first, UNIFORMS_PER_BLOCK)
    uniforms = draw_uniforms(seed, block)
    if offset:  # the last call drew fewer than a block
        following = draw_uniforms(seed, block + 1)
        uniforms = tf.concat([uniforms[offset:], following[:offset]], axis=0)
    return uniforms
