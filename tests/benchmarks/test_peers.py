"""The programs that measure other people's code."""

import subprocess
import sys

import pytest
from places import ROOT
from tables import slow_after

from benchmarks.peers.protocol import parse_peers

TRAIN = "train:2,8,2,16,5,6,2,23"
NAMES = ["nanogpt", "pytorch_port", "tensorflow2019"]


def run_peer(name, *arguments):
    command = [sys.executable, "-m", f"benchmarks.peers.{name}", "--seconds=0", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", slow_after(2, NAMES))  # the last one imports TensorFlow
def test_a_missing_package_is_named_in_one_line(name, tmp_path):
    done = run_peer(name, *([f"--source={tmp_path}"] if name == "tensorflow2019" else []), TRAIN)
    if done.returncode == 0:
        pytest.skip("nothing is missing")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("No module named ")


@pytest.mark.parametrize("flags", [[], ["--bfloat16"]])
def test_nanogpt_trains_and_does_nothing_else(flags):
    pytest.importorskip("torch")
    done = run_peer("nanogpt", *flags, TRAIN, "eval:2,8,2,16,5,6,2,23")
    assert done.returncode == 0, done.stderr
    name = "nanogpt-bfloat16, not compiled" if flags else "nanogpt, not compiled"
    assert list(parse_peers(done.stdout)[TRAIN]) == [name]
    assert "eval:2,8,2,16,5,6,2,23: no counterpart" in done.stderr


def test_the_port_does_each_work():
    pytest.importorskip("transformers.models.deprecated.transfo_xl")
    words = "train:2,8,2,16,5,6,2,23:5,11/1"
    works = [TRAIN, words, "eval:2,8,2,16,5,6,2,23", "generate:2,8,2,16,1,6,1,23"]
    done = run_peer("pytorch_port", *works)
    assert done.returncode == 0, done.stderr
    found = parse_peers(done.stdout)
    assert list(found) == works
    assert all(speeds["pytorch, not compiled"] > 0 for speeds in found.values())
