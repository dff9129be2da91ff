"""Small steps compiled for a TPU and a GPU, so that no change breaks them unseen."""

import dataclasses
import json
import os
import re
import subprocess
import sys

import pytest
from places import ROOT

from txl_tf import presets

pytest.importorskip("libtpu", reason="the extra `compilers` is not installed")

# Bytes with kernels on the TPU, words in bins, and documents with Muon.
PROGRAMS = {
    "bytes": ["--models=demo:1", "--works=train,evaluate"],
    "words": ["--models=words_divided:1", "--works=train,evaluate", "--batch_size=2"],
    "documents": ["--models=demo:1", "--reset_at_documents", "--optimizer=muon"],
}


def compile_programs(flags, folder):
    """Returns the reports of `benchmarks.compiled`."""
    out = folder / "reports.json"
    run_program("-m", "benchmarks.compiled", *flags, f"--json={out}")
    return json.loads(out.read_text())


def run_program(*arguments):
    command = [sys.executable, *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_compile_for_a_tpu_and_a_gpu(name, tmp_path):
    reports = compile_programs(PROGRAMS[name], tmp_path)
    assert {report["chip"].partition(":")[0] for report in reports} == {"v5e", "h100"}
    for report in reports:
        assert not report["reason"]
        assert report["fits"]
        assert not report["n_doubles"]
        assert report["flops"] > 0
        assert report["moved_bytes"] > report["argument_bytes"] / 2


def test_kernels_keep_the_scores_on_the_chip(tmp_path):
    found = {}
    for kernels in ("true", "false"):
        flags = ["--models=demo:1", "--chips=v5e", f"--kernels={kernels}"]
        (found[kernels],) = compile_programs(flags, tmp_path)
    assert found["true"]["accessed_bytes"] < 0.9 * found["false"]["accessed_bytes"]


def test_each_chip_averages_its_gradients_once(tmp_path):
    """The operands are a float32 gradient of each parameter, and the loss."""
    flags = ["--models=demo:1", "--accumulate_steps=2", "--chips=v5e:2x2,h100:2"]
    model = dataclasses.replace(presets.get("demo").model, n_layer=1)
    expected = {"all-reduce": 4 * (model.count_parameters() + 1)}
    reports = compile_programs(flags, tmp_path)
    assert [report["n_chips"] for report in reports] == [4, 2]
    assert [report["collectives"] for report in reports] == [expected, expected]


def test_parts_of_a_batch_are_computed_one_after_the_other(tmp_path):
    found = []
    for parts in (1, 4):
        flags = ["--models=demo:2", f"--accumulate_steps={parts}", "--chips=h100"]
        found += compile_programs([*flags, "--batch_size=256"], tmp_path)
    assert found[1]["temporary_bytes"] < 0.9 * found[0]["temporary_bytes"]


@pytest.mark.parametrize(
    ("mistake", "reason"),
    [
        ("slice", "a shape depends on data: .*strided_slice"),
        ("py_function", "XLA cannot compile the step: .*EagerPyFunc"),
        ("numpy_function", "XLA cannot compile the step: .*PyFunc"),
        ("print", "XLA cannot compile the step: .*StringFormat"),
        ("float64", ""),
    ],
)
def test_mistakes_in_a_step_are_found(mistake, reason, tmp_path):
    out = tmp_path / "reports.json"
    run_program("tests/helpers/planted_steps.py", mistake, out)
    (report,) = json.loads(out.read_text())
    assert re.fullmatch(f"{reason}.*" if reason else "", report["reason"])  # one line
    assert (report["n_doubles"] > 0) == (mistake == "float64")


def test_collectives_of_data_and_model_parallel_layouts_are_those_counted_by_hand(tmp_path):
    """One layer on 4 TPUs, with B rows, T = M, S = M + T, D, N heads of H, and V symbols."""
    out = tmp_path / "reports.json"
    command = [sys.executable, "-m", "benchmarks.compiled_layouts", "--models=bytes:1"]
    flags = ["--grids=v5e:2x2:1,v5e:2x2:4", "--dropout=0", "--effort=-1", f"--json={out}"]
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    for _ in range(2):  # what is in the file is not compiled again
        done = subprocess.run(
            command + flags, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    data, model = (report["collectives"] for report in json.loads(out.read_text()))
    rows, tgt_len, width, inner, symbols = 8, 128, 256, 1024, 27
    table, biases, norms = symbols * width, 2 * width, 4 * width
    # Gradients of kernels and of read rows are bfloat16; that of r_kernel is averaged before its
    # product with the positions, as that of N (1 + S) H distance keys.
    narrow = table + (3 + 1) * width**2 + (1 + 2 * tgt_len) * width + 2 * width * inner
    wide = table + biases + norms + inner + width + symbols + 1  # and the loss
    assert data == {"all-reduce": 2 * narrow + 4 * wide}
    # Each layer sums hidden states after attention and feed-forward layer, and their gradients
    # before them. What is left are the squared norms of gradients, of which the compiler adds some
    # first.
    hidden = 4 * (2 * rows * tgt_len * width)
    assert 0 < model["all-reduce"] - hidden <= 4 * 8
