"""What gives the same bits when it is done again, in parts, or by more workers."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from called_programs import call
from forked_programs import run_forked

from benchmarks.flag_texts import keep_last
from tests.contract.conftest import PREPARE, TRAIN

DROPPING = "--train_steps=6 --eval_every=0 --dropout=0.3 --dropatt=0.2 --seed=5"
# What a log has of the machine.
MEASURED = {"tokens_per_second", "peak_memory_bytes"}


def make_flags(*added):
    return keep_last([*TRAIN.split(), *" ".join(added).split()])


def train(name, *added, status=0):
    """Trains a run and returns what it leaves."""
    outcome = call("txl_tf.programs.train", *make_flags(DROPPING, f"--model_dir={name}", *added))
    assert outcome.status == status, outcome.err
    return read_run(name)


def read_run(name):
    """Returns the variables of a checkpoint by name, and the log by step."""
    newest = max(Path(name, "checkpoints").glob("ckpt-?.index"))
    reader = tf.train.load_checkpoint(str(newest.with_suffix("")))
    variables = {
        key: reader.get_tensor(key).tolist()
        for key, dtype in reader.get_variable_to_dtype_map().items()
        if dtype != tf.string
    }
    lines = map(json.loads, Path(name, "log.jsonl").read_text().splitlines())
    return variables, {
        line["step"]: {key: line[key] for key in line.keys() - MEASURED} for line in lines
    }


@pytest.fixture(scope="module")
def whole(folder):
    """What a run with dropout leaves after 6 steps without interruption."""
    with contextlib.chdir(folder):
        return train("whole")


def test_a_run_repeats_its_bits(whole, here):
    assert train("again") == whole


def test_a_resumed_run_equals_the_uninterrupted_one(whole, here):
    assert max(train("parts", "--max_hours=1e-9", status=3)[1]) < 6
    assert call("txl_tf.programs.train", "--model_dir=parts", "--jit=none").status == 0
    assert read_run("parts") == whole


def test_the_division_of_steps_into_calls_changes_no_bit(whole, here):
    variables, log = train("calls", "--iterations=3")
    assert variables == whole[0]
    assert list(log) == [2, 3, 4, 6]  # it saves at 2, 4 and 6


@pytest.mark.slow
def test_two_replicas_train_as_one(here, tmp_path):
    flags = make_flags("--dropout=0 --dropatt=0 --train_steps=6 --eval_every=0")
    assert call("txl_tf.programs.train", *keep_last([*flags, "--model_dir=one"])).status == 0
    # In a process of its own: strategies over the same devices would disturb each other.
    run_forked(keep_last([*flags, "--model_dir=two", "--cpu_replicas=2"]), tmp_path / "output")
    losses = [[line["loss_nats"] for line in read_run(name)[1].values()] for name in ("one", "two")]
    np.testing.assert_allclose(*losses, rtol=1e-5)  # their sums are made in another order: float32


def test_the_number_of_workers_changes_no_byte_of_records(here):
    flags = keep_last([*PREPARE.split(), "--num_workers=3", "--data_dir=by-three"])
    outcome = call("txl_tf.programs.prepare", *flags)
    assert outcome.status == 0, outcome.err
    one, three = (
        {path.name: path.read_bytes() for path in Path(name).iterdir()}
        for name in ("data", "by-three")
    )
    assert three == one


def test_a_seed_gives_one_text_whatever_generates_it(here):
    """The program, again, and its SavedModel."""
    flags = "--run=run --prompt=once --length=12 --temperature=0.9 --top_k=5"
    found = [
        call("txl_tf.programs.generate", *flags.split(), f"--seed={seed}") for seed in (7, 7, 8)
    ]
    assert [outcome.err for outcome in found] == ["", "", ""]
    texts = [outcome.out for outcome in found]
    assert texts[0] == texts[1] != texts[2]
    generate = tf.saved_model.load("exported").signatures["generate_text"]
    inputs = {"text": "once", "length": 12, "temperature": 0.9, "top_k": 5, "seed": 7}
    (found,) = generate(**{name: tf.constant(value) for name, value in inputs.items()}).values()
    assert found.numpy().decode() in texts[0]
