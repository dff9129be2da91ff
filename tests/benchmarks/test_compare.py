import json
import sys

import pytest

from benchmarks import compare, train_step
from benchmarks.compare import Way, Work, measure, measure_peer
from benchmarks.works import Shape
from txl_tf.errors import UserError

SMALL = Shape(1, 8, 2, 8, 5, 6, 2, 23)
WORKS = {
    "train": Work("train", SMALL),
    "eval": Work("eval", SMALL),
    "generate": Work("generate", SMALL._replace(tgt_len=1, batch_size=1)),
}
PEER = """
import sys
assert sys.argv[1:3] == ["--seconds", "0.0"]
print(f"old {sys.argv[3]}: median 2.0, best 3.0 tokens/s")
"""


@pytest.fixture
def peer(tmp_path):
    path = tmp_path / "peer.py"
    path.write_text(PEER)
    return f"{sys.executable} {path}"


@pytest.fixture
def small(monkeypatch):
    """Small works, measured in this process, on a machine whose peaks are known."""
    monkeypatch.setattr(compare, "WORKS", WORKS)
    monkeypatch.setattr(compare, "measure_apart", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(compare, "measure_peak", lambda dtype: {"float32": 2e9}.get(dtype, 6e9))
    monkeypatch.setattr(compare, "measure_bandwidth", lambda: 3e9)


def test_every_work_is_measured_in_every_way_and_beside_the_peers(
    peer, small, monkeypatch, capsys, tmp_path
):
    peers = tmp_path / "peers.txt"
    peers.write_text(f"hub train:{SMALL.spec}: median 4.0, best 4.0 tokens/s\n")
    monkeypatch.setattr(compare, "measure", lambda work, way, seconds: 3.0 + len(way.jit))
    arguments = ["--seconds=0", "--rounds=1", "--works=train,eval,generate", "--peer", peer]
    files = ["--peers", str(peers), "--json", str(tmp_path / "found.json")]
    assert compare.main(["compare", *arguments, *files]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["machine"] == {
        "float32_flops_per_second": 2e9,
        "bfloat16_flops_per_second": 6e9,
        "copied_bytes_per_second": 3e9,
    }
    for name, work in WORKS.items():
        record = found["works"][name]
        assert record["spec"] == work.spec
        modes = ["whole", "none"] if name == "generate" else ["whole", "chains", "none"]
        precisions = compare.PRECISIONS[:2] if name == "train" else compare.PRECISIONS
        ways = [Way(precision, jit) for precision in precisions for jit in modes]
        assert record["ours"] == {str(way): 3.0 + len(way.jit) for way in ways}
    assert found["works"]["train"]["peers"] == {"hub": 4.0, "old": 2.0}
    assert found["works"]["eval"]["peers"] == {"old": 2.0}
    assert "8.0 tokens/s  2.00 x hub, 4.00 x old" in capsys.readouterr().out


def test_an_interrupted_comparison_keeps_every_finished_work(small, monkeypatch, capsys, tmp_path):
    path = tmp_path / "found.json"
    written = []

    def measure_or_stop(work, way, seconds):
        written.append(json.loads(path.read_text())["works"] if path.exists() else {})
        if len(written) == 4:
            raise KeyboardInterrupt
        return float(len(written))

    monkeypatch.setattr(compare, "measure", measure_or_stop)
    arguments = ["--rounds=3", "--works=train,eval", "--precisions=float32", "--jit=whole,none"]
    assert compare.main(["compare", *arguments, "--json", str(path)]) == 130
    assert [{name: len(work["rounds"]) for name, work in works.items()} for works in written] == [
        *[{}] * 2,  # while the first work is measured in two ways
        *[{"train": 2}] * 2,
    ]
    out, err = capsys.readouterr()
    assert "float32, jit none               2.0 tokens/s\neval " in out
    assert out.endswith(f"  float32, jit whole              3.0 tokens/s\nWrote {path}\n")
    assert err.endswith("round 1, train: measured\ncompare: interrupted\n")
    works = json.loads(path.read_text())["works"]
    assert works["train"]["ours"] == {"float32, jit whole": 1.0, "float32, jit none": 2.0}
    assert works["eval"]["ours"] == {"float32, jit whole": 3.0}
    assert list(tmp_path.iterdir()) == [path]


def test_a_comparison_that_measured_nothing_writes_nothing(small, monkeypatch, capsys, tmp_path):
    path = tmp_path / "found.json"
    path.write_text("of yesterday")
    arguments = ["--works=train", "--peer=/no/such/program", "--json", str(path)]
    assert compare.main(["compare", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "compare: `/no/such/program` cannot be run: No such file or directory\n"
    assert path.read_text() == "of yesterday"


@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "bfloat16") for name in WORKS), ("generate", "int8")]
)
def test_a_work_is_measured_in_other_precisions(name, precision, monkeypatch):
    monkeypatch.setattr(train_step, "CALL_SECONDS", 0.01)
    monkeypatch.setattr(train_step, "N_IDS", 5000)
    monkeypatch.setattr(train_step, "measure_peak", lambda: 1.0)
    assert measure(WORKS[name], Way(precision, jit="none"), 0.0) > 0


def test_a_peer_that_fails_is_named_with_its_last_line(tmp_path):
    path = tmp_path / "peer.py"
    path.write_text("raise SystemExit('no such work')")
    with pytest.raises(UserError, match=r"peer\.py .* printed no speed: no such work"):
        measure_peer(f"{sys.executable} {path}", WORKS["eval"], 0.0)
    with pytest.raises(UserError, match="`/no/such/program` cannot be run: No such file"):
        measure_peer("/no/such/program", WORKS["eval"], 0.0)
