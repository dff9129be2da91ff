"""Spans, and a tiny model whose every token matters, that tests of kept keys and values share."""

from txl_tf.config import AttentionSpan, ModelConfig
from txl_tf.models.transformer_xl import TransformerXL

SPANS = [
    AttentionSpan(0),
    AttentionSpan(3),
    AttentionSpan(11, same_length=True),
    AttentionSpan(11, same_length=True, counts_self=True, clamp_len=4),
    AttentionSpan(7, clamp_len=5),
]


def make_model(n_token=13, **options):
    config = ModelConfig(
        n_token=n_token, n_layer=2, d_model=6, d_embed=6, n_head=3, d_head=5, d_inner=7
    )
    model = TransformerXL(config, seed=1, **options)
    for weight in model.trainable_variables:  # far from uniform, so that each token matters
        weight.assign(9 * weight)
    return model
