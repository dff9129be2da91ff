import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from small_cached_model import make_model
from small_runs import Text

from txl_tf.config import EvalConfig
from txl_tf.errors import UserError
from txl_tf.scoring import gradient_statistics as statistics
from txl_tf.scoring.gradient_statistics import find_statistics
from txl_tf.scoring.segment_gradients import copy_without_dropout

TEXT = Text(np.random.default_rng(3).integers(0, 13, 397))
CONFIG = EvalConfig(tgt_len=5, mem_len=7, eval_batch_size=3)


def differentiate(model, start, memory):
    """Returns the gradients of the mean loss of a segment, and the new memory."""
    ids = TEXT.ids[None, start : start + 6]
    with tf.GradientTape() as tape:
        hidden, memory = model(ids[:, :-1], memory, span=CONFIG.span)
        loss = tf.reduce_mean(model.nll(hidden, ids[:, 1:]))
    gradients = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
    return [tf.convert_to_tensor(gradient).numpy() for gradient in gradients], memory


def test_squares_of_consecutive_segments_in_ten_stretches_are_added():
    assert make_model().config.dropout > 0
    found = find_statistics(make_model(), CONFIG, TEXT, 23, jit="none")
    model = copy_without_dropout(make_model())
    assert found.n_batches == 23
    sums = [np.zeros(weight.shape) for weight in model.trainable_variables]
    counts = np.diff([stretch * 23 // 10 for stretch in range(11)])
    for stretch, count in enumerate(counts):
        memory = model.initial_memory(1, 7)
        for index in range(count):
            start = (stretch * 79 // 10 + index) * 5  # of the 79 segments
            gradients, memory = differentiate(model, start, memory)
            sums = [total + gradient**2 for total, gradient in zip(sums, gradients, strict=True)]
    for one, other in zip(found.sums, sums, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5 * other.max())
    np.testing.assert_allclose(found.sum_roots[2], np.sqrt(found.sums[2]))
    np.testing.assert_allclose(found.mean_roots[2], np.sqrt(found.sums[2] / 23), rtol=1e-6)


def test_statistics_are_gathered_once_for_what_they_depend_on(tmp_path, monkeypatch):
    model = make_model()
    first = find_statistics(model, CONFIG, TEXT, 3, folder=str(tmp_path), jit="none")
    gathered = []

    def gather(*arguments):
        gathered.append(arguments)
        return first.sums

    monkeypatch.setattr(statistics, "_gather", gather)
    again = find_statistics(model, CONFIG, TEXT, 3, folder=str(tmp_path))
    assert not gathered
    for one, other in zip(first.sums, again.sums, strict=True):
        np.testing.assert_array_equal(one, other)
    longer = dataclasses.replace(CONFIG, mem_len=8)
    other_lanes = dataclasses.replace(CONFIG, eval_batch_size=1)
    other = Text(np.append(0, TEXT.ids[1:]))
    cases = [(CONFIG, TEXT, 5), (longer, TEXT, 3), (CONFIG, other, 3), (other_lanes, TEXT, 3)]
    for config, text, n_batches in cases:
        find_statistics(model, config, text, n_batches, folder=str(tmp_path))
    assert len(gathered) == 3  # the number of lanes does not matter
    model.weights[0].assign(2 * model.weights[0])
    find_statistics(model, CONFIG, TEXT, 3, folder=str(tmp_path))
    assert len(gathered) == 4


def test_a_short_split_has_fewer_batches():
    assert find_statistics(make_model(), CONFIG, Text(TEXT.ids[:13]), 9, jit="none").n_batches == 2


def test_a_split_shorter_than_a_segment_is_refused():
    with pytest.raises(UserError, match=r"longer than a segment .*Received: 5 tokens, tgt_len=5"):
        find_statistics(make_model(), CONFIG, Text(TEXT.ids[:5]), 3)
