"""Adaptive softmax: the distribution over a large vocabulary, cheap for frequent tokens."""

import keras
from keras import ops

from txl_tf.config import ModelConfig
from txl_tf.layers.bin_loss import clip_chunk, compute_bin_nll, compute_nll, is_taken_at_once
from txl_tf.layers.fused.for_xla import matmul_rows_transposed
from txl_tf.layers.packed_kernel import PackedKernel


@keras.saving.register_keras_serializable(package="txl_tf")
class AdaptiveSoftmax(keras.layers.Layer):
    """Softmax over bins of decreasing frequency, with the tables of the embedding as weights.

    The head consists of the ids of bin 0 and one cluster for each further bin (Grave et al. 2017):

        log p(w) = log p(w | head)                            for w in bin 0
        log p(w) = log p(cluster i | head) + log p(w | bin i)   for w in bin i > 0

    The logits of bin i are `h P^T W^T + b`, with the table W of the embedding (tied weights). The
    config decides whether P is the projection of the embedding, belongs to this layer, or does not
    exist. Without cutoffs this is one softmax over the whole vocabulary. For losses, matrix
    products are computed in the dtype of `hidden`; everything else is computed in float32, under
    every dtype policy.

    In the 2019 code: `mask_adaptive_logsoftmax` for GPUs, `mul_adaptive_logsoftmax` for TPUs.

    Args:
        config: The `ModelConfig`.
        kernel_initializer: Initializer of this layer's projections; cluster weights and biases
            start at 0.

    Call arguments:
        hidden: (B, T, D).
        targets: (B, T) integers in [0, V). Not checked: other values give wrong losses.
        embedding: The `AdaptiveEmbedding` of the model.
        temperature: The divisor of the logits; must be 1 with cutoffs.

    Returns:
        (B, T) float32, -log p(target) in nats.

    >>> from txl_tf.config import ModelConfig
    >>> from txl_tf.layers import AdaptiveEmbedding
    >>> config = ModelConfig(n_token=11, d_model=6, d_embed=4, cutoffs=(3, 5), div_val=2)
    >>> embedding = AdaptiveEmbedding(config)
    >>> embedding.build()
    >>> ids = ops.zeros((2, 3), "int32")
    >>> AdaptiveSoftmax(config)(ops.zeros((2, 3, 6)), ids, embedding=embedding).shape == (2, 3)
    True

    References:
        Grave et al. 2017, Efficient softmax approximation for GPUs,
        https://arxiv.org/abs/1609.04309.
    """

    def __init__(self, config, *, kernel_initializer=None, **kwargs):
        super().__init__(**kwargs | {"dtype": "float32", "autocast": False})
        self.config = ModelConfig.from_json(config) if isinstance(config, dict) else config
        self.kernel_initializer = keras.initializers.get(kernel_initializer or "random_normal")

    def build(self, hidden_shape=None):
        config = self.config
        self.biases = [
            self.add_weight(name=f"bias_{index}", shape=(high - low,), initializer="zeros")
            for index, (low, high) in enumerate(config.bins)
        ]
        self.projections = [
            self.add_weight(
                name=f"projection_{index}",
                shape=(config.bin_width(index), config.d_model),
                initializer=self.kernel_initializer,
            )
            if config.has_softmax_projection(index)
            else None
            for index in range(len(config.bins))
        ]
        if config.cutoffs:
            n_cluster = len(config.cutoffs)
            self.cluster_weight = self.add_weight(
                name="cluster_weight", shape=(n_cluster, config.d_embed), initializer="zeros"
            )
            self.cluster_bias = self.add_weight(
                name="cluster_bias", shape=(n_cluster,), initializer="zeros"
            )
        for weight in self.weights:  # for `tf.train.Checkpoint`, which does not see lists
            setattr(self, weight.name, weight)

    def compute_output_shape(self, hidden_shape):
        return hidden_shape[:-1]

    def call(self, hidden, targets, embedding, temperature=1.0):
        shape = ops.shape(targets)
        hidden = ops.reshape(hidden, (-1, hidden.shape[-1]))  # (n, D), n = B T
        targets = ops.cast(ops.reshape(targets, (-1,)), "int32")
        bins = ops.zeros_like(targets)  # the bin index of each target
        for cutoff in self.config.cutoffs:
            bins += ops.cast(targets >= cutoff, "int32")
        head_size = self.config.bins[0][1]
        head_targets = ops.where(bins == 0, targets, head_size + bins - 1)
        head, *tails = self._read_bins(embedding, hidden.dtype)
        if temperature != 1:
            self.config.check_temperature(temperature)
            table, bias, projection = head
            hidden, head = hidden / temperature, (table, bias / temperature, projection)
        nll = self._compute_head_nll(hidden, head_targets, head)
        order = ops.cast(ops.argsort(bins), "int32")
        for index, (low, weights) in enumerate(zip(self.config.cutoffs, tails, strict=True), 1):
            nll += compute_bin_nll(
                hidden,
                *weights,
                targets=targets - low,
                order=order,
                start=ops.sum(ops.cast(bins < index, "int32")),
                count=ops.sum(ops.cast(bins == index, "int32")),
            )
        return ops.reshape(nll, shape)

    def log_probs(self, hidden, embedding, multiply=PackedKernel.multiply):
        """Returns log p of every token of the vocabulary, in nats.

        Args:
            hidden: (B, T, D).
            embedding: The `AdaptiveEmbedding` of the model.
            multiply: How products with packed tables are computed; see `matmul_rows`.

        Returns:
            (B, T, V) float32.
        """
        hidden = ops.cast(hidden, "float32")
        head_size = self.config.bins[0][1]
        head, *tails = self._compute_all_logits(hidden, embedding, multiply)
        head = ops.log_softmax(head)
        parts = [head[..., :head_size]]
        for index, logits in enumerate(tails):
            parts.append(head[..., head_size + index, None] + ops.log_softmax(logits))
        return ops.concatenate(parts, axis=-1)

    def head_log_probs(self, hidden, weights, multiply=PackedKernel.multiply):
        """Returns the log-probabilities of the tokens of bin 0 and of the clusters, in nats.

        Args:
            hidden: (..., D).
            weights: The weights of bin 0, from `get_bin_weights`.
            multiply: How products with packed tables are computed; see `matmul_rows`.

        Returns:
            (..., n_0 + C) float32.
        """
        hidden = ops.cast(hidden, "float32")
        tokens = _compute_logits(hidden, *weights, multiply)
        return ops.log_softmax(self._append_clusters(tokens, hidden, weights[2]))

    def bin_log_probs(self, hidden, weights, multiply=PackedKernel.multiply):
        """Returns log p(w | bin) of every token of a bin other than bin 0, in nats.

        Args:
            hidden: (..., D).
            weights: The weights of the bin, from `get_bin_weights`.
            multiply: How products with packed tables are computed; see `matmul_rows`.

        Returns:
            (..., n_i) float32.
        """
        return ops.log_softmax(_compute_logits(ops.cast(hidden, "float32"), *weights, multiply))

    def _compute_all_logits(self, hidden, embedding, multiply):
        """Returns the logits of the head and of each further bin, (..., n_i)."""
        config = self.config
        if config.div_val > 1 or not config.cutoffs or config.d_embed != config.d_model:
            bins = self.get_bin_weights(embedding)
            head, *tails = (_compute_logits(hidden, *weights, multiply) for weights in bins)
            return [self._append_clusters(head, hidden, bins[0][2]), *tails]
        # One product with the table of all tokens: slices of it would be copied.
        logits = matmul_rows_transposed(hidden, embedding.tables[0], multiply)
        logits += ops.concatenate([ops.convert_to_tensor(bias) for bias in self.biases], axis=0)
        head, *tails = ops.split(logits, list(config.cutoffs), axis=-1)
        return [self._append_clusters(head, hidden, None), *tails]

    def _append_clusters(self, tokens, hidden, projection):
        """Returns the logits of the head, given those of the tokens of bin 0."""
        if not self.config.cutoffs:
            return tokens
        weights = (self.cluster_weight, self.cluster_bias, projection)
        return ops.concatenate([tokens, _compute_logits(hidden, *weights)], axis=-1)

    def get_bin_weights(self, embedding):
        """Returns each bin's table (n_i, E_i), bias (n_i,) and projection (E_i, D) or `None`."""
        weights = []
        for index, (table, projection) in enumerate(embedding.get_bins()):
            bias = self.biases[index]
            is_tied = self.config.proj_share_all_but_first and index > 0
            if self.config.cutoffs and not is_tied:
                projection = self.projections[index]
            weights.append((table, bias, projection))
        return weights

    def _read_bins(self, embedding, dtype):
        """Returns `get_bin_weights` as tensors; the head has the rows of bin 0 and the clusters.

        Packed tables are restored in `dtype`; the other weights keep theirs.
        """

        def read(weight):
            if isinstance(weight, PackedKernel):
                return weight.restore(dtype)
            return None if weight is None else ops.convert_to_tensor(weight)

        head, *tails = (tuple(map(read, weights)) for weights in self.get_bin_weights(embedding))
        if self.config.cutoffs:
            table, bias, projection = head
            clusters = ops.cast(self.cluster_weight, table.dtype)
            table = ops.concatenate([table, clusters], axis=0)
            head = table, ops.concatenate([bias, self.cluster_bias], axis=0), projection
        return [head, *tails]

    def _compute_head_nll(self, hidden, targets, weights):
        """Returns -log p(target | head), (n,), in chunks if the logits need too much memory."""
        table, bias, projection = weights
        if is_taken_at_once(hidden.shape[0], table.shape[0]):
            return compute_nll(_compute_logits(hidden, table, bias, projection), targets)
        n_tokens = ops.shape(hidden)[0]
        is_unknown = hidden.shape[0] is None  # as in a SavedModel
        return compute_bin_nll(
            hidden,
            table,
            bias,
            projection,
            targets=targets,
            order=ops.arange(n_tokens, dtype="int32"),
            start=ops.zeros((), "int32"),
            count=ops.full((), n_tokens, "int32"),
            chunk=clip_chunk(n_tokens, table.shape[0]) if is_unknown else None,
        )

    def get_config(self):
        return super().get_config() | {
            "config": self.config.to_json(),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


def _compute_logits(hidden, table, bias, projection, multiply=PackedKernel.multiply):
    if projection is not None:
        hidden = matmul_rows_transposed(hidden, projection)
    return ops.cast(matmul_rows_transposed(hidden, table, multiply), "float32") + bias
