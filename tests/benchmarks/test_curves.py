import json

import numpy as np
import pytest

from benchmarks import curves


@pytest.mark.slow
def test_precisions_are_compared(tmp_path, monkeypatch, capsys):
    tiny = ["--n_layer=1", "--d_model=8", "--d_embed=8", "--n_head=1", "--d_head=8", "--d_inner=8"]
    tiny += ["--warmup_steps=1", "--eval_mem_len=0", "--eval_same_length=false", "--jit=none"]
    for name, (n_processes, flag_texts) in curves.VARIANTS["precision"].items():
        variant = n_processes, [*flag_texts, *tiny]
        monkeypatch.setitem(curves.VARIANTS["precision"], name, variant)
    target = tmp_path / "found.json"
    flag_texts = ["--compare=precision", "--variants=float32,bfloat16", "--steps=2"]
    flag_texts += ["--seeds=0", "--score_in=float32,bfloat16", f"--json={target}"]
    assert curves.main(["curves", *flag_texts]) == 0
    found = {record["variant"]: record for record in json.loads(target.read_text())}
    assert list(found) == ["float32", "bfloat16"]
    for record in found.values():
        assert record["seed"] == "0"
        assert 3 < record["losses"][0] < 7  # of 256 byte values, before anything is learned
        assert record["bits"]["bfloat16"] == pytest.approx(record["bits"]["float32"], abs=0.02)
    mean = np.mean(found["bfloat16"]["losses"])
    assert f"| bfloat16 | 0 | {mean:.4f} |" in capsys.readouterr().out
