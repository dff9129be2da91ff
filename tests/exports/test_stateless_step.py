"""The stateless step, computed by TensorFlow: no package of a format is needed."""

import numpy as np
import pytest
import tensorflow as tf
from exported_steps import CASES, draw_ids, make_cached, make_lm, read_live, read_steps
from tables import slow_after

from txl_tf.exports.litert import TensorFlowOperations
from txl_tf.exports.stateless_step import StatelessStep, StepInputs

SAME = {"rtol": 0, "atol": 2e-5}
RICHEST = ("divided_words", "shaw_biased", "clamped_token")
NAMES = [*RICHEST, *(name for name in CASES if name not in RICHEST)]


def run_step(cached, ids):
    step = StatelessStep(cached, len(ids))
    operations = TensorFlowOperations("float32")

    @tf.function(autograph=False)
    def build(**inputs):
        return step.build(operations, StepInputs(**inputs))

    info = {"inputs": step.inputs._asdict(), "tgt_len": cached.tgt_len}
    return read_steps(build, info, ids)


@pytest.mark.parametrize("name", slow_after(len(RICHEST), NAMES))
def test_steps_have_the_log_probabilities_of_the_live_model(name):
    fields, evaluation, tgt_len, n_rows, is_masked = CASES[name]
    lm = make_lm(fields, evaluation)
    cached, ids = make_cached(lm, tgt_len, is_masked=is_masked), draw_ids(lm, n_rows, 30)
    np.testing.assert_allclose(run_step(cached, ids), read_live(cached, ids), **SAME)


def test_the_length_is_that_of_the_filled_memory():
    cached = make_cached(make_lm({}, {"mem_len": 7}), 5)
    step = StatelessStep(cached, 2)
    zeros = StepInputs(*map(tf.zeros, step.inputs))
    inputs = zeros._replace(ids=tf.zeros((2, 5), tf.int32), length=tf.constant([1, 3]))
    outputs = step.build(TensorFlowOperations("float32"), inputs)
    assert outputs.new_length.numpy().tolist() == [6, 7]
