import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from small_release import DATA, draw_slots, draw_weights, make_release, write_checkpoint

import txl_tf
from txl_tf.data import read_ids
from txl_tf.programs import evaluate, export_release, import_release
from txl_tf.release import load_model
from txl_tf.release.records import convert_records
from txl_tf.runs.checkpoint import name_variables

WORDS = {"cutoffs": (50, 200), "div_val": 2, "untie_r": True, "proj_share_all_but_first": True}


def run(*arguments):
    return import_release.main(["import_release", *map(str, arguments)])


def get_weights(model):
    return {name: value.numpy() for name, value in name_variables(model).items()}


def assert_equal_weights(found, expected):
    found, expected = get_weights(found), get_weights(expected)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_release_becomes_a_run(tmp_path, capsys):
    """No flag but the folders: weights, config, vocabulary, records of the pickle's splits."""
    config = make_release(tmp_path / "tf_wt103", **WORDS)
    assert run("--source", tmp_path / "tf_wt103", "--out", tmp_path / "run") == 0
    lm = txl_tf.load(tmp_path / "run")
    assert lm.config == config
    assert_equal_weights(lm.model, load_model(f"{tmp_path}/tf_wt103/model/model.ckpt-0", config))
    with np.load(DATA / "wt103" / "ids.npz") as ids:
        expected = {split: ids[split] for split in ("valid", "test")}
    for split, golden in expected.items():
        found = read_ids(tmp_path / "run" / "records", split)
        assert lm.vocabulary.decode(found).split() == decode(golden)
    printed = capsys.readouterr().out
    assert "n_layer=2 d_model=12 d_embed=12 n_head=3 d_head=5 d_inner=7 cutoffs=50,200" in printed
    assert "no preset has these sizes" in printed


def test_a_name_that_the_vocabulary_contradicts_is_dropped(tmp_path):
    make_release(tmp_path / "source", cutoffs=(50, 200))
    path = tmp_path / "source" / "data" / "corpus-info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dataset": "enwik8"}))
    assert run(f"--source={tmp_path}/source", f"--out={tmp_path}/run") == 0
    assert txl_tf.load(tmp_path / "run").dataset == "unknown"


def decode(ids):
    symbols = (DATA / "wt103" / "vocab.txt").read_text("utf-8").split("\n")
    return " ".join("\n" if symbols[i] == "<eos>" else symbols[i] for i in ids).split()


def test_weights_that_are_no_numbers_are_refused(tmp_path, capsys):
    make_release(tmp_path / "tf_wt103", **WORDS)
    path = f"{tmp_path}/tf_wt103/model/model.ckpt-0"
    reader = tf.train.load_checkpoint(path)
    weights = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    weights["transformer/layer_1/ff/layer_1/kernel"][2, 3] = -np.inf
    write_checkpoint(path, weights)
    assert run("--source", tmp_path / "tf_wt103", "--out", tmp_path / "run") == 1
    printed = capsys.readouterr().err
    assert "holds NaN or infinity in 1 of its weights, first in " in printed
    assert "layer_1/feed_forward/inner/kernel: the training that wrote it diverged" in printed
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_preset_of_the_sizes_gives_span_and_dropout(tmp_path, capsys):
    sizes = dataclasses.asdict(txl_tf.presets.model("text8_base"))
    for name in ("n_token", "dropout", "dropatt"):
        del sizes[name]
    make_release(tmp_path / "source", dataset="text8", **sizes)
    assert run("--source", tmp_path / "source", "--out", tmp_path / "run") == 0
    lm = txl_tf.load(tmp_path / "run")
    assert lm.evaluation == txl_tf.presets.get("text8_base").evaluation
    assert (lm.config.dropout, lm.config.dropatt) == (0.1, 0.0)
    assert "preset text8_base)" in capsys.readouterr().out
    more = ("--out", tmp_path / "other", "--eval_mem_len", 10)
    assert run("--source", tmp_path / "source", *more) == 0
    assert "preset text8_base, changed by flags)" in capsys.readouterr().out


def test_without_data_the_run_knows_ids_alone(tmp_path, capsys):
    config = make_release(tmp_path / "source", **WORDS)
    out = tmp_path / "run"
    assert run("--source", tmp_path / "source" / "model", "--out", out) == 0
    assert txl_tf.load(out).vocabulary is not None  # data/ is found beside model/
    (tmp_path / "source" / "data").rename(tmp_path / "elsewhere")
    out = tmp_path / "bare"
    assert run("--source", tmp_path / "source", "--out", out) == 0
    lm = txl_tf.load(out)
    assert lm.vocabulary is None
    assert lm.score([[1, 2, 3]])[0].tokens == 2
    assert not (out / "records").exists()
    assert "has no vocabulary: the run can process ids" in capsys.readouterr().out
    assert lm.config == config


