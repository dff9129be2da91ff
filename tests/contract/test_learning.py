"""A training of one to two minutes, so that no change spoils unseen what a model learns."""

import json
import subprocess
import sys

import pytest
from places import ROOT

pytestmark = pytest.mark.slow

# Bits per byte on the test split of `pydoc` (which is a little different in each version of
# Python). Seeds 1 and 2 reached 2.219 and 2.226. Two faults, planted in turn: half of Muon's steps
# gave 2.44, and a wrong gradient of the left shift 3.70. What evaluation lacks without the memory
# was 0.224.
BAND = (2.17, 2.27)
MEMORY_GAIN = 0.15


def run(*arguments):
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_model_learns_as_much_as_it_did(tmp_path):
    data, model = f"--data_dir={tmp_path / 'data'}", tmp_path / "run"
    run("data_prep/make_tfrecords.py", "--dataset=pydoc", data)
    settings = ["--preset=shakespeare", "--train_steps=600", "--seed=1"]
    run("train_gpu.py", data, f"--model_dir={model}", *settings)

    def evaluate(*flags):
        command = ["-m", "txl_tf.evaluate", f"--run={model}", "--split=test", "--json", *flags]
        return json.loads(run(*command))["bpc"]

    bits = evaluate()
    assert BAND[0] < bits < BAND[1]
    assert evaluate("--mem_len=0", "--same_length=false") - bits > MEMORY_GAIN
