"""The training program on the records of the 2019 release, against our own of the same ids."""

import shutil

import numpy as np
import pytest
from forked_programs import run_forked
from places import GOLDEN
from small_commands import make_arguments, read_log, read_scores
from small_release import make_release

from txl_tf import import_release, train_gpu
from txl_tf.data import Vocabulary, write_records
from txl_tf.release.records import open_release_records
from txl_tf.runs.folder import read_run_config, read_run_vocabulary

TEXT8 = GOLDEN / "data" / "text8"
RELEASE = "--data_format=release2019"
SPAN = ("--eval_batch_size=3", "--eval_tgt_len=64", "--eval_mem_len=17")


def run_main(data_dir, model_dir, *more):
    return train_gpu.main(["train_gpu.py", *make_arguments(data_dir, model_dir, *more)])


def read_losses(model_dir):
    return [line["loss_nats"] for line in read_log(model_dir)]


def write_own(folder):
    """Writes our own records of the same ids."""
    records = open_release_records(TEXT8)
    splits = {name: records.split(name) for name in records.splits}
    write_records(
        folder,
        dataset=records.dataset,
        vocabulary=Vocabulary("word", tuple(f"w{index}" for index in range(records.n_token))),
        splits={name: [split.read(0, len(split))] for name, split in splits.items()},
    )
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of 12 steps, with checkpoints of 4, 8 and 12."""
    folder = tmp_path_factory.mktemp("release") / "run"
    assert run_main(TEXT8 / "tfrecords", folder, RELEASE) == 0
    return folder


def test_training_is_that_on_our_own_records(finished, tmp_path, capsys):
    assert run_main(write_own(tmp_path / "own"), tmp_path / "run", "--do_eval") == 0
    wanted = read_scores(capsys.readouterr().out)
    assert run_main(TEXT8, finished, RELEASE, "--do_train=false", "--do_eval") == 0
    assert read_scores(capsys.readouterr().out) == wanted != []
    assert read_losses(finished) == read_losses(tmp_path / "run")
    assert len(read_losses(finished)) == 3


def test_the_run_knows_ids_alone(finished):
    assert read_run_vocabulary(str(finished)) is None
    config = read_run_config(str(finished))
    assert (config.dataset, config.model.n_token, config.model.cutoffs) == ("text8", 25, ())


def test_an_interrupted_run_resumes_as_if_it_had_not_been(finished, tmp_path, capsys):
    shutil.copytree(finished, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("ckpt-12.*"):
        path.unlink()
    assert run_main(TEXT8, tmp_path / "run", RELEASE) == 0
    assert "Resuming from step 8" in capsys.readouterr().out
    assert read_losses(tmp_path / "run") == read_losses(finished)


def test_two_replicas_train_as_one(tmp_path):
    arguments = ("--train_batch_size=6", "--dropout=0", "--dropatt=0", RELEASE)
    assert run_main(TEXT8, tmp_path / "1", *arguments) == 0
    # In a process of its own: two strategies over the same devices disturb each other.
    command = make_arguments(TEXT8, tmp_path / "2", *arguments, "--cpu_replicas=2")
    run_forked(command, tmp_path / "output")
    losses = [read_losses(tmp_path / name) for name in ("1", "2")]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_without_the_flag_of_the_format_the_line_names_it(tmp_path, capsys):
    for folder in (TEXT8, TEXT8 / "tfrecords"):
        assert run_main(folder, tmp_path / "run") == 1
        *_, line = capsys.readouterr().err.splitlines()
        assert line == (
            f"train_gpu.py: `{folder}` holds records of the 2019 release: "
            "pass --data_format=release2019 to read them."
        )


def test_the_listing_of_the_batch_size_and_length_of_the_flags_is_read(tmp_path, capsys):
    shutil.copytree(TEXT8 / "tfrecords", tmp_path / "tfrecords")
    shutil.copy(TEXT8 / "corpus-info.json", tmp_path)
    listing = tmp_path / "tfrecords" / "record_info-train.bsz-4.tlen-32.json"
    listing.with_name("record_info-train.bsz-3.tlen-5.json").write_text("{}")
    assert run_main(tmp_path, tmp_path / "run", RELEASE) == 1
    assert "bsz-3.tlen-5.json` does not list records" in capsys.readouterr().err
    batch = ("--train_batch_size=4", "--tgt_len=32", "--train_steps=1")
    assert run_main(tmp_path, tmp_path / "run", RELEASE, *batch) == 0


def test_the_flags_that_say_where_things_are_do(finished, tmp_path, capsys):
    (tmp_path / "data").mkdir()
    (tmp_path / "listings").mkdir()
    for path in (TEXT8 / "tfrecords").iterdir():
        shutil.copy(path, tmp_path / ("listings" if path.suffix == ".json" else "data"))
    shutil.copy(TEXT8 / "corpus-info.json", tmp_path / "corpus.json")
    places = (
        f"--record_info_dir={tmp_path / 'listings'}",
        f"--corpus_info_path={tmp_path / 'corpus.json'}",
    )
    assert run_main(tmp_path / "data", finished, RELEASE, *places) == 0
    assert "All 12 steps are done." in capsys.readouterr().out


def test_records_without_symbols_do_not_fit_a_run_with_symbols(tmp_path, capsys):
    assert run_main(write_own(tmp_path / "own"), tmp_path / "run", "--train_steps=4") == 0
    assert run_main(TEXT8, tmp_path / "run", RELEASE, "--do_train=false", "--do_eval") == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert "holds a run on records with a vocabulary, these have none. Pass the run" in line


def test_an_imported_model_is_evaluated_on_the_records_it_came_from(tmp_path, capsys):
    make_release(tmp_path / "tf_text8", dataset="text8")
    source = ("--source", str(tmp_path / "tf_text8"), "--out", str(tmp_path / "run"))
    assert import_release.main(["import_release", *source, "--splits=valid", *SPAN]) == 0
    shutil.copytree(TEXT8 / "tfrecords", tmp_path / "tf_text8" / "data" / "tfrecords")
    scores = []
    for places in (
        (f"--data_dir={tmp_path / 'tf_text8' / 'data' / 'tfrecords'}", RELEASE),
        (f"--data_dir={tmp_path / 'run' / 'records'}",),
    ):
        capsys.readouterr()
        arguments = (*places, f"--model_dir={tmp_path / 'run'}", "--do_train=false", "--do_eval")
        assert train_gpu.main(["train_gpu.py", *arguments, "--jit=none"]) == 0
        scores += read_scores(capsys.readouterr().out)
    # The records of 2019 lack the 3 tokens of 5,999 that filled no lane.
    assert scores[0] == pytest.approx(scores[1], abs=2e-3)
