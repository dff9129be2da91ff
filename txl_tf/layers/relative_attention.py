"""Relative attention: scores depend on distances instead of absolute positions."""

import keras
from keras import ops

from txl_tf.layers.dropout import Dropout, as_seed_generator, read_seed
from txl_tf.layers.encodings import fit_width
from txl_tf.layers.fused.matrix_products import matmul_rows
from txl_tf.layers.packed_kernel import add_kernel

MASKED_SCORE = -1e30  # in float32, where softmax makes it an exact 0


@keras.saving.register_keras_serializable(package="txl_tf")
class RelativeAttention(keras.layers.Layer):
    """Multi-head attention over memory and segment with relative positions.

    Paper, section 3.3: with q from the segment, k and v from memory and segment,

        score(i, j) = ((q_i + u) . k_j + (q_i + v) . W_r R_{i-j}) / sqrt(H)

    The product has four terms: (a) content, (b) content and position, (c) global content bias u,
    (d) global position bias v. The position terms are computed for all distances at once and
    moved into place by `left_shift` (appendix B). No gradient flows into the memory. A memory of
    zeros is attended to: its keys are 0, but its position terms are not. A key that belongs to
    another document than the query is treated the same way: its content terms and its value are 0.

    In the 2019 code: `rel_multihead_attn`, whose last dropout, residual and normalization
    `DecoderLayer` applies.

    Args:
        n_head: Number of heads N.
        d_head: Size of a head H.
        dropatt: Dropout rate of the attention weights.
        qkv_dropout: Dropout rate of queries, keys and values.
        is_locked: Whether that dropout has one mask for all positions of a row, memory included.
        projects_positions: Whether the layer has the kernel W_r. If not, `positions` are the
            products of the distances themselves, for other encodings than the paper's; see
            `txl_tf.layers.encodings`.
        kernel_initializer: Initializer of the projections.
        seed: Dropout seed: an integer, `None` or a `keras.random.SeedGenerator` to share.

    Call arguments:
        hidden: (B, T, D), the segment.
        memory: (B, M, D), the states before the segment.
        positions: (S, D) from `make_position_table`, S = M + T; or (S, N, W) without W_r.
        content_bias: (N, H), u.
        position_bias: (N, W), v. W is H, unless the layer has no W_r.
        mask: (T, S) or (B, 1, T, S) bool, true where a query may see a key.
        same_document: (B, T, S) bool from `compare_documents`, true where a key and the query
            belong to the same document. `None` means everywhere.
        training: Whether to apply dropout.

    Returns:
        (B, T, D) in the dtype of `hidden`.

    >>> from txl_tf.layers import make_attention_mask, make_position_table
    >>> attention = RelativeAttention(n_head=2, d_head=5)
    >>> zeros = ops.zeros
    >>> attention(zeros((3, 4, 6)), zeros((3, 7, 6)), make_position_table(11, 6), zeros((2, 5)),
    ...           zeros((2, 5)), make_attention_mask(4, 7)).shape == (3, 4, 6)
    True

    References:
        Dai et al. 2019, https://arxiv.org/abs/1901.02860, section 3.3 and appendix B.
    """

    def __init__(
        self,
        *,
        n_head,
        d_head,
        dropatt=0.0,
        qkv_dropout=0.0,
        is_locked=False,
        projects_positions=True,
        kernel_initializer=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.n_head = n_head
        self.d_head = d_head
        self.projects_positions = projects_positions
        self.seed = read_seed(seed)
        self.kernel_initializer = keras.initializers.get(kernel_initializer or "glorot_uniform")
        shared = {"seed": as_seed_generator(seed), "dtype": self.dtype_policy}
        self.dropout = Dropout(dropatt, **shared)
        self.qkv_dropout = Dropout(qkv_dropout, is_locked=is_locked, **shared)

    def build(self, hidden_shape, *_):
        d_model, d_heads = hidden_shape[-1], self.n_head * self.d_head

        def add(name, *shape):
            return add_kernel(self, name, shape, self.kernel_initializer)

        self.qkv_kernel = add("qkv_kernel", d_model, 3 * d_heads)
        self.qkv_kernel.n_joint = 3  # matrices side by side, for the optimizer
        self.r_kernel = add("r_kernel", d_model, d_heads) if self.projects_positions else None
        self.o_kernel = add("o_kernel", d_heads, d_model)

    @property
    def kernels(self):
        """The kernels of the layer."""
        kernels = (self.qkv_kernel, self.r_kernel, self.o_kernel)
        return [kernel for kernel in kernels if kernel is not None]

    def call(
        self,
        hidden,
        memory,
        positions,
        content_bias,
        position_bias,
        mask,
        same_document=None,
        training=False,
    ):
        query, keys, values = self.project(hidden, memory, training=training)
        content = self.score_content(query, keys, content_bias, same_document)
        position = self.score_position(query, self.project_positions(positions), position_bias)
        weights = self.compute_attention_weights(content, position, mask)
        return self.attend(self.dropout(weights, training=training), values, same_document)

    def project(self, hidden, memory, training=False):
        """Returns q (B, T, N, H) and k, v (B, S, N, H)."""
        d_heads = self.n_head * self.d_head
        segment = matmul_rows(hidden, self.qkv_kernel)
        # The memory is projected separately from the segment: its backward pass then computes
        # gradients of the kernel only, half the work of a single product over both.
        kernel = ops.cast(self.qkv_kernel, self.compute_dtype)
        old = ops.matmul(ops.stop_gradient(memory), kernel[:, d_heads:])
        segment, old = self.drop_projections(segment, old, training=training)
        query, keys, values = ops.split(segment, 3, axis=-1)
        old_keys, old_values = ops.split(old, 2, axis=-1)
        keys = ops.concatenate([old_keys, keys], axis=1)
        values = ops.concatenate([old_values, values], axis=1)
        return self._split_heads(query), self._split_heads(keys), self._split_heads(values)

    def drop_projections(self, segment, old, training=False):
        """Returns the projections of segment (B, T, 3 N H) and memory (B, M, 2 N H) with dropout.

        One mask (B, S, 3 N H) covers both; its part for the queries of the memory is not used.
        """
        if not training or not self.qkv_dropout.rate:
            return segment, old
        mem_len, d_heads = old.shape[1], self.n_head * self.d_head
        old = ops.pad(old, [(0, 0), (0, 0), (d_heads, 0)])
        dropped = self.qkv_dropout(ops.concatenate([old, segment], axis=1), training=True)
        return dropped[:, mem_len:], dropped[:, :mem_len, d_heads:]

    def score_content(self, query, keys, content_bias, same_document=None):
        """Returns the terms (a) + (c) of the scores, (B, N, T, S)."""
        content = ops.einsum("btnh,bsnh->bnts", self.add_bias(query, content_bias), keys)
        if same_document is not None:
            content = ops.where(same_document[:, None], content, 0)
        return content

    def project_positions(self, positions):
        """Returns the products of the distances, (S, N, W): W_r R."""
        if not self.projects_positions:
            return positions
        return self._split_heads(matmul_rows(positions, self.r_kernel))

    def score_position(self, query, distance_keys, position_bias):
        """Returns the terms (b) + (d) of the scores, (B, N, T, S), undefined after the query."""
        query = self.add_bias(query, position_bias)
        return left_shift(ops.einsum("btnh,snh->bnts", query, distance_keys))

    def add_bias(self, query, bias):
        """Returns (query + bias) / sqrt(H), (B, T, N, W); the bias is u or v, (N, W)."""
        return (fit_width(query, bias.shape[-1]) + bias) * self.d_head**-0.5

    def compute_attention_weights(self, content, position, mask):
        """Returns the softmax of the visible scores over the keys, (B, N, T, S) float32."""
        scores = ops.where(mask, ops.cast(content + position, "float32"), MASKED_SCORE)
        return ops.softmax(scores, axis=-1)

    def attend(self, weights, values, same_document=None):
        """Returns the sum of the weighted values after the output projection, (B, T, D)."""
        weights = ops.cast(weights, values.dtype)
        if same_document is not None:
            weights = ops.where(same_document[:, None], weights, 0)
        attended = ops.einsum("bnts,bsnh->btnh", weights, values)
        attended = ops.reshape(attended, (*ops.shape(attended)[:2], self.n_head * self.d_head))
        return matmul_rows(attended, self.o_kernel)

    def _split_heads(self, tensor):
        return ops.reshape(tensor, (*ops.shape(tensor)[:-1], self.n_head, self.d_head))

    def get_config(self):
        return super().get_config() | {
            "n_head": self.n_head,
            "d_head": self.d_head,
            "dropatt": self.dropout.rate,
            "qkv_dropout": self.qkv_dropout.rate,
            "is_locked": self.qkv_dropout.is_locked,
            "projects_positions": self.projects_positions,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "seed": self.seed,
        }


def left_shift(scores):
    """Moves the score of each distance to the key at that distance (paper, appendix B).

    Row i of the input holds the scores of query i for the distances S-1, ..., 0. Row i of the
    output holds them for the keys 0, ..., S-1: it is the input row shifted left by T-1-i. The
    entries that become free belong to keys after the query: they are undefined and must be masked.

    In the 2019 code: `rel_shift`.

    Args:
        scores: (..., T, S) of any dtype.

    Returns:
        (..., T, S) of the same dtype.

    >>> ops.convert_to_numpy(left_shift(ops.convert_to_tensor([[3, 2, 1], [6, 5, 4]]))).tolist()
    [[2, 1, 0], [6, 5, 4]]
    """
    return shift_padded(ops.pad(scores, [(0, 0)] * (len(scores.shape) - 1) + [(1, 0)]))


def shift_padded(padded):
    """Returns `left_shift` of scores that already have an arbitrary first column.

    Args:
        padded: (..., T, 1 + S) of any dtype.

    Returns:
        (..., T, S) of the same dtype.
    """
    *batch, tgt_len, n_columns = ops.shape(padded)
    scores = ops.reshape(padded, (*batch, tgt_len * n_columns))[..., tgt_len:]
    return ops.reshape(scores, (*batch, tgt_len, n_columns - 1))
