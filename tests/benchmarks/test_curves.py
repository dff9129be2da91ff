import copy
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from called_programs import call
from places import ROOT

from benchmarks import curves

VARIANTS = copy.deepcopy(curves.VARIANTS)
TINY = ["--n_layer=1", "--d_model=8", "--d_embed=8", "--n_head=1", "--d_head=8", "--d_inner=8"]
TINY += ["--eval_mem_len=0", "--eval_same_length=false", "--jit=none"]


@pytest.fixture(autouse=True)
def one_process(monkeypatch, tmp_path):
    """Programs run in this process, which has imported TensorFlow."""
    monkeypatch.chdir(tmp_path)

    def run_program(name, *arguments):
        outcome = call(f"txl_tf.programs.{name}", *arguments)
        assert outcome.status == 0, outcome.err
        return outcome.out

    def run_python(script, *arguments):
        if script == "-m":
            _, name, *arguments = arguments
            return run_program(name, *arguments)
        assert script == "data_prep/make_tfrecords.py"
        return run_program("prepare", *arguments)

    def start_workers(commands, logs):
        ((_, _, *arguments),) = commands
        run_program("train", *arguments)
        return [SimpleNamespace(wait=lambda: 0) for _ in logs]

    monkeypatch.setattr(curves, "run_python", run_python)
    monkeypatch.setattr(curves, "start_workers", start_workers)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")  # it is set there, too


def run(monkeypatch, folder, comparison, *flags):
    """Returns the records of a tiny comparison, which learns from the README."""
    for name, (n_processes, flag_texts) in VARIANTS[comparison].items():
        variant = n_processes, [*flag_texts, *TINY]
        monkeypatch.setitem(curves.VARIANTS[comparison], name, variant)
    target, text = folder / "found.json", ROOT / "README.md"
    flags = [f"--compare={comparison}", f"--json={target}", *flags]
    flags += [f"--train_text={text}", f"--valid_text={text}"]
    assert curves.main(["curves", *flags]) == 0
    return json.loads(target.read_text())


@pytest.mark.slow
def test_precisions_are_compared(tmp_path, monkeypatch, capsys):
    flags = ["--variants=float32,bfloat16", "--steps=2", "--score_in=float32,bfloat16"]
    flags.append(f"--output={tmp_path / 'plot.png'}")
    found = {x["variant"]: x for x in run(monkeypatch, tmp_path, "precision", *flags)}
    assert list(found) == ["float32", "bfloat16"]
    for record in found.values():
        assert record["seed"] == "0"
        assert 3 < record["losses"][0] < 7  # of 256 byte values, before anything is learned
        assert record["bits"]["float32"] == pytest.approx(record["valid"][-1][1], abs=0.02)
        assert record["bits"]["bfloat16"] == pytest.approx(record["bits"]["float32"], abs=0.02)
    mean = np.mean(found["bfloat16"]["losses"])
    assert f"| bfloat16 | 0 | {mean:.4f} |" in capsys.readouterr().out
    assert (tmp_path / "plot.png").stat().st_size > 1000


@pytest.mark.slow
def test_recipes_are_compared_and_kept(tmp_path, monkeypatch, capsys):
    flags = ["optimizers", "--steps=3", "--seeds=1", f"--work_dir={tmp_path / 'work'}"]
    found = run(monkeypatch, tmp_path, *flags)
    assert run(monkeypatch, tmp_path, *flags) == found
    release = next(x for x in found if x["variant"] == "release")
    assert [step for step, _ in release["valid"]] == [1, 2, 3]
    row = rf"\| release \| {release['valid'][-1][1]:.4f} \| .* \| 3 \| "
    assert len(re.findall(row, capsys.readouterr().out)) == 2


def test_the_recipe_that_is_as_good_first_has_the_smaller_step(capsys):
    valid = {"a": [(10, 3.0), (20, 1.0), (30, 0.5)], "b": [(10, 4.0), (20, 3.0), (30, 1.5)]}
    runs = [
        {"variant": name, "valid": points, "tokens_per_second": 100.0}
        for name, points in valid.items()
    ]
    curves.print_recipes(runs)
    table = capsys.readouterr().out
    assert "| first evaluation as good as the last of b, step |" in table
    assert "| a | 0.5000 | 0.5000 to 0.5000 | 20 | 100 |" in table
    assert "| b | 1.5000 | 1.5000 to 1.5000 | 30 | 100 |" in table
