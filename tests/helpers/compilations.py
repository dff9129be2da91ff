"""Counts what XLA compiles while small models are used: `compilations.py CASE ...`, as JSON.

A case is a preset, or a preset and a precision as in `enwik8_base:bfloat16`: its training and its
evaluation are then counted where XLA compiles only the chains between the products.

XLA_FLAGS=--xla_dump_to=FOLDER has XLA write what it compiles; FOLDER is read from there. The models
are those of the presets, scaled down. For each use of a model the counts are printed after the
first call and after more calls with other numbers in the same shapes.
"""

import dataclasses
import functools
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

import txl_tf
from txl_tf import presets
from txl_tf.data import Vocabulary
from txl_tf.data.lanes.training_lanes import StoredTokens

SIZES = {"n_layer": 1, "d_model": 64, "n_head": 2, "d_head": 8, "d_inner": 24, "n_token": 211}
CUTOFFS = (17, 41, 131)
TGT_LEN, MEM_LEN, BATCH = 8, 13, 6
N_MORE = 3


def scale_down(name):
    """Returns model, training and evaluation of a preset, as small as they can be."""
    preset = presets.get(name)
    cutoffs = CUTOFFS[: len(preset.model.cutoffs)]
    model = dataclasses.replace(preset.model, **SIZES, d_embed=64, cutoffs=cutoffs)
    sizes = {"tgt_len": TGT_LEN, "mem_len": MEM_LEN}
    of_training = sizes
    if preset.training.extra_len:
        of_training = {"tgt_len": TGT_LEN, "extra_len": MEM_LEN, "tgt_len_std": 0.5}
    training = dataclasses.replace(preset.training, train_batch_size=BATCH, **of_training)
    evaluation = dataclasses.replace(
        preset.evaluation, eval_batch_size=min(3, preset.evaluation.eval_batch_size), **sizes
    )
    return model, training, evaluation


def draw_ids(seed, *shape):
    """Returns ids that lie in other bins for each seed, all of them in one for some."""
    low, high = [(0, 211), (0, 17), (131, 211), (17, 211), (0, 60)][seed % 5]
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.int32)


def train(model_config, training):
    """Returns what trains on one call's segments."""
    from txl_tf.training.strategy import make_gpu_strategy
    from txl_tf.training.trainer import CallSegments, Trainer
    from txl_tf.training.workers import Workers

    trainer = Trainer(Workers(make_gpu_strategy()), model_config, training)

    def run(seed):
        ids = draw_ids(seed, 2, BATCH, training.window_len + 1)
        lengths = np.array([TGT_LEN, 2 + seed], np.int32)
        return trainer.run(
            CallSegments(ids, lengths=lengths if training.has_random_lengths else None)
        )

    return run


def evaluate(model, evaluation, jit="whole"):
    """Returns what evaluates a split."""
    from txl_tf.scoring.evaluator import Evaluator

    evaluator = Evaluator(model, evaluation, jit=jit)
    return lambda seed: evaluator.score(StoredTokens(draw_ids(seed, 100)))


def continue_contexts(model):
    """Returns what scores continuations, as the evaluation harness asks for."""
    from txl_tf.scoring.continuations import Continuation, ContinuationScorer

    scorer = ContinuationScorer(model, txl_tf.EvalConfig(TGT_LEN, MEM_LEN), 2)
    return lambda seed: scorer.score([Continuation(draw_ids(seed, 9), draw_ids(seed + 1, 5))])


def make_uses_of_chains(name, precision):
    """Returns what is counted of a preset whose chains alone are compiled."""
    from txl_tf.models import compilation
    from txl_tf.training.trainer import DTYPE_POLICIES

    # An engine of its own: it shares no compiled chains with other cases.
    new_compile = functools.partial(compilation.CHAINS.compile)
    compilation.CHAINS = compilation.CHAINS._replace(compile=new_compile)
    model_config, training, evaluation = scale_down(name)
    training = dataclasses.replace(training, precision=precision, jit="chains")
    model = txl_tf.TransformerXL(model_config, seed=1, dtype=DTYPE_POLICIES[precision])
    return {
        "training": train(model_config, training),
        "evaluation": evaluate(model, evaluation, jit="chains"),
    }


def make_uses(name):
    """Returns what is counted: functions of a seed, by name."""
    model_config, training, evaluation = scale_down(name)
    vocabulary = Vocabulary("word", tuple(f"w{index}" for index in range(211)))
    model = txl_tf.TransformerXL(model_config, seed=1)
    lm = txl_tf.LanguageModel(model, vocabulary, evaluation)
    with tempfile.TemporaryDirectory() as folder:
        import tensorflow as tf

        lm.export(folder + "/exported")
        exported = tf.saved_model.load(folder + "/exported")
    return {
        "training": train(model_config, training),
        "evaluation": evaluate(model, evaluation),
        "scoring": lambda seed: lm.score([draw_ids(seed, 50), draw_ids(seed + 1, 30)]),
        "generation": lambda seed: lm.generate(draw_ids(seed, 11), max_new_tokens=40, seed=seed),
        "continuations": continue_contexts(model),
        # Other shapes each time: requests are of any.
        "exported scoring": lambda seed: exported.signatures["score_ids"](
            ids=tf.constant(draw_ids(seed, 2, 30 + seed)), lengths=tf.constant([30 + seed, 19])
        ),
        "exported generation": lambda seed: exported.signatures["generate_text"](
            text=tf.constant(vocabulary.decode(draw_ids(seed, 9))),
            length=tf.constant(5 + seed),
            temperature=tf.constant(1.0),
            top_k=tf.constant(3),
            seed=tf.constant(seed),
        ),
    }


def count_compiled():
    """Returns how many programs XLA has compiled in this process."""
    folder = Path(os.environ["XLA_FLAGS"].partition("--xla_dump_to=")[2].split()[0])
    return len({path.name.split(".")[0] for path in folder.glob("module_*")})


def count_use(call):
    """Returns how many programs the first call compiles, and how many the calls after it."""
    before = count_compiled()
    call(0)
    first = count_compiled()
    for seed in range(1, 1 + N_MORE):
        call(seed)
    return first - before, count_compiled() - first


def main(*cases):
    counts = {}
    for case in cases:
        name, _, precision = case.partition(":")
        uses = make_uses_of_chains(name, precision) if precision else make_uses(name)
        counts[case] = {use: count_use(call) for use, call in uses.items()}
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
