"""The names of the weights in the checkpoints of the 2019 release."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from txl_tf.errors import UserError
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.runs.checkpoint import RELEASE_SCOPE as SCOPE

__all__ = ["SCOPE", "Entry", "list_entries"]


class Entry(NamedTuple):
    """A weight of the model and its name in the release, without `transformer/`."""

    source: str
    target: Any


def list_entries(model: TransformerXL) -> Iterator[Entry]:
    """Yields every weight of a model with its name in the release.

    Raises:
        UserError: If the model has another position encoding than the release.
    """
    if model.config.encoding != "relative":
        raise UserError(
            "the 2019 release has only encoding=relative. "
            f"Received: encoding={model.config.encoding}"
        )
    yield Entry("r_w_bias", model.content_bias)
    yield Entry("r_r_bias", model.position_bias)
    yield from _list_embedding_entries(model)
    for index, layer in enumerate(model.decoder_layers):
        scope = f"layer_{index}/rel_attn"
        yield Entry(f"{scope}/qkv/kernel", layer.attention.qkv_kernel)
        yield Entry(f"{scope}/r/kernel", layer.attention.r_kernel)
        yield Entry(f"{scope}/o/kernel", layer.attention.o_kernel)
        yield Entry(f"{scope}/LayerNorm/gamma", layer.attention_norm.gamma)
        yield Entry(f"{scope}/LayerNorm/beta", layer.attention_norm.beta)
        scope = f"layer_{index}/ff"
        yield Entry(f"{scope}/layer_1/kernel", layer.feed_forward.inner.kernel)
        yield Entry(f"{scope}/layer_1/bias", layer.feed_forward.inner.bias)
        yield Entry(f"{scope}/layer_2/kernel", layer.feed_forward.outer.kernel)
        yield Entry(f"{scope}/layer_2/bias", layer.feed_forward.outer.bias)
        yield Entry(f"{scope}/LayerNorm/gamma", layer.feed_forward_norm.gamma)
        yield Entry(f"{scope}/LayerNorm/beta", layer.feed_forward_norm.beta)
    yield from _list_softmax_entries(model)


def _list_embedding_entries(model: TransformerXL) -> Iterator[Entry]:
    embedding = model.embedding
    pairs = zip(embedding.tables, embedding.projections, strict=True)
    for index, (table, projection) in enumerate(pairs):
        scope = "adaptive_embed" + (f"/cutoff_{index}" if model.config.div_val > 1 else "")
        yield Entry(f"{scope}/lookup_table", table)
        if projection is not None:
            yield Entry(f"{scope}/proj_W", projection)


def _list_softmax_entries(model: TransformerXL) -> Iterator[Entry]:
    softmax, scope = model.softmax, "adaptive_softmax"
    if not model.config.cutoffs:
        yield Entry(f"{scope}/bias", softmax.biases[0])
        return
    yield Entry(f"{scope}/cutoff_0/cluster_W", softmax.cluster_weight)
    yield Entry(f"{scope}/cutoff_0/cluster_b", softmax.cluster_bias)
    for index, (bias, projection) in enumerate(
        zip(softmax.biases, softmax.projections, strict=True)
    ):
        yield Entry(f"{scope}/cutoff_{index}/b", bias)
        if projection is not None:
            yield Entry(f"{scope}/cutoff_{index}/proj", projection)
