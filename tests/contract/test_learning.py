"""A training of one to two minutes, so that no change spoils unseen what a model learns."""

import json

import pytest
from called_programs import call

pytestmark = pytest.mark.slow

# Bits per byte on the test split of `pydoc` (which is a little different in each version of
# Python). Seeds 1 and 2 reached 2.219 and 2.226. Two faults, planted in turn: half of Muon's steps
# gave 2.44, and a wrong gradient of the left shift 3.70. What evaluation lacks without the memory
# was 0.224.
BAND = (2.17, 2.27)
MEMORY_GAIN = 0.15


def run(program, *arguments):
    outcome = call(program, *arguments)
    assert outcome.status == 0, outcome.err
    return outcome.out


def test_a_model_learns_as_much_as_it_did(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("txl_tf.programs.prepare", "--dataset=pydoc", "--data_dir=data")
    settings = ("--preset=shakespeare", "--train_steps=600", "--warmup_steps=100", "--seed=1")
    batches = ("--train_batch_size=16", "--tgt_len_schedule=", "--learning_rate=4e-3")
    run("txl_tf.programs.train", "--data_dir=data", "--model_dir=run", *settings, *batches)

    def evaluate(*flags):
        found = run("txl_tf.programs.evaluate", "--run=run", "--split=test", "--json", *flags)
        return json.loads(found)["bpc"]

    bits = evaluate()
    assert BAND[0] < bits < BAND[1]
    assert evaluate("--mem_len=0", "--same_length=false") - bits > MEMORY_GAIN
