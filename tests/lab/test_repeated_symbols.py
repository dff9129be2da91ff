"""How far models look that were trained to find a symbol exactly d back."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from small_runs import TRAINING, Text, make_lanes, make_trainer, run_steps

import txl_tf
from txl_tf.config import EvalConfig
from txl_tf.lab.attention_lengths import choose_lengths, measure_attention_lengths
from txl_tf.lab.context_losses import ContextReader, compute_losses, draw_positions
from txl_tf.lab.effective_length import compare_models, find_effective_length
from txl_tf.language_model import LanguageModel

N_TOKEN, DISTANCE, TGT_LEN = 7, 12, 6


def make_text(n, seed):
    """Returns noise in which every second symbol on average repeats the one `DISTANCE` back."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(0, N_TOKEN, n)
    for index in np.flatnonzero(generator.random(n) < 0.5):
        if index >= DISTANCE:
            ids[index] = ids[index - DISTANCE]
    return Text(ids)


def train(mem_len):
    model = txl_tf.ModelConfig(
        n_token=N_TOKEN,
        n_layer=1,
        d_model=16,
        d_embed=16,
        n_head=1,
        d_head=16,
        d_inner=16,
        dropout=0.0,
        dropatt=0.0,
    )
    training = dataclasses.replace(
        TRAINING,
        train_batch_size=16,
        tgt_len=TGT_LEN,
        mem_len=mem_len,
        learning_rate=0.01,
        warmup_steps=20,
        train_steps=700,
    )
    trainer = make_trainer(tf.distribute.get_strategy(), model, training, jit="whole")
    run_steps(trainer, [700], make_lanes(training, make_text(60_000, seed=1)))
    evaluation = EvalConfig(tgt_len=TGT_LEN, mem_len=mem_len, eval_batch_size=8)
    return LanguageModel(trainer.model, None, evaluation, training=training)


@pytest.fixture(scope="module")
def models():
    """A model whose memory holds the symbol, and one whose memory does not."""
    return train(mem_len=DISTANCE), train(mem_len=3)


def compute(models, lengths):
    text = make_text(3000, seed=2)
    positions = draw_positions(len(text), lengths[-1], 800, seed=0)
    return [
        compute_losses(ContextReader(lm, lengths[-1], jit="none"), text, positions, lengths)
        for lm in models
    ]


@pytest.mark.slow
def test_the_distance_is_found_by_the_model_that_reaches_it(models):
    lengths = [1, 6, 11, 12, 13, 18]
    long, short = compute(models, lengths)
    assert find_effective_length(long, lengths).tokens == DISTANCE
    assert find_effective_length(short, lengths).tokens < DISTANCE


@pytest.mark.slow
def test_the_relative_length_of_the_group_is_the_distance(models):
    lengths = [6, 12, 18, 24]
    for share in (0.1, 0.5, 1):
        found = compare_models(compute(models, lengths), lengths, share).lengths
        assert [length.tokens for length in found] == [DISTANCE, 6]


@pytest.mark.slow
def test_the_best_attention_length_reaches_the_distance(models):
    lm, _ = models
    found = measure_attention_lengths(lm, make_text(2000, seed=3), [3, 6, 24], max_tokens=1000)
    assert found.lengths == [3, 6, 12, 24]
    perplexities = [score.perplexity for score in found.scores]
    assert perplexities[2] < 0.9 * perplexities[0]
    assert found.best == found.lengths[int(np.argmin(np.round(perplexities, 2)))]
    assert len({score.tokens for score in found.scores}) == 1
    assert choose_lengths(12, 20) == [6, 12, 20, 24, 36, 48, 72]
