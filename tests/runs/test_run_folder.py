import dataclasses
import json

import pytest
from small_runs import MODEL, TRAINING

import txl_tf
from txl_tf.data import Vocabulary
from txl_tf.errors import UserError
from txl_tf.runs.folder import (
    OtherConfigError,
    RunConfig,
    check_config,
    check_run_folder,
    has_run,
    make_run_folder,
    read_run_config,
    read_run_id,
    read_run_vocabulary,
    update_training,
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


def test_a_config_is_read_as_it_was_written(folder):
    assert read_run_config(str(folder)) == CONFIG


def test_a_vocabulary_is_read_as_it_was_written(folder):
    assert read_run_vocabulary(str(folder)) == VOCABULARY


def test_nothing_else_is_written(folder):
    assert set(read_files(folder)) == {"config.json", "run.json", "vocabulary.json"}


def test_each_run_has_an_id_of_its_own(folder, tmp_path):
    make_run_folder(str(tmp_path / "two"), CONFIG, VOCABULARY)
    assert read_run_id(str(folder)) != read_run_id(str(tmp_path / "two"))
    assert read_run_id(str(tmp_path)) is None


def test_a_run_of_an_older_version_is_given_an_id_and_keeps_the_rest(folder):
    (folder / "run.json").unlink()
    before = read_files(folder)
    make_run_folder(str(folder), CONFIG, VOCABULARY, "00112233aabb")
    assert read_run_id(str(folder)) == "00112233aabb"
    assert before.items() <= read_files(folder).items()


@pytest.mark.parametrize("text", ["[]", "{}", '{"run_id": "x"}', '{"run_id": 5}'])
def test_an_id_that_cannot_be_used_is_refused(text, folder):
    (folder / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"run\.json` must hold the id of a run. Received: "):
        read_run_id(str(folder))


def test_a_folder_holds_a_run_once_it_was_made(folder):
    assert has_run(str(folder))
    assert not has_run(str(folder.parent))


def test_a_folder_without_a_run_has_no_config(tmp_path):
    with pytest.raises(UserError, match=r"holds no run: config\.json is missing"):
        read_run_config(str(tmp_path))


def test_a_folder_without_a_run_has_no_vocabulary(tmp_path):
    with pytest.raises(UserError, match=r"holds no run: config\.json is missing"):
        read_run_vocabulary(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("absent", r"is missing, and so is the folder$"),
        ("text8_bas", r"and so is the folder. 'text8_base' is a preset"),
        ("text8_base", r"'text8_base' is a preset: train it, or import its weights"),
        ("exported", r"It is a SavedModel, for `txl_tf.score` and `txl_tf.serve`"),
    ],
)
def test_what_is_no_run_is_told_what_it_is(name, hint, tmp_path, monkeypatch):
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "saved_model.pb").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=hint):
        read_run_config(name)


@pytest.mark.parametrize("read", [read_run_config, read_run_vocabulary])
def test_a_folder_of_others_is_told_how_to_become_a_run(read, tmp_path):
    (tmp_path / "model.ckpt-0.index").touch()
    command = f"python -m txl_tf.import_release --source {tmp_path} --out RUN"
    with pytest.raises(UserError, match=rf"config\.json is missing. If others .*{command}"):
        read(str(tmp_path))


@pytest.mark.parametrize("read", [read_run_config, read_run_vocabulary])
def test_the_name_of_a_preset_is_no_folder(read):
    with pytest.raises(UserError, match=r"'text8_base' is a preset: train it, or import"):
        read("text8_base")


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


def test_another_data_set_is_refused(folder):
    other = dataclasses.replace(CONFIG, dataset="words")
    with pytest.raises(UserError, match="dataset is 'text' there and 'words' here"):
        check_config(str(folder), other)


def test_another_evaluation_reopens(folder):
    before = read_files(folder)
    other = dataclasses.replace(CONFIG, evaluation=txl_tf.EvalConfig(mem_len=17))
    check_run_folder(str(folder), other, VOCABULARY)
    assert read_files(folder) == before


def test_another_config_is_refused_and_every_difference_is_named(folder):
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


def test_another_number_of_steps_reopens(folder):
    before = read_files(folder)
    training = dataclasses.replace(TRAINING, train_steps=TRAINING.train_steps + 7)
    other = dataclasses.replace(CONFIG, training=training)
    assert check_run_folder(str(folder), other, VOCABULARY) == CONFIG
    assert read_files(folder) == before


def test_another_training_config_leaves_the_rest(folder):
    training = dataclasses.replace(TRAINING, train_steps=TRAINING.train_steps + 7)
    update_training(str(folder), training)
    assert read_run_config(str(folder)) == dataclasses.replace(CONFIG, training=training)


def test_the_fields_that_differ_come_with_the_error(folder):
    model = dataclasses.replace(CONFIG.model, dropout=0.5)
    training = dataclasses.replace(TRAINING, clip=0.5, train_steps=TRAINING.train_steps + 7)
    with pytest.raises(OtherConfigError, match=r"dropout is 0\.0 there") as error:
        check_config(str(folder), dataclasses.replace(CONFIG, model=model, training=training))
    assert error.value.names == {"dropout", "clip"}


