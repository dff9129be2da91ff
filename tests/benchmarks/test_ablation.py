import json

import numpy as np
import pytest

from benchmarks import ablation
from benchmarks.ablation import VARIANTS, Variant
from txl_tf.data import open_records

TINY = ["--n_layer=1", "--d_model=8", "--d_embed=8"]


@pytest.mark.slow
def test_a_small_set_is_trained_measured_and_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ablation, "SIZES", (*TINY, "--n_head=1", "--d_head=8", "--d_inner=8"))
    monkeypatch.setattr(ablation, "LSTM_SIZES", ("--model_type=lstm", *TINY))
    monkeypatch.setattr(ablation, "LENGTHS", (32, 64))
    names = ["relative-memory-full", "LSTM-memory-full", "learned-segments-half-lines"]
    monkeypatch.setitem(VARIANTS, names[2], Variant(False, "learned", "half", "lines", 31.16))
    arguments = [f"--variants={','.join(names)}", f"--work_dir={tmp_path}", "--steps=20"]
    arguments += ["--quick", "--eval_tokens=999", "--positions=3", "--max_context=64"]
    assert ablation.main(["ablation", *arguments]) == 0
    found = json.loads((tmp_path / "ablation.json").read_text())
    assert list(found["scores"]) == names
    for name in names:
        scores = found["scores"][name]["0"]
        assert all(4 < bits < 9 for bits in scores["bits"])  # before anything is learned
        assert scores["lengths"] == {names[0]: [32, 64], names[1]: [0], names[2]: [64]}[name]
    groups = found["recl"]["0"]
    assert list(groups["Transformer-XL and LSTM"]) == names[:2]
    out = capsys.readouterr().out
    assert "| yes | relative | full | text |" in out
    assert "| no | learned | half | lines |" in out
    assert (tmp_path / "ablation.png").stat().st_size > 10_000

    text, lines = (
        open_records(tmp_path / f"data-{name}").split("test") for name in ("text", "lines")
    )
    ids, shuffled = text.read(0, len(text)), lines.read(0, len(lines))
    assert (ids != shuffled).any()
    np.testing.assert_array_equal(np.sort(ids), np.sort(shuffled))
