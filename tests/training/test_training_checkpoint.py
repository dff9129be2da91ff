import dataclasses
import shutil

import numpy as np
import pytest
import tensorflow as tf
from places import GOLDEN
from small_runs import (
    MODEL,
    Bare,
    copy_checkpoint,
    make_checkpointer,
    make_trainer,
    perturb,
    read_memory,
    read_variables,
    run_steps,
    save_steps,
)

import txl_tf
from txl_tf.errors import UserError
from txl_tf.runs.checkpoint import load_weights, name_variables, read_step
from txl_tf.runs.checkpoint_choice import find_checkpoint, list_checkpoints

MODELS = GOLDEN / "model"  # of the 2019 release
# Every kind of weight: several bins, projections, biases of each layer.
ADAPTIVE = dataclasses.replace(
    MODEL, n_layer=2, cutoffs=(7, 13), div_val=2, untie_r=True, dropout=0.0
)


def test_every_weight_and_slot_is_restored(tmp_path):
    run, fresh = Bare(ADAPTIVE), Bare(ADAPTIVE)
    perturb(run)  # no slot is zero
    run.set_step(11)
    expected = read_variables(run)
    make_checkpointer(tmp_path, run).save()
    perturb(fresh)
    perturb(fresh)
    assert make_checkpointer(tmp_path, fresh).restore() == 11
    for path, value in read_variables(fresh).items():
        np.testing.assert_array_equal(value, expected[path], err_msg=path)


def test_a_run_without_checkpoints_restores_to_step_0(tmp_path):
    assert make_checkpointer(tmp_path, Bare()).restore() == 0


def test_two_replicas_restore_what_one_saved(tmp_path, two_replicas):
    run = Bare()
    perturb(run)
    run.set_step(7)
    make_checkpointer(tmp_path, run).save()
    trainer = make_trainer(two_replicas)
    assert make_checkpointer(tmp_path, trainer).restore() == trainer.step == 7
    expected = read_variables(run)
    for variable in trainer.model.weights + trainer.optimizer.variables:
        for local in two_replicas.experimental_local_results(variable.value):
            np.testing.assert_array_equal(local.numpy(), expected[variable.path])


@pytest.mark.slow
@pytest.mark.parametrize("order", ["one, then two", "two, then one"])
def test_a_run_resumes_with_another_number_of_replicas(order, tmp_path, one_replica, two_replicas):
    strategies = [one_replica, two_replicas] if order[:3] == "one" else [two_replicas, one_replica]
    first, second = (make_trainer(strategy) for strategy in strategies)
    run_steps(first, [3])
    make_checkpointer(tmp_path, first).save()
    make_checkpointer(tmp_path, second).restore()
    np.testing.assert_array_equal(
        np.concatenate(read_memory(second)[1]), np.concatenate(read_memory(first)[1])
    )
    # The order in which two replicas add up is another one.
    found, expected = (run_steps(trainer, [7]).nats for trainer in (second, first))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("change", [{"n_layer": 3}, {"n_layer": 1}, {"n_token": 29}])
def test_a_checkpoint_of_another_model_is_refused(saved, change):
    model_dir, _, _ = saved
    model = txl_tf.TransformerXL(dataclasses.replace(MODEL, **change))
    ((name, value),) = change.items()
    field = f"{name} is {getattr(MODEL, name)!r} there and {value!r} here"
    with pytest.raises(UserError, match=f"ckpt-5 belongs to another model: {field}$"):
        load_weights(model, find_checkpoint(str(model_dir)))


def test_a_checkpoint_of_the_2019_release_is_named_with_what_to_do(tmp_path):
    shutil.copytree(MODELS / "char", tmp_path / "tf_text8" / "model")
    path = tmp_path / "tf_text8" / "model" / "model.ckpt-0"
    command = f"txl import_release --source {tmp_path / 'tf_text8'} --out MODEL_DIR"
    with pytest.raises(UserError, match=rf"is a checkpoint of the 2019 release\..*: {command}$"):
        load_weights(txl_tf.TransformerXL(MODEL), str(path))


