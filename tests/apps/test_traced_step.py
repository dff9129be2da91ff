"""The traced step, run by TensorFlow: no package of a format is needed."""

import numpy as np
import pytest
import tensorflow as tf
from exported_steps import CASES, draw_ids, make_cached, make_lm, read_live, read_steps
from tables import slow_after

from txl_tf.apps.step_files import TracedStep

SAME = {"rtol": 0, "atol": 2e-5}
RICHEST = ("divided_words", "shaw_biased", "clamped_token")
NAMES = [*RICHEST, *(name for name in CASES if name not in RICHEST)]


def run_step(cached, ids, precision="float32"):
    step = TracedStep(cached, len(ids), precision)
    info = {"inputs": step.inputs, "tgt_len": cached.tgt_len}
    return read_steps(lambda **inputs: step.function(**inputs).values(), info, ids)


@pytest.mark.parametrize("name", slow_after(len(RICHEST), NAMES))
def test_steps_have_the_log_probabilities_of_the_live_model(name):
    fields, evaluation, tgt_len, n_rows, is_masked = CASES[name]
    lm = make_lm(fields, evaluation)
    cached, ids = make_cached(lm, tgt_len, is_masked=is_masked), draw_ids(lm, n_rows, 30)
    np.testing.assert_allclose(run_step(cached, ids), read_live(cached, ids), **SAME)


def test_int8_has_the_log_probabilities_of_the_quantized_model():
    lm = make_lm({"n_token": 23, "cutoffs": (5, 11), "div_val": 2}, {"mem_len": 7})
    ids = draw_ids(lm, 2, 30)
    found = run_step(make_cached(lm, 3), ids, "int8")
    lm.quantize("int8")
    np.testing.assert_allclose(found, read_live(make_cached(lm, 3), ids), **SAME)


def test_the_length_is_that_of_the_filled_memory():
    step = TracedStep(make_cached(make_lm({}, {"mem_len": 7}), 5), 2, "float32")
    inputs = {name: tf.zeros(shape) for name, shape in step.inputs.items()}
    inputs |= {"ids": tf.zeros((2, 5), tf.int32), "length": tf.constant([1, 3])}
    assert step.function(**inputs)["new_length"].numpy().tolist() == [6, 7]
