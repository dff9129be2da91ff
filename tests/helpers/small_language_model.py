"""A tiny language model that tests of inference share."""

import small_cached_model

import txl_tf
from txl_tf.config import EvalConfig
from txl_tf.data import Vocabulary

WORDS = Vocabulary("word", ("<eos>", "the", "cat", "sat", "on", "mat", "a"), line_end="<eos>")


def make_model(n_token, *, mem_len=11, tgt_len=5, vocabulary=None, **fields):
    evaluation = EvalConfig(tgt_len=tgt_len, mem_len=mem_len, **fields)
    return txl_tf.LanguageModel(small_cached_model.make_model(n_token), vocabulary, evaluation)
