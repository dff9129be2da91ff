"""The training program on the records of the 2019 release, against our own of the same ids."""

import shutil

import pytest
from places import GOLDEN
from small_commands import make_arguments, read_log, read_scores

from txl_tf import train_gpu
from txl_tf.data import Vocabulary, write_records
from txl_tf.release.records import open_release_records
from txl_tf.runs.folder import read_run_config, read_run_vocabulary

TEXT8 = GOLDEN / "data" / "text8"
RELEASE = "--data_format=release2019"


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


def test_training_equals_training_on_our_own_records(finished, tmp_path, capsys):
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


def test_release_records_without_their_flag_are_one_line(tmp_path, capsys):
    for folder in (TEXT8, TEXT8 / "tfrecords"):
        assert run_main(folder, tmp_path / "run") == 1
        *_, line = capsys.readouterr().err.splitlines()
        assert line == (
            f"train_gpu.py: `{folder}` holds records of the 2019 release: "
            "pass --data_format=release2019 to read them."
        )


def test_the_listing_for_batch_size_and_length_is_read(tmp_path, capsys):
    shutil.copytree(TEXT8 / "tfrecords", tmp_path / "tfrecords")
    shutil.copy(TEXT8 / "corpus-info.json", tmp_path)
    listing = tmp_path / "tfrecords" / "record_info-train.bsz-4.tlen-32.json"
    listing.with_name("record_info-train.bsz-3.tlen-5.json").write_text("{}")
    assert run_main(tmp_path, tmp_path / "run", RELEASE) == 1
    assert "bsz-3.tlen-5.json` does not list records" in capsys.readouterr().err
    batch = ("--train_batch_size=4", "--tgt_len=32", "--dry_run")
    assert run_main(tmp_path, tmp_path / "run", RELEASE, *batch) == 0


def test_flags_name_other_places_of_listings_and_corpus_info(finished, tmp_path, capsys):
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
