import json

import numpy as np
import pytest

from benchmarks import curves

pytestmark = pytest.mark.slow


def test_losses_are_averaged_over_the_steps_that_there_are():
    curve = np.arange(250.0)
    assert curves.average(curve).tolist() == [49.5, 149.5, 224.5]
    other = curve + np.repeat([0.0, 3.0], [100, 150])
    assert curves.measure_distance(curve, other) == {"largest": 3.0, "mean": 2.0}


def test_precisions_are_compared_with_each_other_and_with_another_seed(
    tmp_path, monkeypatch, capsys
):
    tiny = ["--n_layer=1", "--d_model=8", "--d_embed=8", "--n_head=1", "--d_head=8", "--d_inner=8"]
    tiny += ["--warmup_steps=1", "--eval_mem_len=0"]
    for name, (n_processes, flag_texts) in curves.VARIANTS["precision"].items():
        variant = n_processes, [*flag_texts, *tiny]
        monkeypatch.setitem(curves.VARIANTS["precision"], name, variant)
    target = tmp_path / "found.json"
    flag_texts = ["--compare=precision", "--variants=float32,bfloat16", "--steps=2"]
    flag_texts += ["--seeds=0,1", "--score_in=float32,bfloat16", f"--json={target}"]
    assert curves.main(["curves", *flag_texts]) == 0
    found = json.loads(target.read_text())
    seeds = ["0", "1"]
    for variant in ("float32", "bfloat16"):
        assert list(found["losses"][variant]) == seeds
        for seed in seeds:
            (loss,) = found["losses"][variant][seed]
            assert 3 < loss < 7  # of 256 byte values, before anything is learned
            scores = found["bits_per_byte"][variant][seed]
            assert scores["bfloat16"] == pytest.approx(scores["float32"], abs=0.02)
    assert list(found["distances_from_the_first_variant"]["bfloat16"]) == seeds
    assert list(found["distances_between_seeds"]) == ["0, 1"]
    assert "between seeds" in capsys.readouterr().out


def test_an_unknown_variant_is_one_line(capsys):
    assert curves.main(["curves", "--compare=replicas", "--variants=8 replicas"]) == 1
    message = "curves: `variants` must be some of 1 replica, 2 replicas, 4 replicas, 2 processes. "
    assert capsys.readouterr().err.startswith(message)
