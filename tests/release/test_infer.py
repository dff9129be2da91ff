import json
import shutil

import pytest
import tensorflow as tf
from places import GOLDEN
from small_release import write_checkpoint
from tables import slow_after

from txl_tf.config import ModelConfig
from txl_tf.errors import UserError
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.release.infer import infer_config
from txl_tf.release.weights import (
    SCOPE,
    find_release_checkpoint,
    list_entries,
)

FOLDER = GOLDEN / "model"
NAMES = ("char", "word_base", "word_large", "lm1b")
SIZES = {"n_token": 29, "n_layer": 2, "n_head": 3, "d_head": 5, "d_inner": 7}
FREE = ("dropout", "dropatt", "init", "init_std", "proj_init_std", "init_range")


def write_model(path, config, **extra):
    entries = list_entries(TransformerXL(config, seed=1))
    tensors = {SCOPE + entry.source: tf.zeros(entry.target.shape) for entry in entries}
    return write_checkpoint(path, tensors | extra)


def list_shapes(config):
    entries = list_entries(TransformerXL(config, seed=1))
    return {entry.source: tuple(entry.target.shape) for entry in entries}


@pytest.mark.parametrize("name", NAMES)
def test_the_shapes_of_a_golden_checkpoint_tell_its_config(name):
    settings = json.loads((FOLDER / name / "config.json").read_text())
    found = infer_config(str(FOLDER / name / "model.ckpt-0")).to_json()
    known = {key: value for key, value in found.items() if key in settings}
    known["cutoffs"] = list(known["cutoffs"])
    assert known == {key: settings[key] for key in known}
    assert {"n_layer", "d_inner", "div_val", "untie_r", "proj_same_dim"} <= known.keys()


CONFIGS = [
    # d_embed above d_model with div_val 2: the second bin has the width of the model.
    {"d_model": 8, "d_embed": 16, "cutoffs": (3, 5, 11), "div_val": 2, "untie_r": True}
    | {"proj_share_all_but_first": True, "proj_same_dim": True},
    {"d_model": 8, "d_embed": 16, "cutoffs": (11,), "div_val": 2, "proj_same_dim": False},
    {"d_model": 16, "d_embed": 8, "cutoffs": (5,), "div_val": 4, "proj_same_dim": False},
    {"d_model": 16, "d_embed": 8, "cutoffs": (11,), "proj_share_all_but_first": True},
    {"d_model": 8, "d_embed": 8, "cutoffs": (3, 5, 11), "div_val": 2},
    {"d_model": 8, "d_embed": 8, "cutoffs": (11,), "proj_same_dim": True, "untie_r": True},
    {"d_model": 8, "d_embed": 16},
]


@pytest.mark.parametrize("fields", slow_after(3, CONFIGS))
def test_the_inferred_config_has_the_shapes_of_the_checkpoint(fields, tmp_path):
    """Names and shapes of all weights decide what is computed: equal ones are the same model."""
    config = ModelConfig(**SIZES | fields)
    found = infer_config(write_model(tmp_path / "m", config))
    assert list_shapes(found) == list_shapes(config)
    own = set(FREE) | {"proj_share_all_but_first", "proj_same_dim"}
    for name, value in config.to_json().items():
        assert name in own or getattr(found, name) == value, name


def test_slots_of_the_optimizer_are_no_weights(tmp_path):
    config = ModelConfig(**SIZES | {"d_model": 8, "d_embed": 8})
    slot = {f"{SCOPE}layer_7/ff/layer_1/kernel/Adam": tf.zeros(3), "beta1_power": tf.zeros(())}
    assert infer_config(write_model(tmp_path / "m", config, **slot)).n_layer == 2


@pytest.mark.parametrize(
    ("removed", "added", "message"),
    [
        ("r_w_bias", {}, r"transformer/r_w_bias is missing"),
        ("r_w_bias", {"r_w_bias": (15,)}, r"its variables have other shapes: not enough values"),
        (
            "adaptive_embed/lookup_table",
            {
                "adaptive_embed/cutoff_0/lookup_table": (11, 8),
                "adaptive_embed/cutoff_1/lookup_table": (18, 7),
            },
            r"no `div_val` gives embeddings of the widths \[8, 7\]",
        ),
        (
            "adaptive_embed/lookup_table",
            {
                "adaptive_embed/cutoff_0/lookup_table": (11, 4),
                "adaptive_embed/cutoff_1/lookup_table": (18, 8),
            },
            r"no `div_val` gives embeddings of the widths \[4, 8\]",
        ),
    ],
)
def test_tensors_of_another_model_are_refused(removed, added, message, tmp_path):
    shapes = list_shapes(ModelConfig(**SIZES | {"d_model": 8, "d_embed": 8}))
    del shapes[removed]
    tensors = {SCOPE + name: tf.zeros(shape) for name, shape in (shapes | added).items()}
    path = write_checkpoint(tmp_path / "m", tensors)
    with pytest.raises(UserError, match=message) as error:
        infer_config(path)
    assert str(error.value).startswith(f"{path} is not a checkpoint of the 2019 release: ")


@pytest.mark.parametrize("place", ["", "model", "model/model.ckpt-0", "model/model.ckpt-0.index"])
def test_a_checkpoint_is_found_from_any_of_its_folders(place, tmp_path):
    shutil.copytree(FOLDER / "char", tmp_path / "model")
    assert find_release_checkpoint(str(tmp_path / place)) == str(
        tmp_path / "model" / "model.ckpt-0"
    )


def test_the_file_called_checkpoint_decides_wherever_the_folder_was(tmp_path):
    for step in (7, 30, 200):
        (tmp_path / f"model.ckpt-{step}.index").touch()
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "/old/place/model.ckpt-30"\n'
        'all_model_checkpoint_paths: "/old/place/model.ckpt-7"\n'
    )
    assert find_release_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-30")


@pytest.mark.parametrize("text", [None, 'model_checkpoint_path: "model.ckpt-8"'])
def test_without_it_the_newest_step_does(text, tmp_path):
    for step in (7, 30, 200):
        (tmp_path / f"model.ckpt-{step}.index").touch()
    if text is not None:
        (tmp_path / "checkpoint").write_text(text, "latin-1")
    assert find_release_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-200")


def test_an_index_that_lists_more_than_the_files_hold_is_refused(tmp_path):
    config = ModelConfig(**SIZES, d_model=8, d_embed=8)
    name, shape = "adaptive_embed/lookup_table", "29 1000000000000"
    shapes = {SCOPE + name: shape for name, shape in list_shapes(config).items()}
    names = sorted(shapes)
    # A slice of the stated shape is all that is written.
    slices = {SCOPE + name: f"{shape} " + ":".join("0,2" for _ in shape.split())}
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "model.ckpt-0"),
        tensor_names=names,
        shape_and_slices=[slices.get(name, "") for name in names],
        tensors=[
            tf.zeros([2] * len(shapes[name])) if name in slices else tf.zeros(shapes[name])
            for name in names
        ],
    )
    with pytest.raises(
        UserError, match=r"damaged: its index lists 1?[\d,]+ numbers, but its files"
    ):
        infer_config(str(tmp_path / "model.ckpt-0"))
