"""The model as one function of arrays, for formats that run without Python.

    ids, keys, values, length -> log_probabilities, new_keys, new_values, new_length

It keeps nothing from call to call, and all its shapes are fixed. It computes what
`CachedModel.read` computes, of few operations: each format defines them once, and the step says how
they are combined. While the segment length is fixed, so are the distances: their products with the
kernels, and with the bias v, are constants.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from txl_tf.cached_model import CachedModel
from txl_tf.exports.step_operations import Operations, Tensor
from txl_tf.exports.step_weights import Bin, Distances, Layer, read_mask, read_weights
from txl_tf.layers.relative_attention import MASKED_SCORE


class StepInputs(NamedTuple):
    """The inputs of a step.

    Args:
        ids: (B, T) int32 in [0, V).
        keys: (L, B, N, M, H) float32, what the last call returned; zeros before the first.
        values: Likewise.
        length: (B,) int32, how many of the M entries hold a token: the last ones.
    """

    ids: Any
    keys: Any
    values: Any
    length: Any


class StepOutputs(NamedTuple):
    """The outputs of a step.

    Args:
        log_probabilities: (B, T, V) float32, in nats, of the token that follows each of `ids`.
        new_keys: The keys for the next call.
        new_values: The values for the next call.
        new_length: The length for the next call.
    """

    log_probabilities: Any
    new_keys: Any
    new_values: Any
    new_length: Any


class StatelessStep:
    """The step of a model.

    Args:
        cached: The model; its `tgt_len` is the number of tokens T of a call.
        batch_size: The number of rows B.

    Attributes:
        cached: The model.
        weights: Its weights.
        inputs: The shapes of the inputs.
        outputs: The shapes of the outputs.
    """

    def __init__(self, cached: CachedModel, batch_size: int):
        config, n_rows, tgt_len = cached.model.config, batch_size, cached.tgt_len
        memory = (config.n_layer, n_rows, config.n_head, cached.span.mem_len, config.d_head)
        self.cached = cached
        self.weights = read_weights(cached)
        self._is_visible = read_mask(cached)
        self.inputs = StepInputs((n_rows, tgt_len), memory, memory, (n_rows,))
        self.outputs = StepOutputs((n_rows, tgt_len, config.n_token), memory, memory, (n_rows,))

    def build(self, do: Operations, inputs: StepInputs) -> StepOutputs:
        """Returns the outputs as tensors of a format, given its inputs as such.

        Args:
            do: The operations of the format.
            inputs: Tensors of the shapes of the attribute `inputs`.
        """
        penalty = self._make_penalty(do, inputs.length)
        hidden = self._embed(do, inputs.ids)
        _, *of_layer = self.inputs.keys
        new_keys, new_values = [], []
        for index, layer in enumerate(self.weights.layers):
            old_keys, old_values = (
                do.reshape(do.slice(states, 0, index, index + 1), of_layer)
                for states in (inputs.keys, inputs.values)
            )
            attended, keys, values = self._attend(do, layer, hidden, old_keys, old_values, penalty)
            hidden = _finish_layer(do, layer, hidden, attended)
            new_keys.append(do.reshape(keys, (1, *of_layer)))
            new_values.append(do.reshape(values, (1, *of_layer)))
        length = do.add(inputs.length, do.constant(np.int32(self.cached.tgt_len)))
        return StepOutputs(
            do.reshape(self._predict(do, hidden), self.outputs.log_probabilities),
            do.concat(new_keys, axis=0),
            do.concat(new_values, axis=0),
            do.minimum(length, do.constant(np.int32(self.cached.span.mem_len))),
        )

    def _make_penalty(self, do: Operations, length: Tensor) -> Tensor | None:
        """Returns what is added to the scores, (T, S) or (B, 1, 1 or T, S); `None` for nothing."""
        penalty = None
        if not self._is_visible.all():
            penalty = np.where(self._is_visible, 0, MASKED_SCORE).astype(np.float32)
            penalty = do.constant(penalty)
        if not self.cached.mask_empty_memory:
            return penalty
        # Entry j is empty if j < M - length: then the sum is at most -1, and else at least 0.
        first, end = -self.cached.span.mem_len, self.cached.tgt_len
        entries = do.constant(np.arange(first, end, dtype=np.float32))
        filled = do.reshape(do.to_float(length), (*self.inputs.length, 1, 1, 1))
        order = do.minimum(do.add(filled, entries), do.constant(np.float32(0)))
        is_empty = do.maximum(order, do.constant(np.float32(-1)))  # -1 or 0
        empty = do.multiply(is_empty, do.constant(np.float32(-MASKED_SCORE)))
        return empty if penalty is None else do.add(empty, penalty)

    def _embed(self, do: Operations, ids: Tensor) -> Tensor:
        """Returns the embeddings of ids, (B T, D)."""
        bins = self.weights.bins
        n_tokens = math.prod(self.inputs.ids)
        ids = do.reshape(ids, (n_tokens,))
        embedded = None
        for low, high, table, projection, *_ in bins:
            local = inside = do.add(ids, do.constant(np.int32(-low))) if low else ids
            if len(bins) > 1:  # every bin embeds all tokens, so that shapes stay fixed
                inside = do.minimum(local, do.constant(np.int32(high - low - 1)))
                inside = do.maximum(inside, do.constant(np.int32(0)))
            vectors = do.take_rows(table, inside)
            if projection is not None:
                vectors = do.multiply_rows(vectors, projection)
            if len(bins) > 1:
                is_inside = do.reshape(do.equal(local, inside), (n_tokens, 1))
                vectors = do.multiply(vectors, is_inside)
            embedded = vectors if embedded is None else do.add(embedded, vectors)
        factor = np.float32(self.cached.model.config.d_model**0.5)
        return do.multiply(embedded, do.constant(factor))

    def _attend(
        self,
        do: Operations,
        layer: Layer,
        hidden: Tensor,
        old_keys: Tensor,
        old_values: Tensor,
        penalty: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what a layer attends to, (B T, N H), and its new memory, (B, N, M, H) each."""
        n_rows, n_head, mem_len, d_head = self.inputs.keys[1:]
        tgt_len = self.cached.tgt_len
        segment = do.multiply_rows(hidden, layer.qkv)
        segment = do.reshape(segment, (n_rows, tgt_len, 3 * n_head, d_head))
        segment = do.transpose(segment, (0, 2, 1, 3))
        query, key, value = (
            do.slice(segment, 1, part * n_head, (part + 1) * n_head) for part in range(3)
        )
        keys, values = do.concat([old_keys, key], axis=2), do.concat([old_values, value], axis=2)
        content_query = do.add(query, do.constant(layer.content_bias))
        scores = do.matmul(content_query, keys, transpose_right=True)  # (B, N, T, S)
        scores = do.add(scores, self._score_distances(do, layer.distances, query))
        if penalty is not None:
            scores = do.add(scores, penalty)
        attended = do.transpose(do.matmul(do.softmax(scores), values), (0, 2, 1, 3))
        attended = do.reshape(attended, (n_rows * tgt_len, n_head * d_head))
        end = mem_len + tgt_len
        return attended, do.slice(keys, 2, tgt_len, end), do.slice(values, 2, tgt_len, end)

    def _score_distances(self, do: Operations, distances: Distances, query: Tensor) -> Tensor:
        """Returns the position scores (B, N, T, S) of queries (B, N, T, H)."""
        scores = do.multiply_rows(query, distances.matrix)
        if distances.columns is not None:
            scores = do.take_columns(scores, distances.columns)
        scores = do.add(scores, do.constant(distances.bias_scores))
        tgt_len = self.cached.tgt_len
        if tgt_len == 1:
            return scores
        n_rows, n_head, mem_len, _ = self.inputs.keys[1:]
        n_keys = mem_len + tgt_len
        flat = do.reshape(scores, (n_rows, n_head, tgt_len * (1 + n_keys)))  # the left shift
        shifted = do.slice(flat, 2, tgt_len, tgt_len * (1 + n_keys))
        return do.reshape(shifted, (n_rows, n_head, tgt_len, n_keys))

    def _predict(self, do: Operations, hidden: Tensor) -> Tensor:
        """Returns the log-probabilities of the next tokens, (B T, V)."""
        head_bin, *tails = self.weights.bins
        head = self._compute_logits(do, hidden, head_bin)
        if self.cached.temperature != 1:
            head = do.multiply(head, do.constant(np.float32(1 / self.cached.temperature)))
        head = do.log_softmax(head)
        if not tails:
            return head
        parts = [do.slice(head, 1, 0, head_bin.high)]
        for index, tail in enumerate(tails, head_bin.high):
            of_bin = do.slice(head, 1, index, index + 1)
            inside = do.log_softmax(self._compute_logits(do, hidden, tail))
            parts.append(do.add(inside, of_bin))
        return do.concat(parts, axis=1)

    def _compute_logits(self, do: Operations, hidden: Tensor, part: Bin) -> Tensor:
        """Returns the logits of the tokens of a bin; in the first also those of the clusters."""
        clusters, cluster_bias = self.weights.clusters, self.weights.cluster_bias
        if part.softmax_projection is not None:
            hidden = do.multiply_rows(hidden, part.softmax_projection)
        logits = do.add(do.multiply_rows(hidden, part.table), do.constant(part.bias))
        if part.low or clusters is None or cluster_bias is None:
            return logits
        more = do.add(do.multiply_rows(hidden, clusters), do.constant(cluster_bias))
        return do.concat([logits, more], axis=1)


def _finish_layer(do: Operations, layer: Layer, hidden: Tensor, attended: Tensor) -> Tensor:
    """Returns the output of a layer, (B T, D), given what it attended to, (B T, N H)."""
    change = do.multiply_rows(attended, layer.output)
    hidden = do.normalize(do.add(hidden, change), layer.attention_norm)
    inner = do.add(do.multiply_rows(hidden, layer.inner), do.constant(layer.inner_bias))
    inner = do.maximum(inner, do.constant(np.float32(0)))
    change = do.add(do.multiply_rows(inner, layer.outer), do.constant(layer.outer_bias))
    return do.normalize(do.add(hidden, change), layer.feed_forward_norm)
