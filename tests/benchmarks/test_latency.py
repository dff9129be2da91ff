import contextlib
import importlib
import io
import json
import sys

import pytest
from called_programs import call

from benchmarks import latency
from txl_tf.errors import UserError


def test_a_program_is_timed_until_its_output_is_there():
    command = [sys.executable, "-c", "print('begun', flush=True); input()"]
    assert 0 < latency.time_output(command, "begun") < 60


def test_a_program_that_ends_before_is_an_error():
    with pytest.raises(UserError, match="ended too early: other"):
        latency.time_output([sys.executable, "-c", "print('other')"], "begun")


class Output(io.StringIO):
    """Interrupts a program that has printed a text."""

    def __init__(self, awaited):
        super().__init__()
        self.awaited = awaited

    def write(self, text):
        super().write(text)
        if self.awaited in self.getvalue():
            raise KeyboardInterrupt


def run_until(command, awaited):
    """Runs a program of the package in this process until it has printed a text."""
    if "txl_tf" in command:
        name, *arguments = command[3:]
        program = importlib.import_module(f"txl_tf.programs.{name}")
        with contextlib.redirect_stdout(Output(awaited)) as output:
            program.main([name, *arguments])
        assert awaited in output.getvalue()
    return 1.0


@pytest.mark.slow
def test_all_parts_are_measured_and_written(monkeypatch, tmp_path):
    monkeypatch.setattr(latency, "measure_apart", lambda function, *arguments: function(*arguments))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        latency, "run_python", lambda _, *flags: call("txl_tf.programs.prepare", *flags)
    )
    monkeypatch.setattr(latency, "time_output", run_until)
    monkeypatch.setattr(latency, "PROMPT_LENS", (3,))
    monkeypatch.setattr(latency, "N_TEXTS", 5)
    target = tmp_path / "found.json"
    assert latency.main(["latency", "--repetitions=1", f"--json={target}"]) == 0
    found = json.loads(target.read_text())
    assert found["preset"] == "demo"
    programs = found["programs"]
    assert {"txl generate, first token", "txl train, first step"} <= set(programs)
    assert all(len(durations) == 1 and durations[0] > 0 for durations in programs.values())
    assert set(found["prompts"]["3"]) == {"cold", "warm"}
    assert 5 * 25 <= found["texts"]["bytes"] <= 5 * 75
    assert list(found["texts"]["seconds"])[:2] == ["cold", "warm"]
    assert len(found["texts"]["seconds"]) == 3
