"""Models of Hugging Face transformers beside what its code computed, and beside plain NumPy."""

import json
import shutil
import struct
import sys
import types

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hub_reference import SMALL, compute_losses, make_tensors
from places import GOLDEN
from safetensors.numpy import load_file, save_file
from small_model import LOSS_TOLERANCE
from tables import slow_after

from txl_tf.errors import UserError
from txl_tf.release import load_transformers_model
from txl_tf.release.transformers_folder import list_weights

FOLDER = GOLDEN / "hub" / "word"
LENGTH, N_SEGMENTS = 3, 4
ONE_TABLE = {"div_val": 1, "tie_projs": [False, False, False]}
NARROW = {"d_embed": 10}
VARIANTS = {
    "divided, projections of its own, causal mask": {
        **{"tie_projs": [False, False, False], "same_length": False, "clamp_len": -1}
    },
    "one table, projections shared, one pair of biases": NARROW | {"div_val": 1, "untie_r": False},
    "one table, projections of its own, another epsilon": {
        **(NARROW | ONE_TABLE | {"layer_norm_epsilon": 0.1})
    },
    "one table, no memory": ONE_TABLE | {"mem_len": 0, "same_length": False},
    "divided, no cutoffs, short memory": {"cutoffs": [], "tie_projs": [True], "mem_len": 2},
    "one table, no cutoffs": {"div_val": 1, "cutoffs": [], "tie_projs": [False]},
}


