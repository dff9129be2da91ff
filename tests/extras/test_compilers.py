"""Small steps compiled for a TPU and a GPU, so that no change breaks them unseen."""

import json
import subprocess
import sys

import pytest
from places import ROOT

pytest.importorskip("libtpu", reason="the extra `compilers` is not installed")

# Bytes, and words in bins.
PROGRAMS = {
    "bytes": ["--models=demo:1"],
    "words": ["--models=wt103_base:1", "--batch_size=2", "--remat"],
}


def compile_programs(folder, *flags):
    """Returns the reports of `benchmarks.compiled`."""
    out = folder / "reports.json"
    command = [sys.executable, "-m", "benchmarks.compiled", *flags, f"--json={out}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_compile_for_a_tpu_and_a_gpu(name, tmp_path):
    reports = compile_programs(tmp_path, *PROGRAMS[name])
    assert [report["chip"] for report in reports] == ["v5e", "h100"]
    for report in reports:
        assert not report["reason"]
        assert report["fits"]
        assert report["memory_bytes"] >= report["argument_bytes"] > 0
    tpu, _ = reports  # the compiler of GPUs tells only the memory
    assert tpu["flops"] > 0
    assert tpu["moved_bytes"] > tpu["argument_bytes"] / 2


def test_a_model_that_is_too_large_for_the_chip_does_not_fit(tmp_path):
    flags = ["--models=wt103_base:2", "--chips=v5e", "--batch_size=4096"]
    (report,) = compile_programs(tmp_path, *flags)
    assert not report["fits"]
