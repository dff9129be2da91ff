import json
import sys

import pytest

from benchmarks import compare, train_step
from benchmarks.compare import Way, Work, measure
from benchmarks.works import Shape

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"), [("train", "bfloat16"), ("eval", "float32"), ("generate", "int8")]
)
def test_a_work_is_measured_in_a_precision(name, precision, monkeypatch):
    monkeypatch.setattr(train_step, "CALL_SECONDS", 0.01)
    monkeypatch.setattr(train_step, "N_IDS", 5000)
    monkeypatch.setattr(train_step, "measure_peak", lambda: 1.0)
    assert measure(WORKS[name], Way(precision, jit="none"), 0.0) > 0
