"""The program that compares an import with the reference."""

import dataclasses
import os
import re
import shutil

import numpy as np
import pytest
from golden_cases import load_case
from places import GOLDEN, ROOT

import txl_tf
from txl_tf.data import Vocabulary
from txl_tf.programs import verify_release
from txl_tf.release import load_model
from txl_tf.runs.checkpoint import save_weights
from txl_tf.runs.folder import RunConfig, make_run_folder

CASE = load_case("char")
SMALL = ("--tgt_len=3", "--mem_len=5")


@pytest.fixture
def source(tmp_path):
    """A folder of the release."""
    folder = tmp_path / "tf_char"
    shutil.copytree(os.path.dirname(CASE.checkpoint), folder / "model")

    return folder


def write_run(folder, model):
    """Writes a run with the weights of a model."""
    config = RunConfig("char", model.config, txl_tf.TrainConfig(), txl_tf.EvalConfig())
    words = tuple(f"w{index}" for index in range(model.config.n_token))
    make_run_folder(str(folder), config, Vocabulary("word", words))
    save_weights(str(folder), model, step=0)
    return str(folder)


def test_a_folder_of_hugging_face_is_refused(capsys):
    assert run(GOLDEN / "hub" / "word") == 1
    assert "only checkpoints of the 2019 release can be compared" in capsys.readouterr().err


def run(source, *arguments):
    return verify_release.main(["verify_release.py", f"--source={source}", *SMALL, *arguments])


@pytest.mark.parametrize(
    ("arguments", "spans"),
    [
        (["--clamp_len=4"], ["plain, clamp_len 4", "same_length, clamp_len 4"]),
        (["--same_length", "--clamp_len=-1"], ["same_length, no clamp_len"]),
    ],
)
def test_the_flags_choose_the_spans(source, capsys, arguments, spans):
    assert run(source, *arguments) == 0
    line = "; ".join(f"mem_len 5, {span}" for span in spans)
    assert f"  {line}.\n" in capsys.readouterr().out


def test_without_memory_there_is_one_span(source, capsys):
    assert verify_release.main(["verify_release", f"--source={source}", "--mem_len=0"]) == 0
    assert "  mem_len 0, plain, no clamp_len.\n" in capsys.readouterr().out


def test_a_run_is_compared_with_the_weights_that_it_has(source, tmp_path, capsys):
    model = load_model(CASE.checkpoint, CASE.config)
    folder = write_run(tmp_path / "right", model)
    assert run(source, f"--run={folder}") == 0
    assert f"Comparing {folder} with " in capsys.readouterr().out
    model.content_bias.assign(-model.content_bias)
    assert run(source, f"--run={write_run(tmp_path / 'wrong', model)}") == 1
    assert "They first differ at layer 0, content: " in capsys.readouterr().out


def test_a_run_of_another_model_is_refused(source, tmp_path, capsys):
    config = dataclasses.replace(CASE.config, d_inner=7, dropout=0.3)
    folder = write_run(tmp_path / "other", txl_tf.TransformerXL(config))
    assert run(source, f"--run={folder}") == 1
    assert capsys.readouterr().err == (
        f"verify_release.py: `{folder}` has another model than the checkpoint: "
        "d_inner is 7 there and 48 here\n"
    )


def test_the_example_of_the_documentation_runs(monkeypatch, capsys):
    root = ROOT
    text = (root / "docs" / "verify-weights.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    monkeypatch.chdir(root)
    exec(example, {})
    assert capsys.readouterr().out.startswith("(2, 4, 8, 20) 3.")


def test_a_weight_that_differs_by_a_bit_is_named(source, tmp_path, capsys):
    """Which no term shows."""
    model = load_model(CASE.checkpoint, CASE.config)
    kernel = model.decoder_layers[1].feed_forward.outer.kernel
    value = kernel.numpy()
    value[0, 0] = np.nextafter(value[0, 0], np.float32(9))
    kernel.assign(value)
    write_run(tmp_path / "run", model)
    assert run(source, f"--run={tmp_path}/run") == 1
    printed = capsys.readouterr().out
    assert (
        "Weights that differ from the checkpoint: transformer/layer_1/ff/layer_2/kernel." in printed
    )
    assert "All terms agree" in printed