def write_folder(folder, settings, tensors):
    """Writes a folder as Hugging Face transformers does, and returns its path."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


def read_golden_folder():
    settings = json.loads((FOLDER / "config.json").read_text())
    return settings, load_file(FOLDER / "model.safetensors")


def read_golden():
    with np.load(FOLDER / "golden.npz") as arrays:
        return dict(arrays), json.loads((FOLDER / "golden.json").read_text())["tgt_len"]


def make_tokens():
    shape = (2, LENGTH * N_SEGMENTS + 1)
    return np.random.default_rng(3).integers(SMALL["vocab_size"], size=shape, dtype="int32")


def run_segments(model, span, tokens, tgt_len):
    """Returns losses and memory of each segment under the keys of the golden file."""

    @tf.function
    def step(ids, targets, memory):
        hidden, memory = model(ids, memory, span=span)
        return model.nll(hidden, targets), memory

    memory, results = model.initial_memory(len(tokens), span.mem_len), {}
    for index, start in enumerate(range(0, tokens.shape[1] - 1, tgt_len)):
        ids, targets = (
            tf.constant(tokens[:, place : place + tgt_len]) for place in (start, start + 1)
        )
        results[f"nll_{index}"], memory = step(ids, targets, memory)
        results |= {f"mem_{index}_{layer}": states for layer, states in enumerate(memory)}
    return results


def get_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


def use_torch_file(monkeypatch, tensors):
    """Lets every pytorch_model.bin hold these tensors."""
    stub = types.ModuleType("txl_tf.release.torch_file")
    stub.read_torch_file = lambda path: dict(tensors)
    monkeypatch.setitem(sys.modules, stub.__name__, stub)


def test_segments_are_those_of_hugging_face_transformers():
    golden, tgt_len = read_golden()
    model, evaluation = load_transformers_model(str(FOLDER))
    tokens = golden.pop("tokens")
    computed = run_segments(model, evaluation.span, tokens, tgt_len)
    assert computed.keys() == golden.keys()
    for key, expected in golden.items():
        np.testing.assert_allclose(
            computed[key], expected, rtol=0, atol=LOSS_TOLERANCE, err_msg=key
        )


def test_the_reference_of_these_tests_is_hugging_face_transformers():
    (golden, tgt_len), (settings, tensors) = read_golden(), read_golden_folder()
    for index, nll in enumerate(compute_losses(settings, tensors, golden["tokens"], tgt_len)):
        np.testing.assert_allclose(nll, golden[f"nll_{index}"], rtol=0, atol=LOSS_TOLERANCE)


@pytest.mark.parametrize("variant", slow_after(2, VARIANTS))
def test_every_kind_of_model_has_the_losses_of_the_reference(variant, tmp_path):
    settings = SMALL | VARIANTS[variant]
    tensors, tokens = make_tensors(settings), make_tokens()
    model, evaluation = load_transformers_model(write_folder(tmp_path, settings, tensors))
    computed = run_segments(model, evaluation.span, tokens, LENGTH)
    for index, expected in enumerate(compute_losses(settings, tensors, tokens, LENGTH)):
        np.testing.assert_allclose(computed[f"nll_{index}"], expected, rtol=0, atol=LOSS_TOLERANCE)
    targets = [id(weight.target) for weight in list_weights(model)]
    assert sorted(targets) == sorted(map(id, model.trainable_variables))  # each has one place


def list_twins(tensors):
    """Returns the second names that a .bin has for some of the tensors, with their arrays."""
    tables = {f"crit.out_layers.{i}.weight": f"emb_layers.{i}.weight" for i in range(3)}
    projections = {f"crit.out_projs.{i}": f"emb_projs.{i}" for i in (1, 2)}
    twins = {
        twin: tensors[f"transformer.word_emb.{name}"]
        for twin, name in (tables | projections).items()
    }
    for name in ("r_w_bias", "r_r_bias"):
        for index in range(2):
            twins[f"transformer.layers.{index}.dec_attn.{name}"] = tensors[f"transformer.{name}"]
    return twins


TWINNED = SMALL | {"untie_r": False}


def assert_same_weights(folder, expected):
    model, _ = load_transformers_model(folder)
    for computed, variable in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(computed, variable)


def test_a_tensor_may_have_either_name_or_both(tmp_path):
    tensors = make_tensors(TWINNED)
    expected, _ = load_transformers_model(write_folder(tmp_path / "1", TWINNED, tensors))
    twins = list_twins(tensors)
    assert_same_weights(write_folder(tmp_path / "both", TWINNED, tensors | twins), expected)
    kept = {
        name: array
        for name, array in tensors.items()
        if not any(array is twin for twin in twins.values())
    }
    assert len(kept) == len(tensors) - 7
    assert_same_weights(write_folder(tmp_path / "2", TWINNED, kept | twins), expected)


def test_two_names_of_a_tensor_with_other_values_are_refused(tmp_path):
    twin, name = "transformer.layers.1.dec_attn.r_r_bias", "transformer.r_r_bias"
    tensors = make_tensors(TWINNED)
    tensors |= list_twins(tensors)
    tensors[twin] = tensors[twin] + 1
    folder = write_folder(tmp_path, TWINNED, tensors)
    with pytest.raises(UserError, match=rf"cannot be read: {twin} and {name} must be equal$"):
        load_transformers_model(folder)


def test_the_frequencies_of_the_sinusoids_are_passed_over(tmp_path):
    settings, tensors = read_golden_folder()
    expected, _ = load_transformers_model(str(FOLDER))
    del tensors["transformer.pos_emb.inv_freq"]
    assert_same_weights(write_folder(tmp_path, settings, tensors), expected)


def test_a_missing_tensor_is_named(tmp_path):
    name = "transformer.layers.1.dec_attn.r_w_bias"
    tensors = make_tensors(SMALL)
    del tensors[name]
    folder = write_folder(tmp_path, SMALL, tensors)
    with pytest.raises(UserError, match=rf"does not fit the config: {name} is missing$") as error:
        load_transformers_model(folder)
    assert get_line(error).startswith(folder)


def test_a_tensor_without_a_place_is_named(tmp_path):
    extra = {"crit.out_projs.3": np.zeros((3, 5), "float32")}
    folder = write_folder(tmp_path, SMALL, make_tensors(SMALL) | extra)
    with pytest.raises(UserError, match=r": crit.out_projs.3 \[3, 5\] has no place in the model$"):
        load_transformers_model(folder)


def test_a_tensor_of_another_shape_or_of_integers_is_named(tmp_path):
    tensors, name = make_tensors(SMALL), "transformer.layers.0.dec_attn.o_net.weight"
    tensors[name] = np.ascontiguousarray(tensors[name].T)
    folder = write_folder(tmp_path, SMALL, tensors)
    with pytest.raises(UserError, match=rf": {name} is \[15, 6\], the model needs \[6, 15\]$"):
        load_transformers_model(folder)
    folder = write_folder(tmp_path, SMALL, tensors | {name: tensors[name].astype("int8")})
    with pytest.raises(UserError, match=rf"cannot be read: {name} has the dtype int8$"):
        load_transformers_model(folder)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, "float64"])
def test_tensors_of_other_floating_numbers_become_float32(dtype, tmp_path):
    tensors = {name: array.astype(dtype) for name, array in make_tensors(SMALL).items()}
    model, _ = load_transformers_model(write_folder(tmp_path, SMALL, tensors))
    table = np.asarray(model.embedding.tables[1])
    assert table.dtype == np.float32
    expected = tensors["transformer.word_emb.emb_layers.1.weight"].astype("float32")
    np.testing.assert_array_equal(table, expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_layer": 10**3},
        {"vocab_size": 10**4, "div_val": 1, "cutoffs": list(range(1, 10**4))},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_config_of_a_far_larger_model_is_refused_before_making_it(changes, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "txl_tf.release.transformers_folder.TransformerXL", lambda *_: pytest.fail("made")
    )
    settings = {name: value for name, value in SMALL.items() if name != "tie_projs"}
    folder = write_folder(tmp_path, settings | changes, make_tensors(SMALL))
    with pytest.raises(UserError, match=r"its config describes a far larger model than its "):
        load_transformers_model(folder)


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("F8_E4M3", [8], 8),
        ("F32", [0] + [2**30] * 20, 0),
        ("F32", [10**12], 8),
    ],
)
def test_a_header_that_numpy_cannot_follow_is_one_line(dtype, shape, size, tmp_path):
    copy_golden_folder(tmp_path)
    header = json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}})
    data = struct.pack("<Q", len(header)) + header.encode() + bytes(size)
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(UserError, match=r"model\.safetensors` cannot be read: ") as error:
        load_transformers_model(str(tmp_path))
    get_line(error)


def test_a_name_is_shown_without_control_characters(tmp_path):
    extra = {"a\n\x1b[31m": np.zeros(3, "float32")}
    folder = write_folder(tmp_path, SMALL, make_tensors(SMALL) | extra)
    with pytest.raises(UserError, match=r": a\\n\\x1b\[31m \[3\] has no place in the model$"):
        load_transformers_model(folder)


def write_shards(folder):
    """Cuts the file of a folder into two; returns the index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    places = {key: names[index % 2] for index, key in enumerate(sorted(tensors))}
    for name in names:
        save_file({key: tensors[key] for key in places if places[key] == name}, folder / name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return index


def copy_golden_folder(folder, *names):
    for name in ("config.json", *names):
        shutil.copy(FOLDER / name, folder)


def test_shards_are_one_model(tmp_path):
    expected, _ = load_transformers_model(str(FOLDER))
    copy_golden_folder(tmp_path, "model.safetensors")
    write_shards(tmp_path)
    assert_same_weights(str(tmp_path), expected)


def test_a_missing_shard_is_named(tmp_path):
    copy_golden_folder(tmp_path, "model.safetensors")
    write_shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match=r"model-00002-of-00002.safetensors` cannot be") as error:
        load_transformers_model(str(tmp_path))
    get_line(error)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", '{"weight_map": {"a": "../b"}}'])
def test_an_index_that_names_no_files_is_refused(text, tmp_path):
    copy_golden_folder(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(UserError, match=r"cannot be read: it does not map tensors to files"):
        load_transformers_model(str(tmp_path))


def test_a_bin_is_read_where_there_is_nothing_else(tmp_path, monkeypatch):
    expected, _ = load_transformers_model(str(FOLDER))
    copy_golden_folder(tmp_path, "pytorch_model.bin")
    use_torch_file(monkeypatch, load_file(FOLDER / "model.safetensors"))
    assert_same_weights(str(tmp_path), expected)


def test_a_folder_without_weights_is_one_line(tmp_path):
    copy_golden_folder(tmp_path)
    message = r"` holds no weights: it has neither model.safetensors nor pytorch_model.bin$"
    with pytest.raises(UserError, match=message):
        load_transformers_model(str(tmp_path))
