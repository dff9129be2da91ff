import json

import pytest

from benchmarks import inference, windows
from benchmarks.inference_costs import count_bytes_per_token, count_flops_per_token
from benchmarks.works import Shape

SMALL = Shape(2, 6, 3, 7, 5, 11, 2, 13)
READ = SMALL._replace(n_layer=1)
ONE_TOKEN = READ._replace(tgt_len=1, batch_size=1)


def test_the_operations_of_a_token_are_those_counted_by_hand():
    # q, k, v and output 2*6*24; three products with 16 keys 3*2*16*6; feed-forward 2*2*6*7.
    layer = 288 + 576 + 168
    assert count_flops_per_token(SMALL, cached=True) == 2 * layer + 2 * 6 * 13


def test_the_bytes_of_a_token_are_those_counted_by_hand():
    weights = 2 * (4 * 6 * 6 + 2 * 6 * 7) + 6 * 13
    states = 2 * 16 * 6 * (1 + 2 + 2)  # positions; keys and values of two rows
    assert count_bytes_per_token(SMALL) == 4 * (weights + states) / 10


@pytest.fixture
def run_small(monkeypatch, tmp_path):
    """Runs the program on tiny models; returns what it wrote."""
    works = {"read": READ._replace(cutoffs=(4, 7)), "draw": ONE_TOKEN}
    monkeypatch.setattr(inference, "WORKS", works)
    monkeypatch.setattr(inference, "CURVE", ONE_TOKEN)
    monkeypatch.setattr(inference, "PROMPT_LENS", (1, 67))
    monkeypatch.setattr(inference, "measure_peak", lambda: 1e9)
    monkeypatch.setattr(inference, "measure_bandwidth", lambda: 1e9)

    def run(*flag_texts):
        target = tmp_path / "found.json"
        flag_texts = ("--seconds=0", f"--json={target}", *flag_texts)
        assert inference.main(["inference", *flag_texts]) == 0
        return json.loads(target.read_text())

    return run


@pytest.mark.slow
def test_all_that_was_measured_is_in_the_file(run_small):
    found = run_small("--works=read,draw", "--curve_tokens=70")
    methods = {name: [r["method"] for r in records] for name, records in found["works"].items()}
    modes = ["jit whole", "jit chains", "jit none"]
    hidden, cached = ([f"{name}, {mode}" for mode in modes] for name in ("hidden states", "cached"))
    assert methods == {
        "read": [*hidden, *cached, "texts, jit auto"],
        "draw": [*hidden, "token loop, jit whole", "token loop, jit none"],
    }
    assert found["curve"]["tokens"] == [32, 64, 70]
    assert len(found["curve"]["ms_per_token"]) == 3
    assert list(found["curve"]["by_prompt_length"]) == ["1", "67"]


@pytest.mark.slow
def test_windows_are_compared_at_each_length_and_drawn(run_small, monkeypatch, tmp_path):
    def measure(seconds):
        return windows.measure_windows(seconds, SMALL._replace(batch_size=1), (7, 11))

    monkeypatch.setattr(inference, "measure_windows", measure)
    found = run_small("--compare=windows", f"--plot={tmp_path / 'speed.png'}")["windows"]
    assert [record["attention_length"] for record in found] == [7, 11]
    for record in found:
        speeds = record["tokens_per_second"]
        ratio = speeds["cached"]["median"] / speeds["windows"]["median"]
        assert record["ratio"] == pytest.approx(ratio)
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")
