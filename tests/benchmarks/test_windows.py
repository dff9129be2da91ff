import json

import pytest

from benchmarks import windows
from benchmarks.inference_costs import count_bytes_per_token, count_flops_per_token
from benchmarks.works import Shape

SMALL = Shape(2, 6, 3, 7, 5, 11, 2, 13)
ONE_TOKEN = SMALL._replace(n_layer=1, tgt_len=1, batch_size=1)


def test_the_operations_of_a_token_are_those_counted_by_hand():
    # q, k, v and output 2*6*24; three products with 16 keys 3*2*16*6; feed-forward 2*2*6*7.
    layer = 288 + 576 + 168
    assert count_flops_per_token(SMALL) == 2 * layer + 2 * 6 * 13


def test_the_bytes_of_a_token_are_those_counted_by_hand():
    weights = 2 * (4 * 6 * 6 + 2 * 6 * 7) + 6 * 13
    states = 2 * 16 * 6 * (1 + 2 + 2)  # positions; keys and values of two rows
    assert count_bytes_per_token(SMALL) == 4 * (weights + states) / 10
    assert count_bytes_per_token(SMALL, "bfloat16") == 2 * (weights + states) / 10


def test_generation_keeps_float32_keys_beside_bfloat16_kernels():
    weights = 4 * 6 * 6 + 2 * 6 * 7 + 6 * 13
    states = 12 * 6 * (1 + 2)
    assert count_bytes_per_token(ONE_TOKEN, "bfloat16") == 2 * weights + 4 * states


@pytest.mark.slow
def test_windows_are_compared_at_each_length_and_drawn(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(windows, "SHAPE", SMALL._replace(batch_size=1))
    monkeypatch.setattr(windows, "PAPER", {7: 1, 11: 2})
    monkeypatch.setattr(windows, "DRAWN", ONE_TOKEN)
    json_path, plot_path = tmp_path / "found.json", tmp_path / "speed.png"
    flag_texts = ("--seconds=0", "--tokens=70", f"--json={json_path}", f"--plot={plot_path}")
    assert windows.main(["windows", *flag_texts]) == 0
    found = json.loads(json_path.read_text())
    assert [record["attention_length"] for record in found["windows"]] == [7, 11]
    for record in found["windows"]:
        speeds = record["tokens_per_second"]
        ratio = speeds["cached"]["median"] / speeds["windows"]["median"]
        assert record["ratio"] == pytest.approx(ratio)
    assert plot_path.read_bytes().startswith(b"\x89PNG")
    assert f"took {found['last_over_first']:.2f} times as long" in capsys.readouterr().out
