"""A tiny language model that tests of inference share."""

import txl_tf
from txl_tf.config import EvalConfig
from txl_tf.data import Vocabulary

WORDS = Vocabulary("word", ("<eos>", "the", "cat", "sat", "on", "mat", "a"), line_end="<eos>")


def make_model(n_token, *, mem_len=11, tgt_len=5, vocabulary=None, **fields):
    config = txl_tf.ModelConfig(
        n_token=n_token, n_layer=2, d_model=6, d_embed=6, n_head=3, d_head=5, d_inner=7
    )
    evaluation = EvalConfig(tgt_len=tgt_len, mem_len=mem_len, **fields)
    model = txl_tf.TransformerXL(config, seed=1)
    for weight in model.trainable_variables:  # far from uniform, so that each token matters
        weight.assign(9 * weight)
    return txl_tf.LanguageModel(model, vocabulary, evaluation)
