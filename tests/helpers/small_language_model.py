"""Tiny models whose every token matters, which tests of inference share."""

import txl_tf
from txl_tf.config import AttentionSpan, EvalConfig, ModelConfig
from txl_tf.data import Vocabulary
from txl_tf.models.transformer_xl import TransformerXL

WORDS = Vocabulary("word", ("<eos>", "the", "cat", "sat", "on", "mat", "a"), line_end="<eos>")
SPANS = [
    AttentionSpan(0),
    AttentionSpan(3),
    AttentionSpan(11, same_length=True),
    AttentionSpan(11, same_length=True, counts_self=True, clamp_len=4),
    AttentionSpan(7, clamp_len=5),
]


def make_transformer(n_token=13, **options):
    config = ModelConfig(
        n_token=n_token, n_layer=2, d_model=6, d_embed=6, n_head=3, d_head=5, d_inner=7
    )
    model = TransformerXL(config, seed=1, **options)
    for weight in model.trainable_variables:  # far from uniform, so that each token matters
        weight.assign(9 * weight)
    return model


def make_model(n_token, *, mem_len=11, tgt_len=5, vocabulary=None, **fields):
    evaluation = EvalConfig(tgt_len=tgt_len, mem_len=mem_len, **fields)
    return txl_tf.LanguageModel(make_transformer(n_token), vocabulary, evaluation)
