import dataclasses
import json
from types import SimpleNamespace

import pytest
from small_runs import MODEL, TRAINING

import txl_tf
from txl_tf.data import Vocabulary
from txl_tf.errors import UserError
from txl_tf.runs.folder import (
    RunConfig,
    check_run_folder,
    find_other_splits,
    find_run_data,
    knows_data,
    make_run_folder,
    read_run,
    read_run_config,
    read_run_id,
    read_run_vocabulary,
    remember_data,
    update_training,
    warn_of_other_split,
)

EVALUATION = txl_tf.EvalConfig(eval_batch_size=3, tgt_len=11, mem_len=13, same_length=True)
CONFIG = RunConfig("text", dataclasses.replace(MODEL, cutoffs=(7, 13)), TRAINING, EVALUATION)
VOCABULARY = Vocabulary("word", tuple(f"wörd{index}" for index in range(MODEL.n_token)))


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "runs" / "one"
    make_run_folder(str(path), CONFIG, VOCABULARY)
    return path


def read_files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_is_read_as_it_was_written(folder):
    assert read_run_config(str(folder)) == CONFIG
    assert read_run_vocabulary(str(folder)) == VOCABULARY
    assert set(read_files(folder)) == {"config.json", "run.json", "vocabulary.json"}


def test_each_run_has_an_id_of_its_own(folder, tmp_path):
    make_run_folder(str(tmp_path / "two"), CONFIG, VOCABULARY)
    assert read_run_id(str(folder)) != read_run_id(str(tmp_path / "two"))
    assert read_run_id(str(tmp_path)) is None


def test_a_run_without_an_id_is_given_one_and_keeps_the_rest(folder):
    (folder / "run.json").unlink()
    before = read_files(folder)
    make_run_folder(str(folder), CONFIG, VOCABULARY, "00112233aabb")
    assert read_run_id(str(folder)) == "00112233aabb"
    assert before.items() <= read_files(folder).items()


@pytest.mark.parametrize("text", ["{}", '{"run_id": "x"}'])
def test_an_id_that_cannot_be_used_is_refused(text, folder):
    (folder / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"run\.json` does not hold the id of a run: found "):
        read_run_id(str(folder))


def test_a_folder_of_others_is_told_how_to_become_a_run(tmp_path):
    (tmp_path / "model.ckpt-0.index").touch()
    command = f"txl import_release --source {tmp_path} --out RUN"
    with pytest.raises(UserError, match=rf"config\.json is missing. If others .*{command}"):
        read_run_vocabulary(str(tmp_path))


def test_the_same_run_reopens_and_nothing_changes(folder):
    before = read_files(folder)
    check_run_folder(str(folder), CONFIG, VOCABULARY)
    make_run_folder(str(folder), CONFIG, VOCABULARY)
    assert read_files(folder) == before


def test_a_folder_without_a_run_fits_every_run(tmp_path):
    check_run_folder(str(tmp_path / "none"), CONFIG, VOCABULARY)
    assert not list(tmp_path.iterdir())


def test_a_run_is_not_made_over_another(folder):
    before = read_files(folder)
    make_run_folder(str(folder), dataclasses.replace(CONFIG, dataset="words"), VOCABULARY)
    assert read_files(folder) == before


def test_another_evaluation_or_number_of_steps_reopens(folder):
    before = read_files(folder)
    training = dataclasses.replace(TRAINING, train_steps=TRAINING.train_steps + 7)
    evaluation = txl_tf.EvalConfig(mem_len=17)
    other = dataclasses.replace(CONFIG, training=training, evaluation=evaluation)
    assert check_run_folder(str(folder), other, VOCABULARY) == CONFIG
    assert read_files(folder) == before


def test_another_config_is_refused_and_every_difference_is_named(folder):
    before = read_files(folder)
    other = RunConfig(
        "words",
        dataclasses.replace(CONFIG.model, dropout=0.5, cutoffs=(7, 17)),
        dataclasses.replace(TRAINING, learning_rate=0.125, seed=TRAINING.seed + 1),
        EVALUATION,
    )
    with pytest.raises(UserError, match="holds a run with another config: ") as error:
        check_run_folder(str(folder), other, VOCABULARY)
    named = str(error.value).partition("config: ")[2].partition(". Choose")[0].split("; ")
    assert {difference.split()[0] for difference in named} == {
        "dataset",
        "dropout",
        "cutoffs",
        "learning_rate",
        "seed",
    }
    assert "dataset is 'text' there and 'words' here" in named
    assert "dropout is 0.0 there and 0.5 here" in named
    assert read_files(folder) == before


def test_another_training_config_leaves_the_rest(folder):
    training = dataclasses.replace(TRAINING, train_steps=TRAINING.train_steps + 7)
    update_training(str(folder), training)
    assert read_run_config(str(folder)) == dataclasses.replace(CONFIG, training=training)


