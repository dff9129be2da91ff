"""Exported files of LiteRT and ONNX, in the interpreter of ai-edge-litert and in onnxruntime."""

import json

import numpy as np
import pytest
from exported_steps import CASES, draw_ids, make_cached, make_lm, read_live, read_steps
from page_programs import BYTES, make_greedy, read_program, run_program

RUNTIMES = {"litert": "ai_edge_litert", "onnx": "onnxruntime"}
FILES = {"litert": "model.tflite", "onnx": "model.onnx"}
SAME = {"rtol": 0, "atol": 1e-4}
# tests/apps runs the steps of all cases in TensorFlow.
NAMES = ["segments", "clamped", "divided_words", "shared_projections", "shaw_biased", "temperature"]


@pytest.fixture(params=RUNTIMES)
def file_format(request):
    """A format whose runtime is installed."""
    pytest.importorskip(RUNTIMES[request.param], reason=f"pip install -e '.[{request.param}]'")
    return request.param


def load(folder, file_format):
    """Returns the step of a file, and the content of `model.json`."""
    info = json.loads((folder / "model.json").read_text())
    load_step = {"litert": load_litert, "onnx": load_onnx}[file_format]
    return load_step(str(folder / FILES[file_format])), info


def load_litert(path):
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(path).get_signature_runner("step")
    names = ("log_probabilities", "new_keys", "new_values", "new_length")

    def step(**inputs):
        outputs = run(**inputs)
        return [outputs[name] for name in names]

    return step


def load_onnx(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    return lambda **inputs: session.run(None, inputs)


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
    lm = make_lm({"n_token": 256}, {"mem_len": 3}, BYTES)
    lm.export(tmp_path / "out", format=file_format)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {FILES[file_format], "model.json", "vocabulary.json"}
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
    paths = [tmp_path / name / FILES[file_format] for name in ("out", "wide")]
    sizes = [path.stat().st_size for path in paths]
    assert sizes[0] < 0.75 * sizes[1]


def test_the_program_of_the_page_continues_a_text(tmp_path, file_format):
    lm = make_lm({"n_token": 256}, {"mem_len": 11}, BYTES)
    lm.export(tmp_path / "exported", format=file_format)
    program = read_program(RUNTIMES[file_format])
    expected = lm.generate("The ", max_new_tokens=20, temperature=0)
    assert run_program(make_greedy(program), tmp_path).decode("utf-8", "replace") == expected
    assert len(run_program(program, tmp_path)) == 200
