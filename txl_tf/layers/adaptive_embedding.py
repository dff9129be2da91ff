"""Adaptive input representations: wide embeddings for frequent tokens, narrow for rare ones."""

import keras
from keras import ops

from txl_tf.config import ModelConfig
from txl_tf.layers.packed_kernel import PackedKernel, add_kernel, take_rows


@keras.saving.register_keras_serializable(package="txl_tf")
class AdaptiveEmbedding(keras.layers.Layer):
    """Embeds ids by bins of decreasing frequency, with a different embedding size for each bin.

    Bin i holds the ids from one cutoff to the next, with embeddings of size E_i = E // div_val^i
    that a projection (E_i, D) maps to the size of the model (Baevski and Auli 2019, section 3).
    With `div_val` = 1 there is one table for all bins, and a projection only if E != D. The result
    is multiplied by sqrt(D).

    In the 2019 code: `mask_adaptive_embedding_lookup` for GPUs, `mul_adaptive_embedding_lookup` for
    TPUs.

    Args:
        config: The `ModelConfig`.
        kernel_initializer: Initializer of the tables.
        proj_initializer: Initializer of the projections.

    Call arguments:
        ids: (B, T) int32 in [0, V).

    Returns:
        (B, T, D) in the layer's compute dtype.

    >>> from txl_tf.config import ModelConfig
    >>> config = ModelConfig(n_token=11, d_model=6, d_embed=4, cutoffs=(3, 5), div_val=2)
    >>> embedding = AdaptiveEmbedding(config)
    >>> embedding(ops.zeros((2, 3), dtype="int32")).shape == (2, 3, 6)
    True
    >>> [tuple(table.shape) for table in embedding.tables]
    [(3, 4), (2, 2), (6, 1)]

    References:
        Baevski and Auli 2019, Adaptive input representations, https://arxiv.org/abs/1809.10853.
    """

    def __init__(self, config, *, kernel_initializer=None, proj_initializer=None, **kwargs):
        super().__init__(**kwargs)
        self.config = ModelConfig.from_json(config) if isinstance(config, dict) else config
        self.kernel_initializer = keras.initializers.get(kernel_initializer or "random_normal")
        self.proj_initializer = keras.initializers.get(proj_initializer or "random_normal")

    def build(self, ids_shape=None):
        config = self.config
        bins = config.bins if config.div_val > 1 else ((0, config.n_token),)
        self.tables = [
            add_kernel(
                self,
                f"table_{index}",
                (high - low, config.bin_width(index)),
                self.kernel_initializer,
                is_table=True,
            )
            for index, (low, high) in enumerate(bins)
        ]
        self.projections = [
            self.add_weight(
                name=f"projection_{index}",
                shape=(config.bin_width(index), config.d_model),
                initializer=self.proj_initializer,
            )
            if config.has_embedding_projection(index)
            else None
            for index in range(len(bins))
        ]
        for weight in self.weights:  # for `tf.train.Checkpoint`, which does not see lists
            setattr(self, weight.name, weight)

    def compute_output_shape(self, ids_shape):
        return (*ids_shape, self.config.d_model)

    def call(self, ids):
        ids = ops.cast(ids, "int32")  # TensorFlow gathers no rows by uint8 or uint16
        low, embedded = 0, None
        for table, projection in zip(self.tables, self.projections, strict=True):
            local = ids - low
            inside = ops.logical_and(local >= 0, local < table.shape[0])
            if len(self.tables) > 1:  # every bin embeds all tokens, so that shapes stay fixed
                local = ops.clip(local, 0, table.shape[0] - 1)
            vectors = take_rows(table, local, self.compute_dtype)
            if projection is not None:
                vectors = ops.matmul(vectors, projection)
            embedded = (
                vectors if embedded is None else ops.where(inside[..., None], vectors, embedded)
            )
            low += table.shape[0]
        return embedded * self.config.d_model**0.5

    def get_bins(self):
        """Returns the table (n_i, E_i) and the projection (E_i, D) or `None` of each bin i."""
        if self.config.div_val > 1 or not self.config.cutoffs:
            return list(zip(self.tables, self.projections, strict=True))
        table = self.tables[0]
        if isinstance(table, PackedKernel):
            tables = [table[low:high] for low, high in self.config.bins]
        else:  # not slices: the gradient of each would have the size of the whole table
            tables = ops.split(ops.convert_to_tensor(table), list(self.config.cutoffs))
        return [(table, self.projections[0]) for table in tables]

    def get_config(self):
        return super().get_config() | {
            "config": self.config.to_json(),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "proj_initializer": keras.initializers.serialize(self.proj_initializer),
        }
