import json

import pytest

from benchmarks import windows
from benchmarks.peers.protocol import Shape

SMALL = Shape(2, 6, 3, 7, 5, 11, 1, 13)


@pytest.mark.slow
def test_windows_are_compared_at_each_length_and_drawn(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(windows, "measure_apart", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(windows, "SHAPE", SMALL._replace(mem_len=0))
    monkeypatch.setattr(windows, "PAPER", {7: 1, 11: 2})
    monkeypatch.setattr(windows, "DRAWN", SMALL)
    json_path, plot_path = tmp_path / "found.json", tmp_path / "speed.png"
    flag_texts = ("--seconds=0", "--tokens=70", f"--json={json_path}", f"--plot={plot_path}")
    assert windows.main(["windows", *flag_texts]) == 0
    found = json.loads(json_path.read_text())
    assert [record["attention_length"] for record in found["windows"]] == [7, 11]
    for record in found["windows"]:
        speeds = record["tokens_per_second"]
        assert record["ratio"] == pytest.approx(speeds["cached"] / speeds["windows"])
    assert plot_path.read_bytes().startswith(b"\x89PNG")
    assert f"took {found['last_over_first']:.2f} times as long" in capsys.readouterr().out
