import json
import sys

import pytest

from benchmarks import compare, train_step
from benchmarks import works as workloads
from benchmarks.compare import list_ways, print_speeds, summarize
from benchmarks.peers.protocol import Shape, Work

SMALL = Shape(1, 8, 2, 8, 5, 6, 2, 23)
WORKS = {
    "train-bytes": Work("train", SMALL._replace(cutoffs=(5, 11))),
    "eval-bytes": Work("eval", SMALL),
    "generate-bytes": Work("generate", SMALL._replace(tgt_len=1, batch_size=1)),
}


@pytest.mark.slow
def test_our_speeds_stand_beside_a_peer_at_each_work(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(compare, "WORKS", WORKS)
    monkeypatch.setattr(compare, "measure_apart", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(train_step, "N_IDS", 5000)
    monkeypatch.setattr(workloads, "MATRIX", 64)
    monkeypatch.setattr(workloads, "COPIED_BYTES", 2**16)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")  # it is set there, too
    peer = tmp_path / "peer.py"
    peer.write_text("import sys; print('other', sys.argv[-1] + ': median 2.5 tokens/s, compiled')")
    flags = [f"--works={','.join(WORKS)}", "--rounds=1", "--seconds=0", "--jit=none"]
    flags += ["--precisions=int8,float32", f"--json={tmp_path / 'found.json'}"]
    assert compare.main(["compare", *flags, f"--peer={sys.executable} {peer}"]) == 0
    works = json.loads((tmp_path / "found.json").read_text())["works"]
    assert {name: list(work["ours"]) for name, work in works.items()} == {
        "train-bytes": ["float32, jit none"],
        "eval-bytes": ["int8, jit none", "float32, jit none"],
        "generate-bytes": ["int8, jit whole", "float32, jit whole"],
    }
    assert all(speed > 0 for work in works.values() for speed in work["ours"].values())
    assert all(work["peers"] == {"other, compiled": 2.5} for work in works.values())
    assert "| work | other, compiled | float32, not compiled |" in capsys.readouterr().out


def test_each_column_says_whether_it_is_compiled(capsys):
    work = compare.WORKS["train-bytes"]
    ways = map(str, list_ways("train", ["float32", "int8"], ["whole", "chains", "none"]))
    found = dict(zip(ways, ([300.0], [400.0], [100.0]), strict=True))
    record = summarize(work, {"old": [10.0], "2019, not compiled": [200.0, 50.0, 40.0]} | found)
    machine = {
        "float32_flops_per_second": 1e12,
        "bfloat16_flops_per_second": 2e12,
        "copied_bytes_per_second": 3e9,
    }
    print_speeds(machine, {"train-bytes": record})
    table = capsys.readouterr().out
    columns = "old | 2019, not compiled | float32, compiled | float32, not compiled | times old"
    assert f"| work | {columns} |" in table
    assert "| 10.0 | 50.0 | 400 `chains` | 100 `none` | 40.0, 10.0 |" in table


@pytest.mark.parametrize(
    ("program", "reason"), [("print(3)", "it printed nothing"), ("1 / 0", "division by zero")]
)
def test_a_peer_without_a_speed_is_an_error(program, reason, capsys):
    peer = f'{sys.executable} -c "{program}"'
    flags = ["--works=train-bytes", f"--peer={peer}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "measure_apart", lambda *_: {})
        assert compare.main(["compare", *flags]) == 1
    assert reason in capsys.readouterr().err