def test_a_refused_config_changes_nothing_on_disk(folder):
    before = read_files(folder)
    other = dataclasses.replace(CONFIG, dataset="words")
    with pytest.raises(UserError, match="another config"):
        check_run_folder(str(folder), other, VOCABULARY)
    assert read_files(folder) == before


def test_another_vocabulary_is_refused_and_nothing_changes_on_disk(folder):
    before = read_files(folder)
    other = Vocabulary("word", VOCABULARY.symbols[::-1])
    with pytest.raises(UserError, match="records with another vocabulary"):
        check_run_folder(str(folder), CONFIG, other)
    assert read_files(folder) == before


@pytest.fixture
def nameless(tmp_path):
    """The folder of a run that knows ids alone."""
    path = tmp_path / "runs" / "nameless"
    make_run_folder(str(path), CONFIG, None)
    return path


def test_a_run_without_a_vocabulary_writes_none(nameless):
    assert set(read_files(nameless)) == {"config.json", "run.json"}


def test_a_run_without_a_vocabulary_is_read_as_such(nameless):
    assert read_run_vocabulary(str(nameless)) is None


def test_a_run_without_a_vocabulary_reopens(nameless):
    before = read_files(nameless)
    check_run_folder(str(nameless), CONFIG, None)
    assert read_files(nameless) == before


def test_a_vocabulary_does_not_fit_a_run_without_one(nameless):
    with pytest.raises(UserError, match=r"on records with no vocabulary\. Pass the run"):
        check_run_folder(str(nameless), CONFIG, VOCABULARY)


def test_records_without_a_vocabulary_do_not_fit_a_run_with_one(folder):
    with pytest.raises(UserError, match=r"with a vocabulary, these have none\. Pass the run"):
        check_run_folder(str(folder), CONFIG, None)


def test_a_vocabulary_that_an_unfinished_run_left_is_not_taken(folder):
    (folder / "config.json").unlink()
    make_run_folder(str(folder), CONFIG, None)
    assert read_run_vocabulary(str(folder)) is None


@pytest.mark.parametrize("text", ["", '{"format_version": 1', "[]", "{}", "\x00", "null"])
def test_a_config_that_cannot_be_read_is_named_in_one_line(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config\.json") as error:
        read_run_config(str(folder))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"level": "word"}'])
def test_a_vocabulary_that_cannot_be_read_is_named_in_one_line(folder, text):
    (folder / "vocabulary.json").write_text(text)
    with pytest.raises(UserError, match=r"vocabulary\.json") as error:
        read_run_vocabulary(str(folder))
    assert "\n" not in str(error.value)


def change_config(folder, part, **changes):
    path = folder / "config.json"
    content = json.loads(path.read_text())
    (content[part] if part else content).update(changes)
    path.write_text(json.dumps(content))


def test_another_format_version_is_refused(folder):
    change_config(folder, None, format_version=2)
    with pytest.raises(UserError, match=r"has format version 2; .* reads format version 1"):
        read_run_config(str(folder))


def test_a_config_with_an_unknown_field_is_refused(folder):
    change_config(folder, "model", n_layers=5)
    with pytest.raises(UserError, match=r"no field `n_layers`\. Did you mean `n_layer`"):
        read_run_config(str(folder))


def test_a_config_with_a_wrong_value_is_refused(folder):
    change_config(folder, "training", tgt_len=0)
    with pytest.raises(UserError, match=r"`tgt_len` must be an integer >= 1. Received: tgt_len=0"):
        read_run_config(str(folder))


def test_a_config_from_before_documents_runs_on_over_them(folder):
    path = folder / "config.json"
    content = json.loads(path.read_text())
    for part in ("training", "evaluation"):
        del content[part]["reset_at_documents"]
    path.write_text(json.dumps(content))
    assert read_run_config(str(folder)) == CONFIG
    other = dataclasses.replace(
        CONFIG, training=dataclasses.replace(TRAINING, reset_at_documents=True)
    )
    with pytest.raises(UserError, match="reset_at_documents is False there and True here"):
        check_config(str(folder), other)


def test_a_config_from_before_the_epsilon_and_the_counted_query_has_those_of_the_release(folder):
    path = folder / "config.json"
    content = json.loads(path.read_text())
    del content["model"]["layer_norm_epsilon"]
    for part in ("training", "evaluation"):
        del content[part]["counts_self"]
    path.write_text(json.dumps(content))
    assert read_run_config(str(folder)) == CONFIG
    check_config(str(folder), CONFIG)
    other = dataclasses.replace(MODEL, cutoffs=(7, 13), layer_norm_epsilon=1e-5)
    with pytest.raises(UserError, match=r"config: layer_norm_epsilon is 1e-12 there and 1e-05 he"):
        check_config(str(folder), dataclasses.replace(CONFIG, model=other))


def test_a_config_without_a_part_is_refused(folder):
    path = folder / "config.json"
    content = json.loads(path.read_text())
    del content["training"]
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"not the config of a run: expected the keys .*training"):
        read_run_config(str(folder))
