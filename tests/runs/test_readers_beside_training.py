"""A run that other processes read, and evaluate, while it is trained."""

import subprocess
import sys
import time

import numpy as np
import pytest
from called_programs import drop_banner
from small_commands import PROGRAM, make_arguments, write_data

import txl_tf
import txl_tf.programs.evaluate
from txl_tf.data.files import read_json_lines
from txl_tf.runs.checkpoint_choice import list_checkpoints


@pytest.mark.slow
def test_a_run_is_scored_and_evaluated_while_its_training_replaces_checkpoints(tmp_path):
    run, n_loaded, n_evaluated = tmp_path / "run", 0, 0
    shape = ("--train_steps=60", "--save_steps=1", "--iterations=1", "--keep_checkpoints=1")
    arguments = make_arguments(write_data(tmp_path / "data"), run, *shape, "--do_eval")
    with subprocess.Popen(
        [sys.executable, PROGRAM, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as training:
        while training.poll() is None:
            if not list_checkpoints(str(run)):
                time.sleep(0.01)
                continue
            lm = txl_tf.load(run)
            n_loaded += 1
            if n_loaded % 9 == 1:
                assert lm.score([np.arange(7)], jit="none")[0].tokens == 6
                arguments = [f"--run={run}", "--max_segments=2", "--jit=none"]
                assert txl_tf.programs.evaluate.main(["evaluate.py", *arguments]) == 0
                n_evaluated += 1
        assert (training.wait(), drop_banner(training.stderr.read())) == (0, "")
    assert n_evaluated > 1
    assert len(read_json_lines(str(run / "evaluations.jsonl"))) == n_evaluated + 1
