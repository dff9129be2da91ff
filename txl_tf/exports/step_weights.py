"""The weights of a stateless step, as NumPy arrays."""

from typing import Any, NamedTuple

import numpy as np
from keras import ops

from txl_tf.cached_model import CachedModel
from txl_tf.exports.step_operations import Matrix, Norm
from txl_tf.layers import make_attention_mask


class Bin(NamedTuple):
    """A bin of the adaptive embedding and softmax, which share its table.

    Args:
        low: Its first id.
        high: The id after its last.
        table: (n, E).
        embedding_projection: (D, E), or `None`.
        softmax_projection: (E, D), or `None`.
        bias: (n,), of the logits.
    """

    low: int
    high: int
    table: Matrix
    embedding_projection: Matrix | None
    softmax_projection: Matrix | None
    bias: np.ndarray


class Distances(NamedTuple):
    """The position scores of a layer as constants.

    Args:
        matrix: (N, P, H), the products W_{k,R} R of distinct distances, the largest first.
        bias_scores: (N, 1, C), the term (d) of the paper's section 3.3, for each column.
        columns: (C,) int32, the row of the matrix of each column; `None` if they are the same.
    """

    matrix: Matrix
    bias_scores: np.ndarray
    columns: np.ndarray | None


class Layer(NamedTuple):
    """A decoder layer. The scores' factor 1 / sqrt(H) is part of the weights.

    Args:
        qkv: (3 N H, D).
        content_bias: (N, 1, H), u.
        distances: The position scores.
        output: (D, N H).
        attention_norm: After the attention.
        inner: (D', D), with the width D' of the feed-forward layer.
        inner_bias: (D',).
        outer: (D, D').
        outer_bias: (D,).
        feed_forward_norm: After the feed-forward network.
    """

    qkv: Matrix
    content_bias: np.ndarray
    distances: Distances
    output: Matrix
    attention_norm: Norm
    inner: Matrix
    inner_bias: np.ndarray
    outer: Matrix
    outer_bias: np.ndarray
    feed_forward_norm: Norm


class StepWeights(NamedTuple):
    """All weights of a step.

    Args:
        bins: The bins; one without cutoffs.
        clusters: (C, E), the rows of the clusters in the head; `None` without cutoffs.
        cluster_bias: (C,), or `None`.
        layers: The layers.
    """

    bins: tuple[Bin, ...]
    clusters: Matrix | None
    cluster_bias: np.ndarray | None
    layers: tuple[Layer, ...]


def read_weights(cached: CachedModel) -> StepWeights:
    """Returns the weights of a model, whose kernels must be float32."""
    model = cached.model
    has_cutoffs = bool(model.config.cutoffs)
    return StepWeights(
        _read_bins(cached),
        _make_matrix("clusters", model.softmax.cluster_weight) if has_cutoffs else None,
        _read(model.softmax.cluster_bias) if has_cutoffs else None,
        tuple(_read_layer(cached, index) for index in range(model.config.n_layer)),
    )


def count_entries(weights: StepWeights) -> int:
    """Returns the number of entries of all matrices: nearly all that a file stores."""
    per_bin = (weights.clusters, *(field for part in weights.bins for field in part))
    per_layer = (field for layer in weights.layers for field in (*layer, layer.distances.matrix))
    matrices = {m.name: m.rows.size for m in (*per_bin, *per_layer) if isinstance(m, Matrix)}
    return sum(matrices.values())


def read_mask(cached: CachedModel) -> np.ndarray:
    """Returns the mask of a segment after a full memory, (T, S) bool."""
    span = cached.span
    mask = make_attention_mask(
        cached.tgt_len,
        span.mem_len,
        same_length=span.same_length,
        counts_self=span.counts_self,
    )
    return ops.convert_to_numpy(mask)


def _read_bins(cached: CachedModel) -> tuple[Bin, ...]:
    model = cached.model
    of_embedding = model.embedding.get_bins()
    of_softmax = model.softmax.get_bin_weights(model.embedding)
    bins = []
    for index, (low, high) in enumerate(model.config.bins):
        (table, into), (_, bias, out) = of_embedding[index], of_softmax[index]
        into = None if into is None else ops.transpose(into)
        bins.append(
            Bin(
                low,
                high,
                _make_matrix(f"bin_{index}/table", table),
                None if into is None else _make_matrix(f"bin_{index}/embedding_projection", into),
                None if out is None else _make_matrix(f"bin_{index}/softmax_projection", out),
                _read(bias),
            )
        )
    return tuple(bins)


def _read_layer(cached: CachedModel, index: int) -> Layer:
    layer, scale = cached.model.decoder_layers[index], cached.model.config.d_head**-0.5
    network, name = layer.feed_forward, f"layer_{index}"
    queries, others = np.split(
        _read(layer.attention.qkv_kernel).T, [layer.attention.o_kernel.shape[0]]
    )
    content_bias, _ = cached.model.get_biases(index)
    return Layer(
        Matrix(f"{name}/qkv", np.concatenate([queries * np.float32(scale), others])),
        _read(content_bias)[:, None] * np.float32(scale),
        read_distances(cached, index),
        _make_matrix(f"{name}/output", ops.transpose(layer.attention.o_kernel)),
        _read_norm(layer.attention_norm),
        _make_matrix(f"{name}/inner", ops.transpose(network.inner.kernel)),
        _read(network.inner.bias),
        _make_matrix(f"{name}/outer", ops.transpose(network.outer.kernel)),
        _read(network.outer.bias),
        _read_norm(layer.feed_forward_norm),
    )


def read_distances(cached: CachedModel, index: int) -> Distances:
    """Returns the position scores of a layer.

    The columns are the distances S - 1, ..., 0; for T > 1, the padding that the left shift needs
    comes first. Distances that `clamp_len` or the table of the encoding makes equal are stored
    once. The product with a query is cut off at H: what the position encoding appends to the
    query is zeros.
    """
    d_head, padding = cached.model.config.d_head, int(cached.tgt_len > 1)
    products = _read(cached.positions[index])[:, 1 - padding :]  # (N, C, W)
    _, bias = cached.model.get_biases(index)
    bias_scores = np.einsum("nw,ncw->nc", _read(bias), products) * np.float32(d_head**-0.5)
    is_equal = (products[:, padding:] == products[:, padding : padding + 1]).all(axis=(0, 2))
    n_equal = len(is_equal) if is_equal.all() else int(is_equal.argmin())
    first, columns = 0, None
    if n_equal > 1:
        first = padding + n_equal - 1
        columns = np.maximum(np.arange(products.shape[1], dtype=np.int32) - first, 0)
    matrix = Matrix(f"layer_{index}/distances", products[:, first:, :d_head])
    return Distances(matrix, bias_scores[:, None], columns)


def _read_norm(norm: Any) -> Norm:
    return Norm(_read(norm.gamma), _read(norm.beta), norm.epsilon)


def _make_matrix(name: str, rows: Any) -> Matrix:
    return Matrix(name, _read(rows))


def _read(weight: Any) -> np.ndarray:
    return ops.convert_to_numpy(ops.cast(weight, "float32"))
