"""Going on with texts: prompts are read in segments, tokens drawn in one compiled loop."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from txl_tf.cached_model import CachedMemory, CachedModel
from txl_tf.errors import UserError
from txl_tf.inference.sampling import UNIFORMS_PER_BLOCK, Sampling, draw_uniforms
from txl_tf.inference.token_loop import LoopState, TokenLoop

_TOKENS_PER_CALL = UNIFORMS_PER_BLOCK  # where calls are split changes no token
_MAX_SEED = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Choice:
    """How tokens are chosen.

    Args:
        temperature: the log-probabilities are divided by it; 0 takes the likeliest token.
        top_k: draw among so many likeliest tokens; `None` for all.
        top_p: draw among the likeliest tokens that together have this probability; `None` for all
            (Holtzman et al. 2020, https://arxiv.org/abs/1904.09751).
        repetition_penalty: log-probabilities of tokens that the text holds are multiplied by it
            (after Keskar et al. 2019, https://arxiv.org/abs/1909.05858); 1 for none.
        banned: ids that are never drawn.
        stops: ids that end a text; they are its last.

    Raises:
        UserError: a value is out of its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    banned: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(
                f"`temperature` must be 0 or more. Received: temperature={self.temperature}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"`top_k` must be positive. Received: top_k={self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"`top_p` must be in (0, 1]. Received: top_p={self.top_p}")
        if not 1 <= self.repetition_penalty < float("inf"):
            raise UserError(
                "`repetition_penalty` must be 1 or more. "
                f"Received: repetition_penalty={self.repetition_penalty}"
            )

    def count_candidates(self, n_token: int) -> int | None:
        """Returns among how many of the likeliest tokens to draw; `None` for all, unsorted."""
        if self.top_k is None and self.top_p is None:
            return None
        return min(self.top_k or n_token, n_token)

    def make_sampling(self, n_token: int) -> Sampling:
        """Returns the tensors of the loop, for V tokens.

        Raises:
            UserError: all tokens are banned.
        """
        is_allowed = np.ones(n_token, bool)
        is_allowed[list(self.banned)] = False
        if not is_allowed.any():
            raise UserError(f"`banned` must leave a token. Received: all {n_token}")
        return Sampling(
            tf.constant(self.temperature, tf.float32),
            tf.constant(1.0 if self.top_p is None else self.top_p, tf.float32),
            tf.constant(self.repetition_penalty, tf.float32),
            tf.constant(is_allowed),
            tf.constant(self.stops, tf.int32, shape=(len(self.stops),)),
        )


class Generator:
    """Goes on with texts at a constant cost for each token, however long they are.

    Args:
        cached: the model.
        tgt_len: how many tokens of a prompt are read at a time.
        jit_compile: whether XLA compiles what it computes.
    """

    def __init__(self, cached: CachedModel, tgt_len: int, *, jit_compile: bool = True):
        self.cached = cached
        self.tgt_len = tgt_len
        self._jit_compile = jit_compile
        self._read_segment = tf.function(
            self._compute_segment, jit_compile=jit_compile, autograph=False
        )
        self._loops: dict[int | None, tuple[TokenLoop, tf.function]] = {}
        self.follow_weights()

    def follow_weights(self) -> None:
        """Makes anew what is kept of the weights; to be called once they have changed."""
        self._positions = self.cached.project_positions(self.tgt_len)
        self._loop_positions = TokenLoop(self.cached).take_positions(self._positions)

    def start(self, prompts: Sequence[np.ndarray], choice: Choice, seeds: Sequence[int]) -> "Texts":
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
        memory, log_probs = self._read_prompts(prompts)
        loop, run = self._get_loop(choice.count_candidates(n_token))
        state = loop.begin(memory, log_probs, tf.constant(seen))
        return Texts(run, state, self._loop_positions, choice.make_sampling(n_token), seeds)

    def _read_prompts(self, prompts: Sequence[np.ndarray]) -> tuple[CachedMemory, tf.Tensor]:
        """Returns the memory after prompts, and log p of what follows them, (B, V) float32."""
        lengths = np.array([len(prompt) for prompt in prompts])
        memory = self.cached.initial_memory(len(prompts))
        shape = (len(prompts), self.cached.model.config.d_model)
        last = tf.zeros(shape, self.cached.model.compute_dtype)
        for start in range(0, lengths.max(), self.tgt_len):
            ids = np.zeros((len(prompts), self.tgt_len), np.int32)
            for row, prompt in enumerate(prompts):
                part = prompt[start : start + self.tgt_len]
                ids[row, : len(part)] = part
            counts = np.clip(lengths - start, 0, self.tgt_len).astype(np.int32)
            memory, last = self._read_segment(
                tf.constant(ids), tf.constant(counts), memory, last, self._positions
            )
        return memory, self.cached.model.log_probs(last[:, None])[:, 0]

    def _compute_segment(
        self,
        ids: tf.Tensor,
        counts: tf.Tensor,
        memory: CachedMemory,
        last: tf.Tensor,
        positions: Sequence[tf.Tensor],
    ) -> tuple[CachedMemory, tf.Tensor]:
        """Returns the new memory, and the hidden states of the last tokens so far, (B, D)."""
        hidden, memory = self.cached.read(ids, memory, positions, counts)
        states = tf.concat([last[:, None], hidden], axis=1)
        return memory, tf.gather(states, counts, axis=1, batch_dims=1)

    def _get_loop(self, n_candidates: int | None) -> tuple[TokenLoop, tf.function]:
        if n_candidates not in self._loops:
            loop = TokenLoop(self.cached, n_candidates)
            run = tf.function(loop.run, jit_compile=self._jit_compile, autograph=False)
            self._loops[n_candidates] = loop, run
        return self._loops[n_candidates]


class Texts:
    """Texts that can be gone on with, as often as wanted; `Generator.start` makes them.

    Args:
        run: the compiled loop.
        state: where they stand.
        positions: of the loop.
        sampling: how tokens are chosen.
        seeds: one for each text.
    """

    def __init__(
        self,
        run: tf.function,
        state: LoopState,
        positions: Sequence[tf.Tensor],
        sampling: Sampling,
        seeds: Sequence[int],
    ):
        self._run = run
        self._state = state
        self._positions = positions
        self._sampling = sampling
        self._seeds = seeds
        self._n_drawn = 0

    def draw(self, n_new: int) -> Iterator[np.ndarray]:
        """Draws tokens.

        Args:
            n_new: how many for each text.

        Yields:
            The next tokens of all texts, (B, up to 32) int32, with -1 behind the end of a text.
            Nothing comes once all have ended.
        """
        while n_new > 0 and not self._state.is_done.numpy().all():
            count = min(n_new, _TOKENS_PER_CALL)
            uniforms = tf.stack([self._draw_uniforms(seed) for seed in self._seeds], axis=1)
            tokens, self._state = self._run(
                self._state,
                self._positions,
                uniforms,
                tf.constant(count),
                self._sampling,
            )
            n_new -= count
            self._n_drawn += count
            yield tokens.numpy()[:count].T

    def _draw_uniforms(self, seed: int) -> tf.Tensor:
        """Returns the numbers of a text's next tokens, (32,) float32."""
        block, offset = divmod(self._n_drawn, UNIFORMS_PER_BLOCK)
        uniforms = draw_uniforms(seed, block)
        if offset:  # the last call drew fewer than a block
            following = draw_uniforms(seed, block + 1)
            uniforms = tf.concat([uniforms[offset:], following[:offset]], axis=0)
        return uniforms
