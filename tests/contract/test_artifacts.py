"""Data sets, runs and models that an older version made are opened as before.

`golden/artifacts/` was made at commit edca679: records of words, three runs at step 8 of 12 with
their checkpoints (Adam with averages and dropout; AdamW; LAMB in float16), a `.keras` file of the
first, and in `expected.json` what that version went on to compute.
"""

import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from places import GOLDEN

import txl_tf
from txl_tf import train_gpu

pytestmark = pytest.mark.slow

FOLDER = GOLDEN / "artifacts"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
# Another processor rounds sums in another order; four steps amplify that little.
RTOL = 1e-4


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def lm():
    return txl_tf.load(str(FOLDER / "adam"))


@pytest.mark.parametrize("name", ["adam", "adamw", "lamb"])
def test_an_older_run_resumes(name, tmp_path):
    run = tmp_path / name
    shutil.copytree(FOLDER / name, run)
    flags = [f"--data_dir={FOLDER / 'records'}", f"--model_dir={run}", "--iterations=1"]
    assert train_gpu.main(["train_gpu.py", *flags, "--eval_every=4"]) == 0
    lines = read_lines(run / "log.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 13))
    expected = EXPECTED[name]
    new = lines[8:]
    np.testing.assert_allclose([line["loss_nats"] for line in new], expected["losses"], RTOL)
    np.testing.assert_allclose([line["grad_norm"] for line in new], expected["grad_norms"], RTOL)
    validation = read_lines(run / "validation.jsonl")[-1]
    assert validation["step"] == 12
    np.testing.assert_allclose(validation["loss_nats"], expected["validation"], RTOL)
    training = json.loads((run / "config.json").read_text())["training"]
    assert training["jit"] in ("whole", "chains")  # an older run resolves "auto" once


def test_an_older_run_scores_texts_as_it_did(lm):
    nats = [score.nats for score in lm.score(EXPECTED["texts"])]
    for found, expected in zip(nats, EXPECTED["nats"], strict=True):
        np.testing.assert_allclose(found, expected, RTOL)


def test_an_older_run_generates_the_text_that_it_did(lm):
    text = lm.generate("the cat", max_new_tokens=12, temperature=0.8, top_k=20, seed=3)
    assert text == EXPECTED["generated"]


def test_signatures_of_an_export_are_those_of_older_ones(lm, tmp_path):
    lm.export(str(tmp_path / "exported"))
    signatures = tf.saved_model.load(str(tmp_path / "exported")).signatures

    def describe(specs):
        return {
            name: [None if spec.shape.rank is None else spec.shape.as_list(), spec.dtype.name]
            for name, spec in specs.items()
        }

    assert {
        name: {
            "inputs": describe(function.structured_input_signature[1]),
            "outputs": describe(function.structured_outputs),
        }
        for name, function in signatures.items()
    } == EXPECTED["signatures"]


def test_an_older_keras_file_holds_the_weights_of_its_run(lm):
    model = keras.saving.load_model(FOLDER / "model.keras")
    assert model.config == lm.model.config
    for found, expected in zip(model.weights, lm.model.weights, strict=True):
        np.testing.assert_array_equal(found, expected)