def test_a_run_may_know_ids_alone(tmp_path):
    make_run_folder(str(tmp_path / "run"), CONFIG, None)
    before = read_files(tmp_path / "run")
    assert set(before) == {"config.json", "run.json"}
    assert read_run_vocabulary(str(tmp_path / "run")) is None
    check_run_folder(str(tmp_path / "run"), CONFIG, None)
    with pytest.raises(UserError, match=r"without a vocabulary, which cannot continue on records"):
        check_run_folder(str(tmp_path / "run"), CONFIG, VOCABULARY)
    assert read_files(tmp_path / "run") == before


def test_records_without_a_vocabulary_do_not_fit_a_run_with_one(folder):
    remedy = r"--level word --vocab_file \S*/vocabulary\.json --train"
    with pytest.raises(UserError, match=rf"on records with another vocabulary\..*{remedy}"):
        check_run_folder(str(folder), CONFIG, None)


def test_a_vocabulary_that_an_unfinished_run_left_is_not_taken(folder):
    (folder / "config.json").unlink()
    make_run_folder(str(folder), CONFIG, None)
    assert read_run_vocabulary(str(folder)) is None


def test_fields_that_an_older_config_lacks_are_those_of_the_release(folder):
    path = folder / "config.json"
    content = json.loads(path.read_text())
    del content["model"]["layer_norm_epsilon"]
    for part in ("training", "evaluation"):
        del content[part]["counts_self"]
    path.write_text(json.dumps(content))
    assert read_run_config(str(folder)) == CONFIG
    check_run_folder(str(folder), CONFIG, VOCABULARY)
    other = dataclasses.replace(MODEL, cutoffs=(7, 13), layer_norm_epsilon=1e-5)
    with pytest.raises(UserError, match=r"config: layer_norm_epsilon is 1e-12 there and 1e-05 he"):
        check_run_folder(str(folder), dataclasses.replace(CONFIG, model=other), VOCABULARY)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run folder, and a folder of data beside it, the working folder of both."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "data").mkdir()
    return tmp_path / "run"


def test_a_place_is_recalled_as_any_working_folder_knows_it(run, monkeypatch, tmp_path):
    remember_data(str(run), "data", {})
    monkeypatch.chdir(run)
    assert find_run_data(str(run)) == str(tmp_path / "data")


def test_a_place_of_an_older_version_is_recalled(run, tmp_path):
    place = {"data_dir": str(tmp_path / "data"), "data_format": "records", "record_info_dir": None}
    (run / "data.json").write_text(json.dumps(place))
    assert find_run_data(str(run)) == str(tmp_path / "data")


def test_an_address_stays_as_it_is(run):
    remember_data(str(run), "gs://bucket/data", {})
    assert find_run_data(str(run)) == "gs://bucket/data"


def test_a_run_that_remembers_nothing_says_so(run):
    assert not knows_data(str(run))
    assert find_run_data(str(run)) is None


def test_the_place_that_was_given_last_is_recalled(run, tmp_path):
    (tmp_path / "moved").mkdir()
    for name in ("data", "moved"):
        remember_data(str(run), name, {})
    assert find_run_data(str(run)) == str(tmp_path / "moved")


@pytest.mark.parametrize("text", ["", '{"data_dir": 3}'])
def test_a_file_that_cannot_be_read_is_named_and_written_anew(run, text, tmp_path):
    (run / "data.json").write_text(text)
    with pytest.raises(UserError, match=r"data\.json"):
        find_run_data(str(run))
    remember_data(str(run), "data", {})
    assert find_run_data(str(run)) == str(tmp_path / "data")


def test_records_are_known_by_the_content_of_each_split(run, tmp_path):
    remember_data(str(run), "data", {"train": "a", "valid": "b"})
    here = SimpleNamespace(checksums={"train": "a", "valid": "c", "test": "d"})
    assert find_other_splits(str(run), here) == ["valid"]


def test_a_run_of_an_older_version_knows_no_records(run):
    (run / "data.json").write_text('{"data_dir": "data"}')
    assert find_other_splits(str(run), SimpleNamespace(checksums={"train": "a"})) == []


def test_records_given_later_come_before_those_in_the_run(run, tmp_path, capsys):
    (run / "records").mkdir()
    (run / "records" / "records.json").write_text(json.dumps({}))
    assert find_run_data(str(run)) == f"{run}/records"
    remember_data(str(run), "data", {"valid": "a"})
    assert find_run_data(str(run)) == str(tmp_path / "data")
    others = SimpleNamespace(data_dir=str(tmp_path / "data"), checksums={"valid": "b"})
    warn_of_other_split(str(run), others, "valid")
    assert "was made again" in capsys.readouterr().err


def test_records_in_a_run_are_found_after_the_run_has_moved(run, tmp_path):
    make_run_folder(str(run), CONFIG, VOCABULARY)
    (run / "records").mkdir()
    (run / "records" / "records.json").write_text(json.dumps({}))
    remember_data(str(run), str(run / "records"), {})
    moved = run.rename(tmp_path / "moved")
    assert read_run(str(moved)).data_dir == f"{moved}/records"
