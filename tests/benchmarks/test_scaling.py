import json

import pytest

from benchmarks import scaling
from benchmarks.inference_costs import count_bytes_per_token, count_flops_per_token
from benchmarks.works import Shape

pytestmark = pytest.mark.slow

SMALL = Shape(1, 8, 2, 8, 5, 6, 2, 23)
BASES = {
    "train": SMALL,
    "evaluate": SMALL,
    "generate": SMALL._replace(tgt_len=1, batch_size=1),
    "score": SMALL._replace(tgt_len=32),
}


@pytest.fixture
def small(monkeypatch):
    """Small works, measured in this process, on a machine whose peaks are known."""
    axes = {
        "batch_size": dict.fromkeys(("train", "evaluate"), (1, 3)),
        "cut_n_token": {"generate": (20, 40), "evaluate": (20, 40)},
        "text_len": {"generate": (1, 70), "score": (7, 50)},
    }
    for name, values in axes.items():
        monkeypatch.setitem(scaling.AXES, name, scaling.AXES[name]._replace(values=values))
    monkeypatch.setattr(scaling, "BASES", BASES)
    monkeypatch.setattr(scaling, "N_SCORED", 100)
    monkeypatch.setattr(scaling, "measure_apart", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(scaling, "measure_machine", lambda: {"float32_flops_per_second": 2e9})


def test_each_axis_is_measured_for_its_works_and_drawn(small, tmp_path):
    arguments = ["scaling", f"--out={tmp_path}", "--seconds=0"]
    assert scaling.main([*arguments, "--axes=batch_size,cut_n_token"]) == 0
    assert scaling.main([*arguments, "--axes=text_len"]) == 0
    found = json.loads((tmp_path / "scaling.json").read_text())
    works = {name: [series["work"] for series in axis["series"]] for name, axis in found.items()}
    assert works == {
        "batch_size": ["train", "evaluate"],
        "cut_n_token": ["generate", "evaluate"],
        "text_len": ["generate", "score"],
    }
    for axis in found.values():
        assert axis["machine"] == {"float32_flops_per_second": 2e9}
        for series in axis["series"]:
            assert len(series["values"]) == len(series["tokens_per_second"]) == 2
            assert min(series["tokens_per_second"]) > 0
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_a_work_that_is_measured_again_replaces_its_old_line(small, monkeypatch, tmp_path):
    speeds = iter([[2.0, 3.0], [5.0, 7.0], [11.0, 13.0]])
    monkeypatch.setattr(scaling, "measure_series", lambda *arguments: next(speeds))
    arguments = ["scaling", f"--out={tmp_path}", "--axes=cut_n_token"]
    assert scaling.main(arguments) == 0
    assert scaling.main([*arguments, "--works=generate"]) == 0
    found = json.loads((tmp_path / "scaling.json").read_text())["cut_n_token"]["series"]
    assert {series["work"]: series["tokens_per_second"] for series in found} == {
        "generate": [11.0, 13.0],
        "evaluate": [5.0, 7.0],
    }


def test_the_law_of_generation_counts_the_head_of_an_adaptive_softmax():
    shape = scaling.make_shape("generate", "cut_n_token", 2000)
    assert shape.cutoffs == (200, 1000)
    head = shape._replace(n_token=200, cutoffs=())
    assert scaling.count_cost("generate", shape) == count_bytes_per_token(head)


def test_the_law_of_scoring_counts_padding_and_reads_memory_only_for_long_texts():
    shape = scaling.BASES["score"]
    short = shape._replace(tgt_len=32, mem_len=0)
    expected = count_flops_per_token(short, cached=True) * 32 / 20
    assert scaling.count_cost("score", shape, 20) == pytest.approx(expected)
    # 199 inputs are read in four segments of 64.
    expected = count_flops_per_token(shape, cached=True) * 256 / 200
    assert scaling.count_cost("score", shape, 200) == pytest.approx(expected)
