"""A tiny data set, a run on it, and its SavedModel, made by commands alone."""

import contextlib
import shutil
from pathlib import Path

import pytest
from called_programs import call, write_texts

PREPARE = (
    "--dataset=text --train=texts/train.txt --valid=texts/valid.txt --test=texts/test.txt "
    "--level=char --data_dir=data --num_workers=1"
)
TRAIN = (
    "--data_dir=data --model_dir=run --n_layer=1 --d_model=8 --d_embed=8 --n_head=2 --d_head=4 "
    "--d_inner=8 --tgt_len=8 --mem_len=8 --train_batch_size=2 --eval_batch_size=2 --train_steps=4 "
    "--save_steps=2 --iterations=1 --eval_every=2 --jit=none"
)
COMMANDS = {
    "prepare": ("txl_tf.programs.prepare", *PREPARE.split()),
    "train": ("txl_tf.programs.train", *TRAIN.split()),
    "export": ("txl_tf.programs.export", "--run=run", "--out=exported"),
}


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with texts/, data/, run/ of 4 steps, exported/; and what the commands answered."""
    folder = tmp_path_factory.mktemp("contract")
    with contextlib.chdir(folder):
        write_texts("texts", train=37, valid=7, test=5, letter=3)
        outcomes = {name: call(*command) for name, command in COMMANDS.items()}
    return folder, outcomes


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    """A copy of the folder for one module, whose run knows the copy of the data."""
    source, outcomes = trained
    assert {outcome.status for outcome in outcomes.values()} == {0}, outcomes
    copy = shutil.copytree(source, tmp_path_factory.mktemp("copy") / "work")
    known = Path(copy, "run", "data.json")
    known.write_text(known.read_text().replace(str(source), str(copy)))
    return copy


@pytest.fixture
def here(folder, monkeypatch):
    """The current folder: the copy of the module."""
    monkeypatch.chdir(folder)
    return folder
