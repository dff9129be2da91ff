"""Going on with a text, token by token."""

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from txl_tf.config import AttentionSpan
from txl_tf.errors import UserError
from txl_tf.model import TransformerXL


class Generator:
    """Draws tokens from a model's distribution, with the memory of all that came before.

    Args:
        model: the model.
        span: what it sees; the memory holds `span.mem_len` states of each layer.
        tgt_len: how many tokens of a prompt are read at a time.
    """

    def __init__(self, model: TransformerXL, span: AttentionSpan, tgt_len: int):
        self._model = model
        self._span = span
        self._tgt_len = tgt_len
        self._read = tf.function(self._compute_log_probs, autograph=False)

    def generate(
        self,
        prompt: np.ndarray,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> Iterator[int]:
        """Yields token after token, without end.

        Args:
            prompt: (n,) int32, the ids before the first token drawn.
            temperature: the log-probabilities are divided by it; 0 takes the likeliest token.
            top_k: draw among so many likeliest tokens; `None` for all.
            top_p: draw among the likeliest tokens that together have this probability; `None` for
                all (Holtzman et al. 2020, https://arxiv.org/abs/1904.09751).
            seed: the same seed, the same tokens.

        Raises:
            UserError: the prompt is empty, or an argument is out of its range.
        """
        _check_arguments(prompt, temperature, top_k, top_p)
        return self._draw(prompt, temperature, top_k, top_p, np.random.default_rng(seed))

    def _draw(
        self,
        prompt: np.ndarray,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        generator: np.random.Generator,
    ) -> Iterator[int]:
        memory = self._model.initial_memory(1, self._span.mem_len)
        # The prompt but for what fills no segment, then token by token: two shapes to trace.
        n_whole = len(prompt) // self._tgt_len * self._tgt_len
        parts = [prompt[i : i + self._tgt_len] for i in range(0, n_whole, self._tgt_len)]
        parts += [prompt[i : i + 1] for i in range(n_whole, len(prompt))]
        while True:
            for part in parts:
                log_probs, memory = self._read(tf.constant(part[None]), memory)
            token = choose_token(log_probs.numpy(), temperature, top_k, top_p, generator)
            yield token
            parts = [np.array([token], np.int32)]

    def _compute_log_probs(self, ids: tf.Tensor, memory: tuple) -> tuple[tf.Tensor, tuple]:
        """Returns log p of what follows the ids, (V,) float32, and the new memory."""
        hidden, memory = self._model(ids, memory, span=self._span)
        return self._model.log_probs(hidden[:, -1:])[0, 0], memory


def choose_token(
    log_probs: np.ndarray,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: np.random.Generator,
) -> int:
    """Draws a token.

    Args:
        log_probs: (V,) float32 in nats.
        temperature: as in `Generator.generate`.
        top_k: as there.
        top_p: as there.
        generator: draws.
    """
    if temperature == 0:
        return int(log_probs.argmax())
    order = np.argsort(-log_probs, kind="stable")[:top_k]
    logits = log_probs[order].astype(np.float64) / temperature
    weights = np.exp(logits - logits[0])
    weights /= weights.sum()
    if top_p is not None:
        n_kept = int(np.searchsorted(weights.cumsum(), top_p)) + 1
        weights = weights[:n_kept] / weights[:n_kept].sum()
    return int(order[generator.choice(len(weights), p=weights)])


def _check_arguments(
    prompt: np.ndarray, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    if not len(prompt):
        raise UserError("`prompt` must hold at least one token. Received: an empty text")
    if not 0 <= temperature < float("inf"):
        raise UserError(f"`temperature` must be 0 or more. Received: temperature={temperature}")
    if top_k is not None and top_k < 1:
        raise UserError(f"`top_k` must be positive. Received: top_k={top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise UserError(f"`top_p` must be in (0, 1]. Received: top_p={top_p}")
