"""Counts the parameters of a model, given only its config."""

import math
from typing import Any

from txl_tf.config.encodings import ENCODINGS

ModelConfig = Any  # `txl_tf.config.ModelConfig`, which imports this file


def count_by_part(model: ModelConfig) -> dict[str, int]:
    """Returns the number of trainable parameters of embedding, layers and softmax.

    The softmax shares the embedding tables; only its biases, clusters and projections count as its
    own. The layers include the weights of the position encoding.
    """
    n_bins = len(model.bins)
    tables = sum(
        (high - low) * model.bin_width(index) for index, (low, high) in enumerate(model.bins)
    )
    of_embedding, of_softmax = (
        sum(model.bin_width(k) * model.d_model for k in range(n_bins) if has_projection(k))
        for has_projection in (model.has_embedding_projection, model.has_softmax_projection)
    )
    clusters = (n_bins - 1) * (model.d_embed + 1)
    return {
        "embedding": tables + of_embedding,
        "layers": _count_layers(model),
        "softmax": of_softmax + clusters + model.n_token,
    }


def list_matrices(model: ModelConfig) -> list[tuple[int, int]]:
    """Returns the rows and columns of each matrix in the layers; joint matrices are split."""
    width, d_heads = model.d_model, model.n_head * model.d_head
    if model.model_type == "lstm":  # input and recurrent kernel, four gates each
        return [(width, width)] * 8 * model.n_layer
    if model.model_type == "qrnn":  # three gates; the first layer has a window of two inputs
        return [(2 * width, width)] * 3 + [(width, width)] * 3 * (model.n_layer - 1)
    n_projections = 3 + ENCODINGS[model.encoding].projects_positions  # q, k, v, r
    of_layer = [(width, d_heads)] * n_projections + [(d_heads, width)]
    of_layer += [(width, model.d_inner), (model.d_inner, width)]
    return of_layer * model.n_layer


def _count_layers(model: ModelConfig) -> int:
    matrices = sum(rows * columns for rows, columns in list_matrices(model))
    if model.is_recurrent:  # a bias for each gate
        n_gates = 4 if model.model_type == "lstm" else 3
        return matrices + model.n_layer * n_gates * model.d_model
    vectors = model.d_inner + 5 * model.d_model  # biases, and two of LayerNorm
    of_encoding = ENCODINGS[model.encoding].list_weights(model).values()
    return matrices + model.n_layer * vectors + sum(map(math.prod, of_encoding))
