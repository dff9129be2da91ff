import json

import pytest

from benchmarks import scaling
from benchmarks.inference_costs import count_flops_per_token
from benchmarks.works import SHAPES, Shape

SMALL = Shape(1, 8, 2, 8, 5, 6, 2, 23)
BASES = {
    "train": SMALL,
    "evaluate": SMALL,
    "generate": SMALL._replace(tgt_len=1, batch_size=1),
}


@pytest.fixture
def small(monkeypatch):
    """Small works, measured in this process, on a machine whose peaks are known."""
    axes = {
        "batch_size": {"train": (1, 3)},
        "cut_n_token": {"generate": (20, 40), "evaluate": (20, 40)},
    }
    for name, values in axes.items():
        monkeypatch.setitem(scaling.AXES, name, scaling.AXES[name]._replace(values=values))
    monkeypatch.setattr(scaling, "BASES", BASES)
    monkeypatch.setattr(scaling, "measure_apart", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(scaling, "measure_machine", lambda: {"float32_flops_per_second": 2e9})


@pytest.mark.parametrize(
    ("text_len", "tgt_len", "mem_len", "n_read"),
    [(8, 8, 0, 8), (60, 64, 0, 64), (100, 128, 0, 128), (300, 64, 640, 320)],
)
def test_scored_texts_are_read_in_the_cheaper_way(text_len, tgt_len, mem_len, n_read):
    shape = SHAPES["bytes"]._replace(tgt_len=64, mem_len=640, batch_size=16)
    read = shape._replace(tgt_len=tgt_len, mem_len=mem_len)
    expected = count_flops_per_token(read) * n_read / text_len
    assert scaling.count_cost("score", shape, text_len) == pytest.approx(expected)


@pytest.mark.slow
def test_each_axis_is_measured_for_its_works_and_drawn(small, tmp_path):
    arguments = ["scaling", f"--out={tmp_path}", "--seconds=0"]
    assert scaling.main([*arguments, "--axes=cut_n_token"]) == 0
    assert scaling.main([*arguments, "--axes=batch_size"]) == 0
    found = json.loads((tmp_path / "scaling.json").read_text())
    works = {name: [series["work"] for series in axis["series"]] for name, axis in found.items()}
    assert works == {"batch_size": ["train"], "cut_n_token": ["generate", "evaluate"]}
    for axis in found.values():
        assert axis["machine"] == {"float32_flops_per_second": 2e9}
        for series in axis["series"]:
            assert len(series["values"]) == len(series["tokens_per_second"]) == 2
            assert min(series["tokens_per_second"]) > 0
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
