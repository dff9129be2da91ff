"""Models whose stateless steps tests compare with the live model, and how a step is run."""

import numpy as np
import tensorflow as tf

import txl_tf
from txl_tf.config import EvalConfig
from txl_tf.models.cached_model import CachedModel

# Fields of the model and of the evaluation, tokens of a step, rows, whether emptiness is hidden.
CASES = {
    "one_token": ({}, {"mem_len": 11}, 1, 2, True),
    "empty_memory": ({}, {"mem_len": 11}, 1, 1, False),
    "segments": ({"untie_r": True}, {"mem_len": 7}, 5, 2, True),
    "clamped": ({}, {"mem_len": 13, "clamp_len": 4}, 3, 1, True),
    "clamped_token": ({}, {"mem_len": 13, "clamp_len": 4, "same_length": True}, 1, 1, False),
    "one_head": ({"n_head": 1}, {"mem_len": 11}, 1, 2, True),
    "short_memory": ({}, {"mem_len": 2}, 5, 1, True),
    "divided_words": (
        {"n_token": 23, "cutoffs": (5, 11), "div_val": 2},
        {"mem_len": 7, "same_length": True},
        *(3, 2, True),
    ),
    "shared_projections": (
        {"n_token": 23, "cutoffs": (5,), "d_embed": 4, "proj_share_all_but_first": True},
        {"mem_len": 7, "same_length": True, "counts_self": True},
        *(1, 2, True),
    ),
    "shaw": ({"encoding": "shaw", "n_positions": 9}, {"mem_len": 11}, 3, 1, True),
    "shaw_biased": ({"encoding": "shaw_biased", "n_positions": 9}, {"mem_len": 11}, 1, 2, True),
    "temperature": ({}, {"mem_len": 11, "temperature": 1.7}, 1, 1, True),
}


def make_lm(fields, evaluation, vocabulary=None):
    """Returns a language model whose every token matters, with log-probabilities of some nats."""
    config = txl_tf.ModelConfig(
        **{
            "n_token": 13,
            "n_layer": 2,
            "d_model": 6,
            "d_embed": 6,
            "n_head": 3,
            "d_head": 5,
            "d_inner": 7,
        }
        | fields
    )
    model, rng = txl_tf.TransformerXL(config, seed=1), np.random.default_rng(7)
    for weight in model.trainable_variables:
        weight.assign(weight + rng.normal(scale=0.3, size=weight.shape))
    return txl_tf.LanguageModel(model, vocabulary, EvalConfig(**evaluation))


def make_cached(lm, tgt_len, *, is_masked=True):
    temperature = lm.evaluation.temperature
    return CachedModel(
        lm.model, lm.span, tgt_len, mask_empty_memory=is_masked, temperature=temperature
    )


def draw_ids(lm, n_rows, n_tokens):
    rng = np.random.default_rng(3)
    return rng.integers(lm.config.n_token, size=(n_rows, n_tokens), dtype=np.int32)


def read_live(cached, ids):
    """Returns the log-probabilities after each token, (B, n, V), read in segments."""
    read = tf.function(cached.read, autograph=False, reduce_retracing=True)
    state, parts = cached.initial_state(len(ids)), []
    for start in range(0, ids.shape[1], cached.tgt_len):
        hidden, state = read(tf.constant(ids[:, start : start + cached.tgt_len]), state)
        log_probs = cached.model.log_probs(hidden) / cached.temperature
        parts.append(tf.nn.log_softmax(log_probs).numpy())
    return np.concatenate(parts, axis=1)


def read_steps(call, info, ids):
    """Returns what `read_live` does, by steps from an empty memory.

    `call` takes the four inputs of a step and returns the four outputs in order; `info` is
    the content of `model.json`.
    """
    shapes, tgt_len = info["inputs"], info["tgt_len"]
    keys = values = np.zeros(shapes["keys"], np.float32)
    length, parts = np.zeros(shapes["length"], np.int32), []
    for start in range(0, ids.shape[1], tgt_len):
        part = ids[:, start : start + tgt_len]
        log_probs, keys, values, length = call(ids=part, keys=keys, values=values, length=length)
        parts.append(log_probs)
    return np.concatenate(parts, axis=1)
