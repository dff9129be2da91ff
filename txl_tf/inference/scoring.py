"""The losses of texts, token by token."""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.config import AttentionSpan
from txl_tf.model import TransformerXL


class TextScore(NamedTuple):
    """The loss of a text: of all its tokens but the first, which has nothing before it.

    Args:
        ids: (n,) int32, all tokens of the text.
        nats: -log p of each token but the first, (n - 1,) float32; (0,) for fewer than 2 tokens.
    """

    ids: np.ndarray
    nats: np.ndarray

    @property
    def tokens(self) -> int:
        """How many tokens were scored."""
        return len(self.nats)

    @property
    def total_nats(self) -> float:
        """The sum of the losses; e to the minus it is the text's probability."""
        return float(self.nats.sum(dtype=np.float64))

    @property
    def nats_per_token(self) -> float:
        """Mean loss; 0 where no token was scored."""
        return self.total_nats / max(self.tokens, 1)

    @property
    def bpc(self) -> float:
        """Bits per token; a character or a byte where these are the tokens."""
        return self.nats_per_token / math.log(2)

    @property
    def perplexity(self) -> float:
        """E to the mean loss."""
        return math.exp(min(self.nats_per_token, 700.0))


class Scorer:
    """Scores texts of any length, with memory carried from segment to segment.

    Args:
        model: the model.
        span: what it sees.
        tgt_len: segment length T; it changes the speed, and with `span.same_length` false what
            the first tokens of a segment see.
    """

    def __init__(self, model: TransformerXL, span: AttentionSpan, tgt_len: int):
        self._model = model
        self._span = span
        self._tgt_len = tgt_len
        self._score_segment = tf.function(self._compute_nats, autograph=False)

    def score(self, ids: np.ndarray) -> TextScore:
        """Returns the score of a text, read from an empty memory on.

        Args:
            ids: (n,) int32.
        """
        memory, parts = self._model.initial_memory(1, self._span.mem_len), []
        for start in range(0, len(ids) - 1, self._tgt_len):
            part = ids[start : start + self._tgt_len + 1]
            # Padding comes after the text's last token: nothing that counts sees it.
            segment = np.zeros((1, self._tgt_len + 1), np.int32)
            segment[0, : len(part)] = part
            nats, memory = self._score_segment(tf.constant(segment), memory)
            parts.append(nats.numpy()[0, : len(part) - 1])
        return TextScore(ids, np.concatenate(parts) if parts else np.zeros(0, np.float32))

    def _compute_nats(self, segment: tf.Tensor, memory: tuple) -> tuple[tf.Tensor, tuple]:
        """Returns the losses of a segment of T + 1 tokens, (1, T) float32, and the new memory."""
        hidden, memory = self._model(segment[:, :-1], memory, span=self._span)
        return self._model.nll(hidden, segment[:, 1:]), memory
