"""Generation of ids: prompts are read in segments, and one compiled loop draws the tokens."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from txl_tf.errors import UserError
from txl_tf.generation.sampling import SamplingConfig
from txl_tf.generation.token_loop import LoopState, TokenLoop, take_positions
from txl_tf.models.cached_model import CachedModel, CachedState
from txl_tf.models.compilation import Recent

_MOST_LOOPS = 64  # that are kept; the server allows as many programs


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
        self._loops: Recent[tuple[int | None, bool], TokenLoop] = Recent(_MOST_LOOPS)
        # Variables: constants would become part of the compiled loops.
        self._positions = [tf.Variable(p, trainable=False) for p in take_positions(cached)]

    def follow_weights(self) -> None:
        """Recomputes the cached products after a change of the weights."""
        self.cached.follow_weights()
        for variable, products in zip(self._positions, take_positions(self.cached), strict=True):
            variable.assign(products)

    def begin(
        self, prompts: Sequence[np.ndarray], sampling: SamplingConfig
    ) -> tuple[TokenLoop, LoopState]:
        """Reads prompts, (n,) int32 each, and returns the loop that continues them, and its state.

        Raises:
            UserError: If there is no prompt, or a prompt is empty.
        """
        if not len(prompts):
            raise UserError("`prompts` must hold at least one prompt. Received: none")
        if not all(map(len, prompts)):
            raise UserError("`prompt` must hold at least one token. Received: an empty text")
        loop = self._get_loop(sampling)
        seen = np.zeros((len(prompts), self.cached.model.config.n_token), bool)
        for row, prompt in enumerate(prompts):
            seen[row, prompt] = True
        state = self._read_prompts(prompts)
        return loop, loop.begin(state, tf.constant(seen))

    def _read_prompts(self, prompts: Sequence[np.ndarray]) -> CachedState:
        """Returns the state after the prompts, which are read in segments."""
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

    def _get_loop(self, sampling: SamplingConfig) -> TokenLoop:
        """Returns the loop for the settings, which keeps its compiled functions."""
        config = self.cached.model.config
        n_candidates = sampling.count_candidates(config.n_token)
        # Without bins, settings that differ in this share one compiled loop.
        by_bins = bool(config.cutoffs) and sampling.draws_by_bins
        return self._loops.get_or_make(
            (n_candidates, by_bins),
            lambda: TokenLoop(
                self.cached,
                self._positions,
                n_candidates,
                by_bins=by_bins,
                is_compiled=self._jit_compile,
            ),
        )
