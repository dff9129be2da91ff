"""What 1.0.0 made is opened, continued and computed with as it was by 1.0.0."""

import json
import shutil

import keras
import numpy as np
import pytest
from places import GOLDEN

import txl_tf
from tests.contract.artifacts import RUNS, describe_signatures, generate, read_steps, score_texts
from txl_tf.programs import train

pytestmark = pytest.mark.slow

FOLDER = GOLDEN / "artifacts"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
# Another processor rounds sums in another order; four steps amplify that little.
RTOL = 1e-4


@pytest.fixture(scope="module")
def lm():
    return txl_tf.load(FOLDER / "adam")


@pytest.mark.parametrize("name", RUNS)
def test_a_run_resumes(name, tmp_path):
    run = tmp_path / name
    shutil.copytree(FOLDER / name, run)
    assert train.main(["train_gpu", f"--data_dir={FOLDER}/records", f"--model_dir={run}"]) == 0
    found, expected = read_steps(run), EXPECTED[name]
    assert found.keys() == expected.keys()
    for key in expected:
        np.testing.assert_allclose(found[key], expected[key], RTOL, err_msg=key)


@pytest.mark.parametrize(("name", "nats"), [("adam", "nats"), ("shared", "shared_nats")])
def test_texts_have_their_scores(name, nats):
    for found, expected in zip(
        score_texts(txl_tf.load(FOLDER / name)), EXPECTED[nats], strict=True
    ):
        np.testing.assert_allclose(found, expected, RTOL)


def test_the_same_text_is_generated(lm):
    assert generate(lm) == EXPECTED["generated"]


def test_exports_have_the_same_signatures(lm):
    assert describe_signatures(lm) == EXPECTED["signatures"]


def test_the_keras_file_holds_the_weights_of_its_run(lm):
    model = keras.saving.load_model(FOLDER / "model.keras")
    assert model.config == lm.model.config
    for found, expected in zip(model.weights, lm.model.weights, strict=True):
        np.testing.assert_array_equal(found, expected)
