"""The comparison of optimizers: tuning, times, what is kept, and its flags."""

import json

import numpy as np
import pytest

from benchmarks import curves, optimizers
from benchmarks.flag_texts import keep_last
from benchmarks.optimizer_results import Found, Run, find_step
from txl_tf.config import ModelConfig, TrainConfig
from txl_tf.errors import UserError

pytestmark = pytest.mark.slow


def call(*flags):
    return curves.main(["curves", *keep_last(flags)])


@pytest.mark.parametrize(
    ("best", "rates"),
    [
        (1.0, [0.5, 1, 2]),
        (0.6, [0.25, 0.5, 1, 2]),
        (0.13, [0.0625, 0.125, 0.25, 0.5, 1, 2]),
        (7.9, [0.5, 1, 2, 4, 8, 16]),
    ],
)
def test_a_grid_is_extended_until_the_best_rate_is_at_no_edge(best, rates):
    asked = []

    def measure(rate):
        asked.append(rate)
        return abs(np.log(rate / best))

    tuned = optimizers.tune(measure, start=1.0)
    assert list(tuned) == rates
    assert sorted(asked) == rates


def test_from_rates_that_all_end_a_run_the_grid_goes_down():
    tuned = optimizers.tune(lambda rate: abs(rate - 0.5) if rate < 1 else np.inf, start=8.0)
    assert list(tuned) == [0.25, 0.5, 1, 2, 4, 8, 16]


def test_a_grid_ends_where_nothing_works():
    with pytest.raises(UserError, match=r"no learning rate near 8\.0 is the best"):
        optimizers.tune(lambda rate: np.inf, start=8.0)


@pytest.mark.parametrize(
    ("bits", "step"), [(9.0, 10), (5.0, 10), (4.0, 15), (2.0, 30), (2.5, 25), (1.0, None)]
)
def test_the_step_of_a_loss_lies_on_the_curve(bits, step):
    curve = np.array([10.0, 20.0, 30.0]), np.array([5.0, 3.0, 2.0])
    assert find_step(curve, bits) == step


def parse(flag_text):
    """Returns the name of a flag of the training program, and its value; of the model `None`."""
    name, _, value = flag_text.removeprefix("--").partition("=")
    if hasattr(ModelConfig(n_token=256), name):
        return name, None
    kind = type(getattr(TrainConfig(), name))
    return name, kind(value)


@pytest.mark.parametrize("steps", [15, 60, 1500])
@pytest.mark.parametrize("name", optimizers.SETTINGS)
def test_all_settings_are_configs(name, steps):
    parsed = map(parse, optimizers.SETTINGS[name].list_flags(1e-3, steps))
    fields = {name: value for name, value in parsed if value is not None}
    warmup_steps = round(optimizers.WARMUP_SHARE * steps)
    config = TrainConfig(train_steps=steps, warmup_steps=warmup_steps, **fields)
    assert config.learning_rate == 1e-3