def test_fields_that_shape_no_weight_are_not_compared(saved):
    model_dir, _, _ = saved
    path = find_checkpoint(str(model_dir))
    shapeless = {"dropout": 0.5, "dropatt": 0.5, "init_std": 0.1, "layer_norm_epsilon": 1e-5}
    load_weights(txl_tf.TransformerXL(dataclasses.replace(MODEL, **shapeless)), path)
    other = dataclasses.replace(MODEL, n_layer=3, **shapeless)
    with pytest.raises(UserError, match=r"another model: n_layer is 2 there and 3 here$"):
        load_weights(txl_tf.TransformerXL(other), path)


@pytest.mark.parametrize(("n_layer", "part"), [(2, "origin/step"), (3, "config/model")])
def test_a_checkpoint_of_others_is_refused_and_stays_where_it_is(n_layer, part, tmp_path):
    path = tmp_path / "checkpoints" / "ckpt-3"
    run, other = Bare(), Bare(dataclasses.replace(MODEL, n_layer=n_layer))
    optimizer = {x.path.replace("/", "."): x.value for x in run.optimizer.variables}
    path.parent.mkdir()
    others = tf.train.Checkpoint(weights=name_variables(run.model), optimizer=optimizer)
    others.write(str(path))
    message = f"{path} is no checkpoint of a run of txl_tf: it lacks {part}$"
    with pytest.raises(UserError, match=message):
        make_checkpointer(tmp_path, other).restore()
    with pytest.raises(UserError, match="is no checkpoint of a run of txl_tf"):
        load_weights(other.model, str(path))
    assert path.with_suffix(".index").exists()


def test_weights_under_the_name_of_another_step_are_refused(tmp_path):
    run, folder = Bare(), tmp_path / "checkpoints"
    save_steps(make_checkpointer(tmp_path, run), run, [3])
    copy_checkpoint(folder / "ckpt-3", folder / "ckpt-160")
    with pytest.raises(
        UserError, match=r"ckpt-160 does not match.*: it holds the weights of step 3"
    ):
        load_weights(run.model, str(folder / "ckpt-160"))


def test_weights_in_the_folder_of_another_run_are_refused(tmp_path):
    run, folder = Bare(), tmp_path / "checkpoints"
    save_steps(make_checkpointer(tmp_path, run, run_id="00112233aabb"), run, [3])
    load_weights(run.model, str(folder / "ckpt-3"))
    (tmp_path / "run.json").write_text('{"run_id": "aabbccddeeff"}')
    message = "it belongs to run 00112233aabb, not to run aabbccddeeff"
    with pytest.raises(UserError, match=f"ckpt-3 does not match its folder .*: {message}"):
        load_weights(run.model, str(folder / "ckpt-3"))
    shutil.copytree(folder, tmp_path / "elsewhere")
    load_weights(run.model, str(tmp_path / "elsewhere" / "ckpt-3"))


def test_checkpoints_are_listed_oldest_first(tmp_path):
    run = Bare()
    save_steps(make_checkpointer(tmp_path, run), run, [9, 10, 101])  # not in order of the letters
    folder = tmp_path / "checkpoints"
    assert list_checkpoints(str(tmp_path)) == [
        (step, str(folder / f"ckpt-{step}")) for step in (9, 10, 101)
    ]


def test_a_folder_without_checkpoints_has_no_newest(tmp_path):
    with pytest.raises(UserError, match="holds no checkpoint"):
        find_checkpoint(str(tmp_path))


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    run = Bare()
    save_steps(make_checkpointer(tmp_path, run, keep=2), run, [2, 3])
    save_steps(make_checkpointer(tmp_path, run, keep=2), run, [5, 7])
    assert [step for step, _ in list_checkpoints(str(tmp_path))] == [5, 7]
    assert len(list((tmp_path / "checkpoints").glob("ckpt-?.index"))) == 2


def test_the_step_is_read_from_the_name():
    assert read_step("runs/a-3/ckpt-17") == 17
    with pytest.raises(UserError, match="'model-5/weights' does not end in a step"):
        read_step("model-5/weights")
