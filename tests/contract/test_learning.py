"""A training of a minute, so that no change spoils unseen what a model learns."""

import json

import pytest
from called_programs import call

pytestmark = pytest.mark.slow

# Bits per byte on the first part of the test split of `pydoc` (which is a little different in each
# version of Python). Seeds 1 and 2 reached 2.375 and 2.347. What evaluation lacks without the
# memory was .185 and .200.
BAND = (2.29, 2.43)
MEMORY_GAIN = 0.12
PART = ("--split=test", "--max_segments=60", "--json")


def run(program, *arguments):
    outcome = call(program, *arguments)
    assert outcome.status == 0, outcome.err
    return outcome.out


def test_a_model_learns_as_much_as_it_did(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("txl_tf.programs.prepare", "--dataset=pydoc", "--data_dir=data")
    settings = ("--preset=shakespeare", "--n_layer=2", "--train_steps=600", "--seed=1")
    run("txl_tf.programs.train", "--data_dir=data", "--model_dir=run", *settings)

    def evaluate(*flags):
        found = run("txl_tf.programs.evaluate", "--run=run", *PART, *flags)
        return json.loads(found)["bpc"]

    bits = evaluate()
    assert BAND[0] < bits < BAND[1]
    assert evaluate("--mem_len=0", "--same_length=false") - bits > MEMORY_GAIN