def make_run(name, rate, seed):
    """What is measured of a run: the best rate of Muon is 8e-3, and of the others 1e-3."""
    best = 8e-3 if name.startswith("muon") else 1e-3
    last = 2.0 + abs(np.log2(rate / best)) + 0.01 * int(seed) - 0.5 * name.startswith("muon")
    return Run([name, str(rate), seed], [(50, last + 1), (100, last)], 1e3)


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Stands for the training; returns the runs that were made, and the flags of a call."""
    made = []

    def train(self, flag_texts):
        name = "muon" if "--optimizer=muon" in flag_texts else "adam"
        values = dict(text.removeprefix("--").partition("=")[::2] for text in flag_texts)
        run = make_run(name, float(values["learning_rate"]), values["seed"])
        made.append(run)
        return run._replace(flags=flag_texts)

    monkeypatch.setattr(optimizers.Experiment, "_train", train)
    text = tmp_path / "text"
    text.write_text("a text\n" * 300)
    flags = ["--compare=optimizers", f"--work_dir={tmp_path / 'work'}", "--steps=100"]
    flags += [f"--train_text={text}", f"--valid_text={text}", "--valid_bytes=1000"]
    return made, [*flags, "--variants=adam-cosine,muon-linear", "--seeds=1,3"]


def test_the_table_is_of_the_seeds_that_did_not_choose_the_rates(trained, tmp_path, capsys):
    _, flags = trained
    assert call(*flags, f"--output={tmp_path / 'curves.png'}") == 0
    record = json.loads((tmp_path / "work" / "optimizers.json").read_text())["settings"]
    assert record["adam-cosine"]["bits"] == pytest.approx({"1": 2.01, "3": 2.03})
    assert record["muon-linear"]["bits"] == pytest.approx({"1": 1.51, "3": 1.53})
    assert record["muon-linear"]["rate"] == 8e-3
    # From 2.52 at step 50 to 1.52 at 100; Adam ends at 2.02.
    assert record["muon-linear"]["step_of_the_last_loss_of_adam"] == pytest.approx(75)
    out = capsys.readouterr().out
    assert "| muon-linear | 0.008 | 1.5200 | 1.5100 to 1.5300 | 75 | 1,000 |\n" in out
    assert (tmp_path / "curves.png").exists()


def test_a_recipe_is_not_tuned_and_its_flags_come_first(trained, tmp_path):
    made, flags = trained
    assert call(*flags, "--variants=recommended", "--init_std=0.3") == 0
    assert [run.flags[1:] for run in made] == [["0.004", "1"], ["0.004", "3"]]
    (path,) = (tmp_path / "work" / "runs").glob("*seed1.json")
    kept = json.loads(path.read_text())["flags"]
    assert [text for text in kept if text.startswith("--init_std")] == ["--init_std=0.05"]


def test_a_setting_whose_runs_end_before_has_no_curve(trained, monkeypatch, capsys):
    def fail(self, flag_texts):
        return Run(flag_texts, [], 0.0)

    _, flags = trained
    monkeypatch.setattr(optimizers.Experiment, "_train", fail)
    assert call(*flags, "--variants=recommended") == 0
    assert "| recommended | 0.004 | inf | inf to inf | never | 0 |" in capsys.readouterr().out


def test_an_interrupted_call_makes_no_run_twice(trained):
    made, flags = trained
    assert call(*flags) == 0
    n_made = len(made)
    assert n_made == 3 + 2 + 4 + 2  # grids, of which Muon's is extended, and seeds
    assert call(*flags) == 0
    assert len(made) == n_made


def test_runs_of_other_flags_are_not_taken_for_these(trained, capsys):
    _, flags = trained
    assert call(*flags) == 0
    assert call(*flags, "--n_layer=3") == 1
    assert "holds a run with other flags: choose another `work_dir`" in capsys.readouterr().err
    assert call(*flags, "--valid_bytes=1001") == 1
    assert "holds runs on another text: choose another `work_dir`" in capsys.readouterr().err


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
    assert all(3 < value < 10 for value in bits)  # of 256 byte values, before much is learnt
    assert not (tmp_path / "work" / "run").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--compare=precision", "--lanes=3"], "--lanes has no effect with --compare=precision"),
        (["--compare=optimizers", "--preset=demo"], "--preset has no effect with --compare=opti"),
        (["--compare=optimizers", "--variants=sgd"], "`variants` must be some of adam-cosine, "),
        (["--compare=optimizers", "--train_text=a"], "must be given together. Received: train_"),
        (["--compare=optimizers", "--n_head=3"], "`n_head` must divide `d_model`. Received: n_he"),
    ],
)
def test_what_cannot_be_compared_is_one_line(flags, message, tmp_path, capsys):
    own = [f"--work_dir={tmp_path / 'work'}"] if "--compare=optimizers" in flags else []
    assert call(*flags, *own) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()[:1]
    assert message in line
