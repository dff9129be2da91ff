import json

import pytest

from benchmarks import speculation
from benchmarks.compare import Work
from benchmarks.works import Shape


def run(monkeypatch, tmp_path, *arguments):
    monkeypatch.setattr(speculation, "measure_apart", lambda function, *rest: function(*rest))
    target = tmp_path / "found.json"
    arguments = ["speculation", "--draft_lens=3", "--tokens=40", f"--json={target}", *arguments]
    return speculation.main(arguments), target


@pytest.mark.slow
def test_a_model_is_measured_with_and_without_drafts(monkeypatch, tmp_path):
    work = Work("generate", Shape(1, 6, 3, 7, 1, 11, 1, 13))
    monkeypatch.setitem(speculation.WORKS, "generate-bytes", work)
    status, target = run(monkeypatch, tmp_path, "--works=generate-bytes")
    assert status == 0
    (rows,) = json.loads(target.read_text()).values()
    assert [(row["text"], row["draft_len"]) for row in rows] == [
        *[("greedy", 0), ("greedy", 3)],
        *[("sampled", 0), ("sampled", 3)],
    ]
    assert rows[0]["tokens_per_pass"] == 1 < rows[1]["tokens_per_pass"] <= 4
    assert all(row["same_text"] and row["tokens_per_second"] > 0 for row in rows)
