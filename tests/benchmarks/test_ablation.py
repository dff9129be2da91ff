import json

import numpy as np
import pytest

from benchmarks import ablation
from benchmarks.ablation import VARIANTS, Outcome, Variant
from txl_tf.data import open_records

pytestmark = pytest.mark.slow

TINY = ["--n_layer=1", "--d_model=8", "--d_embed=8"]


def test_every_variant_of_a_table_has_a_name_of_its_own():
    assert len(VARIANTS) == len(ablation.TABLE_6) + len(ablation.TABLE_7)
    for names in ablation.GROUPS.values():
        assert set(names) <= set(VARIANTS)


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


def test_lengths_are_the_shortest_with_the_fewest_bits():
    found = Outcome([16, 32, 64, 128], [2.5, 2.4001, 2.3999, 2.41], 64)
    assert (found.first, found.best, found.best_length) == (2.3999, 2.3999, 32)


def test_models_are_compared_within_their_groups():
    contexts = [32, 64, 96]
    improving, flat = (np.array(rows)[:, None] * np.ones(5) for rows in ([2, 1, 0.5], [2, 2, 2]))
    losses = {"relative-memory-full": improving, "LSTM-memory-full": flat}
    found = ablation.find_relative_lengths(losses, contexts)["Transformer-XL and LSTM"]
    assert found == {"relative-memory-full": [96] * 3, "LSTM-memory-full": [32] * 3}


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_row_names_mean_and_range_of_the_seeds(seeds):
    by_seed = {str(seed): Outcome([64], [2 + seed / 10], 64) for seed in range(seeds)}
    row = ablation.format_scores({"shaw-memory-full": by_seed})[-1]
    bits = "2.000" if seeds == 1 else "2.050 (2.000 to 2.100)"
    assert (
        row
        == f"| yes | shaw | full | text | {bits} | {bits} | {', '.join(['64'] * seeds)} | 27.94 |"
    )


def test_what_was_measured_is_not_measured_again(tmp_path):
    path, made = tmp_path / "kept.json", Outcome([64, 128], [2.5, 2.4], 64)
    assert ablation.keep_outcome(path, lambda: made) == made
    assert ablation.keep_outcome(path, lambda: pytest.fail("it is kept")) == made
