import numpy as np
import pytest
import tensorflow as tf
from small_language_model import make_transformer
from small_runs import Text

from txl_tf.config import EvalConfig
from txl_tf.errors import UserError
from txl_tf.scoring.dynamic_evaluation import copy_without_dropout, gather_roots

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


def test_roots_are_those_of_consecutive_segments_in_ten_stretches():
    assert make_transformer().config.dropout > 0
    found = gather_roots(make_transformer(), CONFIG, TEXT, 23, jit="none")
    model = copy_without_dropout(make_transformer())
    sums = [np.zeros(weight.shape) for weight in model.trainable_variables]
    counts = np.diff([stretch * 23 // 10 for stretch in range(11)])
    for stretch, count in enumerate(counts):
        memory = model.initial_memory(1, 7)
        for index in range(count):
            start = (stretch * 79 // 10 + index) * 5  # of the 79 segments
            gradients, memory = differentiate(model, start, memory)
            sums = [total + gradient**2 for total, gradient in zip(sums, gradients, strict=True)]
    for one, total in zip(found, sums, strict=True):
        other = np.sqrt(total / 23)
        np.testing.assert_allclose(one, other, rtol=5e-4, atol=3e-3 * other.max())


def test_a_short_split_has_fewer_batches():
    n_read = []
    gather_roots(
        make_transformer(), CONFIG, Text(TEXT.ids[:13]), 9, jit="none", report=n_read.append
    )
    assert sum(n_read) == 2


def test_a_split_shorter_than_a_segment_is_refused():
    with pytest.raises(UserError, match=r"longer than a segment .*Received: 5 tokens, tgt_len=5"):
        gather_roots(make_transformer(), CONFIG, Text(TEXT.ids[:5]), 3)
