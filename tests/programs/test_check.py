"""`txl check`: it passes on a CPU, and its lines name planted faults."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from called_programs import call
from places import ROOT

from txl_tf import presets
from txl_tf.layers import memory as memory_layer
from txl_tf.programs import check
from txl_tf.programs.check import Check, Result, run_check, run_checks
from txl_tf.programs.checks import numbers, training
from txl_tf.programs.checks.backend import CheckFailedError
from txl_tf.training import step
from txl_tf.training.intervals import Pace
from txl_tf.training.trainer import Trainer

QUICK = ["device", "memory", "tf32"]
SKIPPED = {
    "tf32": "only GPUs have TF32",
    "speed_enwik8": "speed_wt103 has measured the preset demo",
}


def run(name):
    """Returns the result of a check, run in this process."""
    (chosen,) = (each for each in check.CHECKS if each.name == name)
    return run_check(chosen)


def run_program(*flags, **environment):
    """Runs `txl check` in a process of its own, as a user does."""
    command = [sys.executable, "-m", "txl_tf", "check", *flags]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_each_check_has_a_line():
    done = run_program(f"--only={','.join(QUICK)}")
    assert done.returncode == 0, done.stderr
    lines = [line.split()[:2] for line in done.stdout.splitlines()]
    assert lines == [["PASS", "device"], ["SKIPPED", "tf32"], ["PASS", "memory"]]


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """The speed is that of a tiny model, and runs are resumed in this process."""
    demo = presets.get("demo")
    sizes = {"n_layer": 1, "d_model": 32, "d_embed": 32, "n_head": 2, "d_head": 16, "d_inner": 64}
    lengths = {"tgt_len": 8, "mem_len": 8}
    tiny = dataclasses.replace(
        demo,
        model=dataclasses.replace(demo.model, **sizes),
        training=dataclasses.replace(demo.training, train_batch_size=2, **lengths),
        evaluation=dataclasses.replace(demo.evaluation, **lengths),
    )
    monkeypatch.setitem(presets.PRESETS, "demo", tiny)
    monkeypatch.chdir(tmp_path)

    def run_here(*arguments):
        assert call("txl_tf.__main__", *arguments, "--quiet").status == 0

    monkeypatch.setattr(training, "_run_program", run_here)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", [each.name for each in check.CHECKS if not each.is_apart])
def test_a_cpu_passes_a_check(name):
    result = run(name)
    assert result.details == ""
    assert result.message == SKIPPED.get(name, "")
    assert result.status == ("SKIPPED" if name in SKIPPED else "PASS")


@pytest.mark.slow
def test_a_cpu_passes_the_check_of_replicas_and_those_on_jax():
    """In processes of their own."""
    on_jax = ["device", "numbers", "tf32", "memory", "training", "jit", "resume"]
    for backend, names in {"tensorflow": ["replicas"], "jax": on_jax}.items():
        done = run_program("--json", f"--only={','.join(names)}", KERAS_BACKEND=backend)
        assert done.returncode == 0, done.stdout
        report = json.loads(done.stdout)
        assert report["backend"] == backend
        found = {each["name"]: each["status"] for each in report["checks"]}
        skipped = {"tf32": "SKIPPED", "jit": "SKIPPED"}
        assert found == {name: skipped.get(name, "PASS") for name in names}


def test_a_failure_has_status_1_and_its_reason_is_in_the_report(monkeypatch, capsys):
    failed = Result("memory", "FAIL", 1.0, {"bytes": 0.5}, "the memory is lost", "a traceback")
    monkeypatch.setattr(check, "run_checks", lambda *_: iter([failed]))
    assert check.main(["check"]) == 1
    assert capsys.readouterr().out == (
        "FAIL     memory           the memory is lost: bytes 0.5 (1 s)\n"
    )
    assert check.main(["check", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["checks"]
    assert found["details"] == "a traceback"


@pytest.mark.slow
def test_a_check_that_crashes_or_hangs_does_not_end_the_others():
    checks = [Check(os.abort, 60), Check(signal.pause, 0.1), Check(os.times, 60)]
    crashed, late, _ = results = list(run_checks(checks))
    assert [result.status for result in results] == ["FAIL", "FAIL", "PASS"]
    assert crashed.message == "its process ended with status -6"
    assert late.message.startswith("it took more than ")


def test_a_mask_that_shows_a_later_token_is_named(monkeypatch):
    def make_mask(tgt_len, mem_len, **_):
        return np.tri(tgt_len, mem_len + tgt_len, mem_len + 1, dtype=bool)

    monkeypatch.setattr("txl_tf.models.transformer_xl.make_attention_mask", make_mask)
    result = run("numbers")
    assert result.status == "FAIL"
    assert "mask" in result.message


def test_a_wrong_gradient_is_named(monkeypatch):
    take_gradients = step.take_gradients

    def scale(*arguments):
        gradients = take_gradients(*arguments)
        return [gradients[0] * 1.01, *gradients[1:]]

    monkeypatch.setattr(step, "take_gradients", scale)
    result = run("numbers")
    assert result.status == "FAIL"
    assert "the gradient of " in result.message


def test_a_lost_memory_is_named(monkeypatch):
    update = memory_layer.update_memory
    monkeypatch.setattr(
        "txl_tf.models.transformer_xl.update_memory", lambda *inputs: 0 * update(*inputs)
    )
    result = run("memory")
    assert result.status == "FAIL"
    assert "the memory is lost or wrong" in result.message


def test_products_in_tf32_are_named(monkeypatch):
    def round_to_tf32(matrix):
        return (matrix.view(np.uint32) & 0xFFFFE000).view(np.float32)

    monkeypatch.setattr(
        numbers, "_multiply", lambda left, right, _: round_to_tf32(left) @ round_to_tf32(right)
    )
    result = run("products")
    assert result.status == "FAIL"
    assert "is TF32 on?" in result.message


def test_a_step_that_compiles_twice_is_named(monkeypatch):
    run_call = Trainer.run

    def run_padded(self, segments):  # each call has another shape
        return run_call(self, segments, Pace(0, [10 + self.step], math.inf))

    monkeypatch.setattr(Trainer, "run", run_padded)
    result = run("training")
    assert result.status == "FAIL"
    assert "the step is compiled again" in result.message


def test_a_program_that_fails_is_named_with_its_last_line():
    with pytest.raises(CheckFailedError, match=r"^txl inspect ended with 1: .*`none` holds no rec"):
        training._run_program("inspect", "none")  # noqa: SLF001  users see it when `resume` fails


def test_resuming_is_checked_on_the_first_gpu(monkeypatch):
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{n}", "GPU") for n in range(3)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    seen = []

    def note(*arguments):
        seen.append(arguments)
        raise CheckFailedError("", {})

    monkeypatch.setattr(training, "_run_program", note)
    with pytest.raises(CheckFailedError):
        training._resume_by_program()  # noqa: SLF001
    assert "--num_gpus=1" in seen[0]


def test_resuming_that_needs_deterministic_operations_names_what_differs(monkeypatch):
    monkeypatch.setattr(training, "_resume_by_program", lambda *more: [] if more else ["weights/0"])
    result = run("resume")
    assert result.status == "PASS"
    assert result.figures["without"] == "1 variables differ, such as weights/0"
    monkeypatch.setattr(training, "_resume_by_program", lambda *_: ["weights/0"])
    assert run("resume").status == "FAIL"
