"""The comparison of optimizers."""

import json

import pytest

from benchmarks import curves, optimizers
from benchmarks.flag_texts import keep_last
from benchmarks.optimizer_results import Found, Run, print_settings


def call(*flags):
    return curves.main(["curves", *keep_last(flags)])


def test_without_adam_the_settings_are_timed_to_the_last_one(capsys):
    found = {
        name: Found({}, 1e-3, {"1": Run([], [(10, 3.0), (20, bits)], 100.0)})
        for name, bits in (("recommended", 1.0), ("release", 2.0))
    }
    print_settings(found)
    table = capsys.readouterr().out
    assert "| step with the last loss of release |" in table
    assert "| recommended | 0.001 | 1.0000 | 1.0000 to 1.0000 | 15 |" in table


@pytest.mark.slow
def test_a_tiny_comparison_trains_and_scores(tmp_path, capsys):
    text = tmp_path / "text"
    text.write_text("some words of a text that is read again\n" * 100)
    flags = ["--compare=optimizers", f"--work_dir={tmp_path / 'work'}", "--steps=2", "--seeds=1"]
    flags += [f"--train_text={text}", f"--valid_text={text}", "--valid_bytes=1000"]
    flags += ["--n_layer=1", "--d_model=8", "--n_head=2", "--tgt_len=5", "--lanes=3"]
    experiment = []

    def measure(self, name, tuning_seed, seeds):
        experiment.append(self)
        run = self.train(name, 1e-3, "1")
        return Found({1e-3: run.bits}, 1e-3, {"1": run})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizers.Experiment, "measure", measure)
        assert call(*flags, "--variants=muon-mean") == 0
    record = json.loads((tmp_path / "work" / "optimizers.json").read_text())["settings"]
    steps, bits = record["muon-mean"]["curve"]
    assert steps == [1, 2]
    assert all(3 < value < 10 for value in bits)  # of 256 byte values, before much is learned
    assert not (tmp_path / "work" / "run").exists()