def test_an_export_comes_back_bit_for_bit(tmp_path):
    make_release(tmp_path / "source", step=7, **WORDS)
    assert run("--source", tmp_path / "source", "--out", tmp_path / "a") == 0
    argv = ["export_release", f"--run={tmp_path}/a", f"--out={tmp_path}/exported"]
    assert export_release.main(argv) == 0
    assert run("--source", tmp_path / "exported", "--out", tmp_path / "b") == 0
    first, second = (txl_tf.load(tmp_path / name) for name in "ab")
    assert_equal_weights(second.model, first.model)
    assert (second.config, second.vocabulary) == (first.config, first.vocabulary)
    old, new = (
        tf.train.load_checkpoint(str(tmp_path / name / "model" / "model.ckpt-7"))
        for name in ("source", "exported")
    )
    assert new.get_tensor("global_step") == 7
    shapes = new.get_variable_to_shape_map()
    assert shapes.keys() - {"global_step"} == old.get_variable_to_shape_map().keys()
    for name in old.get_variable_to_shape_map():
        np.testing.assert_array_equal(new.get_tensor(name), old.get_tensor(name))
    info = json.loads((tmp_path / "exported" / "data" / "corpus-info.json").read_text())
    assert info == {"vocab_size": 594, "cutoffs": [0, 50, 200, 594], "dataset": "wt103"}
    assert tf.train.latest_checkpoint(str(tmp_path / "exported" / "model")).endswith("ckpt-7")


