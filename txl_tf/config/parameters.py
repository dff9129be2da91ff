"""The number of parameters of a model, from its config alone."""

from typing import Any, NamedTuple

ModelConfig = Any  # `txl_tf.config.ModelConfig`, which imports this file


class ParameterCounts(NamedTuple):
    """The number of trainable parameters in each part of a model.

    Args:
        embedding: The tables and projections of the embedding; the softmax shares the tables.
        layers: The decoder layers, with the weights of the position encoding: the biases u and v;
            or the LSTM layers.
        softmax: The biases, clusters and projections that the softmax does not share.
    """

    embedding: int
    layers: int
    softmax: int


def count_by_part(model: ModelConfig, *, is_lstm: bool) -> ParameterCounts:
    """Returns the number of trainable parameters of embedding, layers and softmax."""
    n_bins = len(model.bins)
    tables = sum(
        (high - low) * model.bin_width(index) for index, (low, high) in enumerate(model.bins)
    )
    of_embedding, of_softmax = (
        sum(model.bin_width(k) * model.d_model for k in range(n_bins) if has_projection(k))
        for has_projection in (model.has_embedding_projection, model.has_softmax_projection)
    )
    clusters = (n_bins - 1) * (model.d_embed + 1)
    return ParameterCounts(
        embedding=tables + of_embedding,
        layers=_count_lstm_layers(model) if is_lstm else _count_decoder_layers(model),
        softmax=of_softmax + clusters + model.n_token,
    )


def _count_lstm_layers(model: ModelConfig) -> int:
    # Input kernel, recurrent kernel and bias of 4 gates.
    return model.n_layer * 4 * model.d_model * (2 * model.d_model + 1)


def _count_decoder_layers(model: ModelConfig) -> int:
    d_heads = model.n_head * model.d_head
    has_r = model.encoding == "relative"
    attention = (4 + has_r) * model.d_model * d_heads + 2 * model.d_model  # q k v r o, LayerNorm
    feed_forward = 2 * model.d_model * model.d_inner + model.d_inner + 3 * model.d_model
    return model.n_layer * (attention + feed_forward) + _count_encoding(model)


def _count_encoding(model: ModelConfig) -> int:
    """Returns the number of parameters of the position encoding outside of the attention."""
    d_heads = model.n_head * model.d_head
    of_layer = {
        "shaw": model.n_positions * d_heads,
        "shaw_biased": d_heads + model.n_positions * (d_heads + model.n_head),
        "learned": model.n_positions * model.d_model,
        "sinusoid": 0,
    }
    if model.encoding == "relative":
        return 2 * d_heads * (model.n_layer if model.untie_r else 1)
    return model.n_layer * of_layer[model.encoding]
