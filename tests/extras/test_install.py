"""Wheel and source distribution, and a clean environment with nothing but the wheel.

They need the package index, and minutes: `make test-extras`.
"""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest
from places import ROOT

from txl_tf.__main__ import PROGRAMS

pytest.importorskip("build", reason="pip install -e '.[test-extras]'")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*command, cwd):
    # A checkout on this path would be taken for an installed package.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def clean(built, tmp_path_factory):
    """The folder of the programs of an environment with nothing but the wheel."""
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    (wheel,) = built.glob("*.whl")
    run(folder / "bin" / "pip", "install", "--quiet", wheel, cwd=folder)
    return folder / "bin"


def list_package_files():
    """Returns the files of the package that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "txl_tf"]
    names = run(*command, cwd=ROOT).split()
    return {name for name in names if (ROOT / name).is_file()}


def test_the_wheel_holds_the_package_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == list_package_files()


def test_the_source_distribution_holds_all_that_a_checkout_needs(built):
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert list_package_files() <= names
    assert {
        *("train_gpu.py", "train_tpu.py", "data_prep/make_tfrecords.py", "Makefile", ".ci/run"),
        *("tests/conftest.py", "docs/index.md", "mkdocs.yml", "README.md", "LICENSE"),
        *("benchmarks/compare.py", "examples/demo.py", "CITATION.cff", "Dockerfile"),
    } <= names
    assert not {name for name in names if name.endswith(".pyc")}


def test_each_program_describes_itself_in_a_clean_environment(clean, tmp_path):
    for program in PROGRAMS:
        assert run(clean / "txl", program, "--help", cwd=tmp_path)


def test_the_shipped_model_generates_in_a_clean_environment(clean, tmp_path):
    code = "import txl_tf; print(txl_tf.load('pydoc').generate('Return the ', max_new_tokens=5))"
    assert run(clean / "python", "-c", code, cwd=tmp_path).strip()


def test_a_clean_environment_prepares_trains_scores_and_generates(clean, tmp_path):
    run(clean / "txl", "prepare", "--dataset=pydoc", cwd=tmp_path)
    sizes = ["--n_layer=1", "--d_model=16", "--d_embed=16", "--n_head=2", "--d_head=8"]
    sizes += ["--d_inner=16", "--tgt_len=8", "--mem_len=8", "--train_batch_size=4"]
    places = ["--data_dir=data/pydoc", "--model_dir=runs/tiny", "--train_steps=20"]
    run(clean / "txl", "train", *sizes, *places, "--jit=none", cwd=tmp_path)
    (tmp_path / "a.txt").write_text("a line\n")
    table = run(clean / "txl", "score", "--run=runs/tiny", "a.txt", cwd=tmp_path)
    assert "total (files: 1)" in table
    generate = ["--run=runs/tiny", "--prompt=Return ", "--length=5"]
    assert run(clean / "txl", "generate", *generate, cwd=tmp_path)
