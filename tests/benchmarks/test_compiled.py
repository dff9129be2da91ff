"""Compilation for chips, without their compilers."""

import dataclasses
import json

import pytest

from benchmarks import compiled
from benchmarks.compiled import Report, find_largest_batch
from txl_tf import presets


@pytest.mark.parametrize("refusal", ["with its memory", "without"])
@pytest.mark.parametrize("largest", [0, 1, 3, 61])
def test_the_largest_batch_is_found_in_a_few_compilations(largest, refusal):
    """The memory of a batch is 7 + 13 rows, and a little more for each further one."""
    tried = []
    measure = lambda rows: int(7 + 13 * rows + rows**2 / 100)  # noqa: E731
    limit = measure(largest) + 5

    def report_rows(rows):
        tried.append(rows)
        fits = measure(rows) <= limit
        size = measure(rows) if fits or refusal == "with its memory" else 0
        return Report("", "", rows, fits=fits, memory_bytes=size)

    found = find_largest_batch(report_rows, limit)
    assert (found.rows if found else 0) == largest
    assert len(tried) <= 7


@pytest.mark.slow
def test_a_step_has_the_memory_and_operations_of_its_model(tmp_path):
    out = tmp_path / "reports.json"
    flags = ["--models=demo:1", "--chips=cpu", "--optimizer=adam", f"--json={out}"]
    assert compiled.main(["compiled", *flags, "--batch_size=64"]) == 0
    (report,) = json.loads(out.read_text())
    preset = presets.get("demo")
    n_parameters = dataclasses.replace(preset.model, n_layer=1).count_parameters()
    assert report["tokens"] == 64 * preset.training.tgt_len
    # Weights and two moments; and the memory, of twice D bfloat16 numbers a token.
    expected = 3 * 4 * n_parameters + 2 * report["tokens"] * preset.model.d_model
    assert report["argument_bytes"] == pytest.approx(expected, rel=0.1)
    assert report["memory_bytes"] > report["argument_bytes"]
    # Each parameter is in three products a token; attention and the memory's keys come on top.
    assert 1 < report["flops"] / (6 * report["tokens"] * n_parameters) < 2
    assert report["fits"]