@pytest.mark.parametrize("is_new", [True, False])
def test_an_export_that_fails_leaves_nothing(tmp_path, capsys, monkeypatch, is_new):
    def fail(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    make_release(tmp_path / "tf_wt103", **WORDS)
    run("--source", tmp_path / "tf_wt103", "--out", tmp_path / "run")
    if not is_new:
        (tmp_path / "out" / "model").mkdir(parents=True)
        (tmp_path / "out" / "model" / "notes.txt").touch()
    monkeypatch.setattr("txl_tf.release.weights.write_tensors", fail)
    arguments = ["--run", str(tmp_path / "run"), "--out", str(tmp_path / "out")]
    assert export_release.main(["export_release", *arguments]) == 1
    assert "could not be saved: No space left on device" in capsys.readouterr().err
    kept = [] if is_new else [tmp_path / "out" / "model", tmp_path / "out" / "model" / "notes.txt"]
    assert sorted((tmp_path / "out").rglob("*")) == kept


@pytest.mark.parametrize(("split", "status"), [("train", 0), ("dev", 1)])
def test_splits_are_those_of_the_source(split, status, tmp_path, capsys):
    make_release(tmp_path / "source", **WORDS)
    arguments = ["--source", tmp_path / "source", f"--splits={split}", "--out", tmp_path / "run"]
    assert run(*arguments) == status
    error = capsys.readouterr().err
    assert error.count("\n") == status
    assert ("has no split 'dev'; it has train, valid" in error) == status
    assert (tmp_path / "run").exists() == (not status)


def test_a_vocabulary_of_another_size_is_refused(tmp_path, capsys):
    make_release(tmp_path / "source", **WORDS)
    make_release(tmp_path / "other", dataset="ptb")
    (tmp_path / "source" / "model").rename(tmp_path / "other" / "model594")
    (tmp_path / "other" / "model").rename(tmp_path / "source" / "model")
    assert run("--source", tmp_path / "source", "--out", tmp_path / "run") == 1
    assert "vocabulary has 594 symbols, but the model has 1,268" in capsys.readouterr().err


@pytest.mark.slow
def test_training_refuses_to_resume_from_imported_weights_alone(tmp_path, capsys):
    """It must not be set aside as damaged, as a checkpoint without a memory would be."""
    from txl_tf.programs import train as train_gpu

    make_release(tmp_path / "source", **WORDS)
    sizes = ["--dropout=0", "--train_steps=2", "--train_batch_size=3", "--tgt_len=5", "--mem_len=5"]
    out = tmp_path / "run"
    run("--source", tmp_path / "source", "--out", out, "--splits=train", *sizes)
    shapes = "--n_layer=2 --d_model=12 --d_embed=12 --n_head=3 --d_head=5 --d_inner=7 --div_val=2"
    shapes += " --cutoffs=50,200 --untie_r --proj_share_all_but_first"
    argv = [*shapes.split(), *sizes, f"--data_dir={out}/records", "--jit=none"]
    assert train_gpu.main(["train_gpu", *argv, f"--model_dir={out}"]) == 1
    assert "holds only weights: start from them in a new `model_dir`" in capsys.readouterr().err
    warm = [f"--model_dir={tmp_path}/new", f"--warm_start_path={out}/checkpoints/ckpt-0"]
    assert train_gpu.main(["train_gpu", *argv, *warm]) == 0


@pytest.mark.slow
def test_training_continues_with_the_state_of_adam(tmp_path, capsys):
    """One more step is the one that TensorFlow 1's Adam would have made."""
    from txl_tf.programs import train as train_gpu

    step = 7
    make_release(tmp_path / "source", step=step, slots=True, **WORDS)
    sizes = ["--dropout=0", "--dropatt=0", f"--train_steps={step + 1}", "--train_batch_size=3"]
    sizes += ["--tgt_len=5", "--mem_len=5", "--learning_rate=0.01", "--min_lr_ratio=1"]
    out = tmp_path / "run"
    arguments = ["--splits=train", "--with_optimizer", *sizes]
    assert run("--source", tmp_path / "source", "--out", out, *arguments) == 0
    shapes = "--n_layer=2 --d_model=12 --d_embed=12 --n_head=3 --d_head=5 --d_inner=7 --div_val=2"
    shapes += " --cutoffs=50,200 --untie_r --proj_share_all_but_first"
    argv = [*shapes.split(), *sizes, f"--data_dir={out}/records", "--jit=none"]
    assert train_gpu.main(["train_gpu", *argv, f"--model_dir={out}"]) == 0
    assert "has no memory: the run starts with an empty one" in capsys.readouterr().out
    reader = tf.train.load_checkpoint(f"{tmp_path}/source/model/model.ckpt-{step}")
    before, m, v = (
        reader.get_tensor(f"transformer/layer_1/ff/layer_1/bias{slot}")
        for slot in ("", "/Adam", "/Adam_1")
    )
    after = txl_tf.load(out).model.decoder_layers[1].feed_forward.inner.bias.numpy()
    # From the change of the weight and the formula of Adam, with the moments of 2019, follows
    # the gradient of the step: it must be a small one, since the norm is clipped at .25.
    rate = 0.01 * np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
    without_gradient = before - rate * (0.9 * m) / (np.sqrt(0.999 * v) + 1e-8)
    spread = rate * 0.1 * 0.25 / np.sqrt(0.999 * v)
    assert (abs(after - without_gradient) <= 1.1 * spread).all()
    assert abs(after - before).max() > 1e-3


def test_an_import_is_evaluated_on_the_records_of_2019(tmp_path, capsys):
    """They lack the tokens that filled no lane of the four."""
    make_release(tmp_path / "source", python=3, **WORDS)
    assert run("--source", tmp_path / "source", "--out", tmp_path / "run") == 0
    shutil.copytree(DATA / "wt103" / "tfrecords", tmp_path / "source" / "data" / "tfrecords")
    spans = ["--tgt_len=7", "--mem_len=5", "--lanes=2", "--json", "--split=valid", "--jit=none"]
    convert_records(tmp_path / "source" / "data", str(tmp_path / "new"))
    found = []
    for arguments in ([], [f"--data_dir={tmp_path / 'new'}"]):
        capsys.readouterr()
        assert evaluate.main(["evaluate", f"--run={tmp_path}/run", *spans, *arguments]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert [score["tokens"] for score in found] == [581, 582 // 4 * 4 - 1]
    assert found[0]["loss_nats"] == pytest.approx(found[1]["loss_nats"], rel=0.01)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"dataset": 3}', r"must be an object with the name of a data set"),
        (b"[" * 200_000, r"is not valid JSON"),
    ],
)
def test_a_damaged_description_is_one_line(content, message, tmp_path, capsys):
    make_release(tmp_path / "source", **WORDS)
    (tmp_path / "source" / "data" / "corpus-info.json").write_bytes(content)
    assert run("--source", tmp_path / "source", "--out", tmp_path / "run") == 1
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert error.count("\n") == 1


def test_states_of_another_shape_are_refused(tmp_path, capsys):
    config = make_release(tmp_path / "source", step=7, slots=True, **WORDS)
    weights = draw_weights(config)
    slots = draw_slots(weights, step=7) | {"transformer/r_w_bias/Adam": np.zeros(3, "float32")}
    write_checkpoint(tmp_path / "source" / "model" / "model.ckpt-7", weights | slots)
    arguments = ["--out", tmp_path / "run", "--with_optimizer"]
    assert run("--source", tmp_path / "source", *arguments) == 1
    assert "transformer/r_w_bias/Adam is [3], not [2, 3, 5]" in capsys.readouterr().err


def test_a_release_at_an_address_has_its_data(tmp_path):
    make_release(tmp_path / "tf_wt103", **WORDS)
    for source, name in ((tmp_path / "tf_wt103", "here"), (f"file://{tmp_path}/tf_wt103", "there")):
        assert run("--source", source, "--out", tmp_path / name) == 0
    assert txl_tf.load(tmp_path / "there").vocabulary == txl_tf.load(tmp_path / "here").vocabulary
    found, expected = (read_ids(tmp_path / name / "records", "valid") for name in ("there", "here"))
    np.testing.assert_array_equal(found, expected)
