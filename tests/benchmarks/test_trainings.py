"""Runs beside the trainings of other people."""

import json

import pytest

from benchmarks import all as measurements
from benchmarks import trainings
from txl_tf import presets

PAGE = "<!-- figures: wt2 -->\n<!-- end of figures -->\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with one page, and evaluations that give the step as perplexity."""
    (tmp_path / "docs" / "lab").mkdir(parents=True)
    (tmp_path / "README.md").write_text(PAGE)
    monkeypatch.setattr(measurements, "ROOT", tmp_path)
    monkeypatch.setattr(measurements, "FIGURES", tmp_path / "docs" / "lab" / "figures.json")
    return tmp_path


def write_run(folder, dataset, n_steps, monkeypatch, *, seed=7):
    """Writes what a training leaves, with a loss of 5 nats until step 50, and then 7."""
    folder.mkdir()
    training = {"train_batch_size": 10, "tgt_len": 5, "seed": seed, "precision": "bfloat16"}
    (folder / "config.json").write_text(json.dumps({"dataset": dataset, "training": training}))
    lines = [
        {"step": step, "loss_nats": 5 if step <= 50 else 7, "tokens_per_second": 1 / 3.6}
        for step in range(25, n_steps + 1, 25)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    values = {str(step): step / 2 for step in range(400, n_steps + 1, 400)}
    monkeypatch.setattr(trainings, "evaluate_checkpoints", lambda *_: values)
    return folder


def test_a_run_stands_beside_the_others_at_equal_steps(project, monkeypatch, capsys):
    run = write_run(project / "run", "wt2", 400, monkeypatch)
    plot = project / "plot.png"
    flags = [f"--add={run}", "--commit=abc", f"--plot={plot}"]
    assert trainings.main(["trainings", *flags]) == 0
    page = (project / "README.md").read_text()
    assert "| perplexity on valid after step | 400 |\n" in page
    assert "| theirs, seed 444 | 950.8 |\n" in page
    assert "| **ours, seed 7**, bfloat16 | 200.0 |\n" in page
    # the mean loss of the intervals of the others
    assert "| **ours, seed 7**, bfloat16 | 148.4 | 1,097 |" in page
    assert "wt2, seed 7: 1200 minutes, commit abc, " in page
    assert page.count("| theirs, seed 444 | 27,199 | 16,577 |") == 1
    assert "| theirs, seed 444 | 27,199 |" in capsys.readouterr().out
    assert plot.stat().st_size > 1000


def test_a_longer_run_continues_a_shorter_one(project, monkeypatch):
    for n_steps, seed in ((400, 7), (400, 8), (800, 7)):
        run = write_run(project / f"{n_steps}-{seed}", "wt2", n_steps, monkeypatch, seed=seed)
        assert trainings.main(["trainings", f"--add={run}"]) == 0
    kept = measurements.read_figures()["wt2"]["runs"]
    assert [(run["seed"], run["valid"]) for run in kept] == [
        (7, {"400": 200.0, "800": 400.0}),
        (8, {"400": 200.0}),
    ]
    assert "| **ours, seed 8**, bfloat16 | 200.0 |  |\n" in (project / "README.md").read_text()


def test_shakespeare_stands_beside_nanogpt(project, monkeypatch):
    run = write_run(project / "run", "shakespeare", 400, monkeypatch)
    config = json.loads((run / "config.json").read_text())
    config["model"] = presets.model("demo").to_json()
    (run / "config.json").write_text(json.dumps(config))
    losses = {(): 1.5, "--tgt_len=64": 1.625, "--tgt_len=256": 1.75}
    monkeypatch.setattr(
        trainings, "evaluate", lambda _, *flags: {"loss_nats": losses[flags[0] if flags else ()]}
    )
    (project / "README.md").write_text(PAGE.replace("wt2", "shakespeare"))
    assert trainings.main(["trainings", f"--add={run}"]) == 0
    page = (project / "README.md").read_text()
    assert "| nanoGPT, on a laptop | 1.54M | 0.80M |  | 1.88 |  |\n" in page
    assert "| **`demo`, seed 7** | 0.02M | 1.49M | **1.500** | 1.625 | 1.750 |\n" in page


def test_a_run_that_nobody_trained_is_refused(project, monkeypatch, capsys):
    run = write_run(project / "run", "text8", 400, monkeypatch)
    assert trainings.main(["trainings", f"--add={run}"]) == 1
    assert "no training on text8 is known to compare with" in capsys.readouterr().err
