import json
import sys

import pytest

from benchmarks import latency


def test_a_program_is_timed_until_its_output_is_there():
    command = [sys.executable, "-c", "print('begun', flush=True); input()"]
    assert 0 < latency.time_output(command, lambda text: "begun" in text) < 60


@pytest.mark.slow
def test_all_parts_are_measured_and_written(monkeypatch, tmp_path):
    monkeypatch.setattr(latency, "measure_apart", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(latency, "PROMPT_LENS", (3,))
    monkeypatch.setattr(latency, "N_TEXTS", 5)
    monkeypatch.setattr(latency, "time_output", lambda command, is_reached: 1.0)  # starts nothing
    target = tmp_path / "found.json"
    assert latency.main(["latency", "--repetitions=1", f"--json={target}"]) == 0
    found = json.loads(target.read_text())
    assert found["preset"] == "demo"
    programs = found["programs"]
    assert {"txl generate, first token", "train_gpu.py, first step"} <= set(programs)
    assert all(len(durations) == 1 and durations[0] > 0 for durations in programs.values())
    assert set(found["prompts"]["3"]) == {"cold", "warm"}
    assert found["texts"]["texts"] == 5
    assert 5 * 25 <= found["texts"]["bytes"] <= 5 * 75
    assert list(found["texts"]["seconds"])[:2] == ["cold", "warm"]
    assert len(found["texts"]["seconds"]) == 3
