"""Exported files of LiteRT and ONNX, in the interpreter of ai-edge-litert and in onnxruntime."""

import dataclasses
import json
import math

import numpy as np
import pytest
from exported_steps import CASES, draw_ids, make_cached, make_lm, read_live, read_steps
from page_programs import BYTES, make_greedy, read_program, run_program

from benchmarks import off_python
from benchmarks.works import Shape

RUNTIMES = {"litert": "ai_edge_litert", "onnx": "onnxruntime"}
SAME = {"rtol": 0, "atol": 1e-4}
# tests/exports runs the steps of all cases in TensorFlow.
NAMES = ["segments", "clamped", "divided_words", "shared_projections", "shaw_biased", "temperature"]


@pytest.fixture(params=RUNTIMES)
def file_format(request):
    """A format whose runtime is installed."""
    pytest.importorskip(RUNTIMES[request.param], reason=f"pip install -e '.[{request.param}]'")
    return request.param


def load(folder, file_format):
    """Returns the step of a file, and the content of `model.json`."""
    info = json.loads((folder / "model.json").read_text())
    return off_python.load_step(folder, file_format), info


def export(folder, name, file_format):
    """Returns the step of a case, its ids and the log-probabilities of the live model."""
    fields, evaluation, tgt_len, n_rows, is_masked = CASES[name]
    lm = make_lm(fields, evaluation)
    arguments = {"tgt_len": tgt_len, "batch_size": n_rows, "mask_empty_memory": is_masked}
    lm.export(folder / "out", format=file_format, **arguments)
    ids = draw_ids(lm, n_rows, 30)
    expected = read_live(make_cached(lm, tgt_len, is_masked=is_masked), ids)
    return *load(folder / "out", file_format), ids, expected


@pytest.mark.parametrize("name", NAMES)
def test_a_file_has_the_log_probabilities_of_the_live_model(tmp_path, name, file_format):
    call, info, ids, expected = export(tmp_path, name, file_format)
    np.testing.assert_allclose(read_steps(call, info, ids), expected, **SAME)


def test_a_folder_keeps_its_files_inputs_and_outputs(tmp_path, file_format):
    make_lm({"n_token": 256}, {"mem_len": 3}, BYTES).export(tmp_path / "out", format=file_format)
    step = {"litert": "model.tflite", "onnx": "model.onnx"}[file_format]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {step, "model.json", "vocabulary.json"}
    info = json.loads((tmp_path / "out" / "model.json").read_text())
    states = [2, 1, 3, 3, 5]  # layers, rows, memory, heads, head size
    assert info["inputs"] == {"ids": [1, 1], "keys": states, "values": states, "length": [1]}
    assert info["outputs"] == {
        "log_probabilities": [1, 1, 256],
        "new_keys": states,
        "new_values": states,
        "new_length": [1],
    }


def test_narrow_matrices_are_nearly_as_good(tmp_path, file_format):
    fields = {"n_token": 67, "d_model": 34, "d_embed": 34, "d_inner": 71, "cutoffs": (41,)}
    lm = make_lm(fields, {"mem_len": 11})
    lm.export(tmp_path / "out", format=file_format, precision="int8")
    lm.export(tmp_path / "wide", format=file_format)
    ids = draw_ids(lm, 1, 30)
    found = read_steps(*load(tmp_path / "out", file_format), ids)
    error = abs(found - read_live(make_cached(lm, 1), ids))
    assert error.max() > 1e-4
    # Without VNNI, onnxruntime saturates sums of int8 products.
    assert error.mean() < {"litert": 0.1, "onnx": 0.6}[file_format]
    file = off_python.FILES[file_format]
    sizes = [(tmp_path / name / file).stat().st_size for name in ("out", "wide")]
    assert sizes[0] < 0.75 * sizes[1]


def test_the_program_of_the_page_continues_a_text(tmp_path, file_format):
    lm = make_lm({"n_token": 256}, {"mem_len": 11}, BYTES)
    lm.export(tmp_path / "exported", format=file_format)
    program = read_program(RUNTIMES[file_format])
    expected = lm.generate("The ", max_new_tokens=20, temperature=0)
    assert run_program(make_greedy(program), tmp_path).decode("utf-8", "replace") == expected
    assert len(run_program(program, tmp_path)) == 200


def test_the_benchmark_measures_a_file(tmp_path, file_format):
    folder, shape = str(tmp_path / "out"), Shape(1, 6, 3, 7, 1, 11, 1, 13)
    assert off_python.export_model(folder, shape, file_format, "int8") > 1000
    speed = off_python.measure_file(folder, file_format, 1, 7)
    assert speed["best"] >= speed["median"] > 0


def test_the_benchmark_has_the_loss_of_the_live_model(tmp_path, file_format):
    lm = make_lm({}, {"mem_len": 11})
    lm.export(tmp_path / "out", format=file_format)
    ids = draw_ids(lm, 1, 31)[0]
    lm.evaluation = dataclasses.replace(lm.evaluation, tgt_len=1)
    (score,) = lm.score([ids])
    expected = score.nats.mean() / math.log(2)
    found = off_python.measure_bits(tmp_path / "out", file_format, ids)
    assert found == pytest.approx(expected, abs=1e-4)
