import json

import pytest

from benchmarks import off_python
from benchmarks.works import Shape


def test_files_are_measured_beside_our_own_loop(monkeypatch, tmp_path, capsys):
    def measure(function, *arguments):
        if function is off_python.export_model:
            return 3_000_000
        return {"best": 500.0, "median": 400.0}

    monkeypatch.setattr(off_python, "measure_apart", measure)
    target = tmp_path / "found.json"
    arguments = ["--shapes=bytes", "--threads=1,2", f"--json={target}"]
    assert off_python.main(["off_python", *arguments]) == 0
    (records,) = json.loads(target.read_text()).values()
    methods = [record["method"] for record in records]
    assert [methods.count(name) for name in ("own loop", "litert", "onnx")] == [2, 6, 6]
    assert "litert    int8            2    3.00          500      400" in capsys.readouterr().out


@pytest.mark.slow
def test_our_own_loop_draws_at_a_speed():
    shape = Shape(1, 6, 3, 7, 1, 11, 1, 13)
    speed = off_python.measure_own(shape, "float32", 64)
    assert speed["best"] >= speed["median"] > 0
