"""What the export of a stateless step writes and refuses; no package of a format is needed."""

import json
import sys
import types

import numpy as np
import pytest
from exported_steps import make_lm
from small_language_model import WORDS
from small_lstm import make_model as make_lstm

import txl_tf.programs.export
from txl_tf.apps import step_files
from txl_tf.data import Vocabulary
from txl_tf.errors import UserError


@pytest.fixture
def quick(monkeypatch):
    """Leaves out the conversion."""
    converter = types.ModuleType("onnx_graph")
    converter.make_onnx = lambda function, output_names, precision: b"file"
    monkeypatch.setitem(sys.modules, "txl_tf.apps.onnx_graph", converter)
    monkeypatch.setattr(step_files, "make_litert", lambda step, precision: b"file")


def run(capsys, *arguments):
    status = txl_tf.programs.export.main(["export", *map(str, arguments)])
    return status, "".join(capsys.readouterr())


def test_a_folder_holds_the_file_its_shapes_and_the_vocabulary(tmp_path, quick):
    lm = make_lm({"n_token": 7}, {"mem_len": 11, "tgt_len": 5, "clamp_len": 3}, WORDS)
    names = lm.export(tmp_path / "out", format="onnx", precision="int8", batch_size=2, tgt_len=3)
    assert sorted(names) == sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ("model.onnx", "model.json", "vocabulary.json")
    info = json.loads((tmp_path / "out" / "model.json").read_text())
    memory = [2, 2, 3, 11, 5]
    assert info["inputs"] == {"ids": [2, 3], "keys": memory, "values": memory, "length": [2]}
    assert info["outputs"]["log_probabilities"] == [2, 3, 7]
    assert (info["precision"], info["span"]["clamp_len"], info["temperature"]) == ("int8", 3, 1)
    stored = json.loads((tmp_path / "out" / "vocabulary.json").read_text())
    assert Vocabulary.from_json(stored) == WORDS


def test_a_batch_size_of_numpy_is_written_as_an_integer(tmp_path, quick):
    lm = make_lm({}, {"mem_len": 11})
    lm.export(tmp_path / "out", format="litert", batch_size=np.int64(2))
    assert json.loads((tmp_path / "out" / "model.json").read_text())["batch_size"] == 2


def test_a_litert_file_is_written_without_further_packages(tmp_path, capsys):
    make_lm({}, {"mem_len": 11, "tgt_len": 5}).save(tmp_path / "run")
    arguments = [f"--run={tmp_path / 'run'}", f"--out={tmp_path / 'out'}", "--format=litert"]
    assert run(capsys, *arguments) == (
        0,
        f"Wrote {tmp_path / 'out'}: a LiteRT model of step 0 with model.tflite, model.json.\n"
        "The run has no vocabulary: the model takes ids, not texts.\n",
    )
    assert (tmp_path / "out" / "model.tflite").read_bytes()[4:8] == b"TFL3"
    assert json.loads((tmp_path / "out" / "model.json").read_text())["inputs"]["ids"] == [1, 1]


@pytest.mark.parametrize(
    ("fields", "evaluation", "arguments", "message"),
    [
        (
            {"encoding": "sinusoid"},
            {"mem_len": 0},
            {},
            "format=litert needs a memory, which a model with encoding=sinusoid cannot have",
        ),
        ({}, {}, {"precision": "bfloat16"}, "`precision` must be one of .* with format=litert"),
        ({}, {}, {"tgt_len": 0}, "`tgt_len` must be an integer >= 1"),
        (
            {},
            {},
            {"format": "tflite"},
            r"`format` must be one of .*'litert', 'onnx'\). .*: 'tflite'",
        ),
    ],
)
def test_models_and_options_without_a_step_file_are_refused(
    tmp_path, fields, evaluation, arguments, message
):
    lm = make_lm(fields, evaluation)
    with pytest.raises(UserError, match=message):
        lm.export(tmp_path / "out", **{"format": "litert"} | arguments)
    assert not list(tmp_path.iterdir())


def test_only_transformers_that_are_not_quantized_are_exported_as_steps(tmp_path):
    lm = make_lm({}, {"mem_len": 11})
    lm.quantize("int8")
    with pytest.raises(UserError, match=r"load the run without `precision`.* quantized to int8"):
        lm.export(tmp_path / "out", format="litert")
    lm = txl_tf.LanguageModel(make_lstm(), None, txl_tf.config.EvalConfig(mem_len=0))
    with pytest.raises(UserError, match="an export needs model_type=transformer_xl"):
        lm.export(tmp_path / "out", format="onnx")
    assert not list(tmp_path.iterdir())


def test_a_file_that_would_be_too_large_is_refused(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(step_files, "_MAX_BYTES", 10_000)
    lm = make_lm({"n_token": 700}, {"mem_len": 11})
    with pytest.raises(UserError, match="holds less than 2 GiB: choose a narrower `precision`"):
        lm.export(tmp_path / "out", format="litert")
    lm.export(tmp_path / "out", format="litert", precision="int8")
    with pytest.raises(UserError, match="2 GiB: choose format=litert and a narrower `precision`"):
        lm.export(tmp_path / "onnx", format="onnx", precision="int8")


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "txl_tf.apps.onnx_graph", raising=False)
    with pytest.raises(UserError, match=r"needs the package onnx: pip install -e '\.\[onnx\]'"):
        make_lm({}, {"mem_len": 11}).export(tmp_path / "out", format="onnx")
