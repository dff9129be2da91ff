"""Relative attention: scores depend on distances instead of absolute positions."""

import keras
from keras import ops

from txl_tf.layers.attention import split_heads
from txl_tf.layers.dropout import Dropout, as_seed_generator, read_seed
from txl_tf.layers.fused import fused_attention
from txl_tf.layers.fused.for_xla import matmul_rows
from txl_tf.layers.fused.fusion import get_engine
from txl_tf.layers.packed_kernel import add_kernel


@keras.saving.register_keras_serializable(package="txl_tf")
class RelativeAttention(keras.layers.Layer):
    """Multi-head attention over memory and segment with relative positions.

    Paper, section 3.3: with q from the segment, k and v from memory and segment, and with query i
    and key j counted from the start of the segment (j < 0 in the memory),

        score(i, j) = ((q_i + u) . k_j + (q_i + v) . W_{k,R} R_{i-j}) / sqrt(H)

    The product has four terms: (a) content, (b) content and position, (c) global content bias u,
    (d) global position bias v. The position terms are computed for all distances at once and
    moved into place by `shift_padded` (appendix B). No gradient flows into the memory. A memory of
    zeros that the mask does not hide is attended to: its keys are 0, but its position terms are
    not. `txl_tf.layers.attention` has the equation as code; the layer calls a function that
    computes the same faster.

    In the 2019 code: `rel_multihead_attn`, whose last dropout, residual and normalization
    `DecoderLayer` applies.

    Args:
        n_head: Number of heads N.
        d_head: Size of a head H.
        dropatt: Dropout rate of the attention weights.
        qkv_dropout: Dropout rate of queries, keys and values.
        is_locked: Whether that dropout has one mask for all positions of a row, memory included.
        projects_positions: Whether the layer has the kernel W_{k,R}. If not, `positions` holds the
            products of the distances themselves, for encodings other than the paper's; see
            `txl_tf.layers.encodings`.
        kernel_initializer: Initializer of the projections.
        seed: Dropout seed: an integer, `None` or a `keras.random.SeedGenerator` to share.

    Call arguments:
        hidden: (B, T, D), the segment.
        memory: (B, M, D), the states before the segment.
        positions: (S, D) from `make_position_table`, S = M + T; or (S, N, W) without W_{k,R}.
        content_bias: (N, H), u.
        position_bias: (N, W), v. W is H, unless the layer has no W_{k,R}.
        mask: (T, S) or (B, 1, T, S) bool, true where a query may see a key.
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
        training=False,
    ):
        # `CachedModel.read` and `TokenLoop.read` compute the same with cached keys and values.
        # 1) Queries, keys and values of the segment; keys and values of the memory.
        segment, old = self.project(hidden, memory, training=training)
        # 2) The product W_{k,R} R of each distance.
        distance_keys = self.project_positions(positions)
        # 3) What each query attends to, (B, T, N H).
        dropout = self.dropout.draw(training)
        attend = get_engine().attend or fused_attention.attend
        attended = attend(
            segment,
            old,
            distance_keys,
            content_bias,
            position_bias,
            mask,
            dropout.get("seed"),
            rate=dropout.get("rate", 0.0),
        )
        # 4) The output projection.
        return matmul_rows(attended, self.o_kernel)

    def project(self, hidden, memory, training=False):
        """Returns q, k, v of the segment, (B, T, 3 N H), and k, v of the memory, (B, M, 2 N H).

        They have dropout in training. No gradient flows into the memory.
        """
        d_heads = self.n_head * self.d_head
        # The memory is projected separately from the segment: its backward pass then computes
        # gradients of the kernel only, half the work of a single product over both. A caller may
        # pass a memory with gradients, hence `stop_gradient`.
        kernel = ops.cast(self.qkv_kernel, hidden.dtype)
        segment = matmul_rows(hidden, kernel)
        old = matmul_rows(ops.stop_gradient(memory), kernel[:, d_heads:])
        return self._drop_projections(segment, old, training=training)

    def _drop_projections(self, segment, old, training=False):
        """Returns the projections of segment (B, T, 3 N H) and memory (B, M, 2 N H) with dropout.

        One mask (B, S, 3 N H) covers both; its part for queries of the memory is unused.
        """
        if not training or not self.qkv_dropout.rate:
            return segment, old
        mem_len, d_heads = old.shape[1], self.n_head * self.d_head
        old = ops.pad(old, [(0, 0), (0, 0), (d_heads, 0)])
        dropped = self.qkv_dropout(ops.concatenate([old, segment], axis=1), training=True)
        return dropped[:, mem_len:], dropped[:, :mem_len, d_heads:]

    def project_positions(self, positions):
        """Returns the products of the distances, (S, N, W): W_{k,R} R."""
        if not self.projects_positions:
            return positions
        return split_heads(matmul_rows(positions, self.r_kernel), self.n_head)

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
