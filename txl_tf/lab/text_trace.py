"""The predictions for each token of a text: losses, likely alternatives and strongest keys."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf import LanguageModel
from txl_tf.data import EvaluationLanes, Segment
from txl_tf.data.lanes.training_lanes import StoredTokens
from txl_tf.lab.attention_reader import AttentionReader, LayerAttention
from txl_tf.lab.text_attention import Head
from txl_tf.models.compilation import explain_full_memory

_ADVICE = "to read the text: try a smaller --tgt_len or --mem_len"


class TextTracer:
    """Reads texts, each from an empty memory, and returns the predictions for their tokens.

    `heads` must be distinct and in ascending order. Texts of all lengths share one traced function.
    """

    @explain_full_memory(_ADVICE)
    def __init__(
        self,
        lm: LanguageModel,
        heads: Sequence[Head],
        *,
        n_alternatives: int = 5,
        n_keys: int = 8,
        mask_empty_memory: bool = True,
    ):
        self.heads = heads
        self.mask_empty_memory = mask_empty_memory
        self._model = lm.model
        self._evaluation = lm.evaluation
        self._n_alternatives = min(n_alternatives, lm.config.n_token)
        self._n_keys = min(n_keys, lm.evaluation.mem_len + lm.evaluation.tgt_len)
        self._reader = AttentionReader(
            lm,
            self._reduce,
            finish=self._finish,
            has_terms=False,
            mask_empty_memory=mask_empty_memory,
            jit="none",
        )

    @explain_full_memory(_ADVICE)
    def trace(
        self, ids: np.ndarray, *, report: Callable[[int], object] = lambda n_ids: None
    ) -> dict[str, np.ndarray]:
        """Returns the predictions for the tokens 1 to n - 1 of a text, (n,) int32 with n > 1.

        Row i predicts token i + 1, with the attention of token i, the last token read so far. The K
        rows of attention are the mean over all heads of all layers, followed by the chosen heads.
        `report` is called with the number of tokens after each segment.

        Returns:
            nats: (n - 1,) float32, -log p with the softmax temperature of the evaluation.
            ranks: (n - 1,) int32, the number of tokens that were more likely, plus 1.
            alternatives: (n - 1, A) int32, the most likely tokens, in descending order.
            log_probs: (n - 1, A) float32, their log-probabilities in nats.
            keys: (n - 1, K, k) int32, the positions in the text of the keys with the largest
                weights, in descending order; arbitrary where the weight is 0.
            weights: (n - 1, K, k) float32, the weights of these keys.
            in_memory: (n - 1, K) float32, the weight on all tokens before the segment of token i.
            empty: (n - 1, K) float32, the weight on the empty memory.
        """
        tgt_len, mem_len = self._evaluation.tgt_len, self._evaluation.mem_len
        lanes = EvaluationLanes(StoredTokens(ids), n_lanes=1, tgt_len=tgt_len)
        parts = []
        for index, (segment, found) in enumerate(self._reader.read(lanes)):
            count = int(segment.mask.sum())
            found["keys"] = np.maximum(found["keys"] + (index * tgt_len - mem_len), 0)
            parts.append({name: array[:count] for name, array in found.items()})
            report(count)
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _reduce(self, layer: int, attention: LayerAttention, _: Segment) -> Any:
        """Returns the strongest keys of the chosen heads, and the sum of all weights (T, S)."""
        is_seen = tf.logical_and(attention.mask, attention.is_token)[0]
        weights = tf.where(is_seen, attention.weights[0], 0.0)  # (N, T, S)
        chosen = np.array([head.head for head in self.heads if head.layer == layer], np.int32)
        return self._find_keys(tf.gather(weights, chosen)), tf.reduce_sum(weights, axis=0)

    def _find_keys(self, weights: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the attention in `trace` from weights (K, T, S); here, `keys` are columns."""
        weights = tf.transpose(weights, (1, 0, 2))  # (T, K, S)
        top = tf.math.top_k(weights, self._n_keys)
        return {
            "keys": top.indices,
            "weights": top.values,
            "in_memory": tf.reduce_sum(weights[..., : self._evaluation.mem_len], axis=-1),
            "empty": tf.maximum(1 - tf.reduce_sum(weights, axis=-1), 0.0),
        }

    def _finish(self, kept: list[Any], hidden: tf.Tensor, segment: Segment) -> dict[str, tf.Tensor]:
        config, temperature = self._model.config, self._evaluation.temperature
        mean = sum(weights for _, weights in kept) / (config.n_layer * config.n_head)
        parts = [self._find_keys(mean[None]), *(part for part, _ in kept)]
        log_probs = self._model.log_probs(hidden)[0]  # (T, V)
        if temperature != 1:
            log_probs = tf.nn.log_softmax(log_probs / temperature)
        own = tf.gather(log_probs, segment.targets[0], batch_dims=1)
        top = tf.math.top_k(log_probs, self._n_alternatives)
        return {
            "nats": -own,
            "ranks": 1 + tf.reduce_sum(tf.cast(log_probs > own[:, None], tf.int32), axis=1),
            "alternatives": top.indices,
            "log_probs": top.values,
            **{name: tf.concat([part[name] for part in parts], 1) for name in parts[0]},
        }
