"""Reads and writes the TensorFlow 1 checkpoints of the 2019 release."""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf.config import ModelConfig
from txl_tf.data.files import access_path, check_address, write_json, write_text
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError, explain, explain_errors
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.release.names import SCOPE, list_entries
from txl_tf.runs.checkpoint import write_tensors
from txl_tf.runs.checkpoint_choice import check_checkpoint_path

GLOBAL_STEP = "global_step"
SLOTS = ("Adam", "Adam_1")  # the first and the second moment
# Raised by TensorFlow for files that are not checkpoints.
_UNREADABLE = (IndexError, TypeError, ValueError, RuntimeError, tf.errors.OpError)
# The variables of a training checkpoint that are not weights.
_OPTIMIZER_STATE = re.compile(r".*/Adam(_1)?$|beta[12]_power$|global_step$")


def load_model(path: str, config: ModelConfig) -> TransformerXL:
    """Returns a model with the weights of a checkpoint of the 2019 release.

    Args:
        path: The path of the checkpoint without `.index`, as in "model.ckpt-0".
        config: The config of the model. Every weight of the checkpoint must fit it; the state of
            an optimizer is ignored.

    Raises:
        UserError: If the checkpoint cannot be read, or if a weight is missing, is not in the model
            or has another shape. The message names up to eight such weights.
    """
    with open_release_checkpoint(path) as reader:
        model = TransformerXL(config, dtype="float32")
        entries = list(list_entries(model))
        needed = {SCOPE + entry.source: list(entry.target.shape) for entry in entries}
        check_shapes(path, needed, read_weight_shapes(reader))
        for source, target in entries:
            target.assign(reader.get_tensor(SCOPE + source))
    return model


def read_weight_shapes(reader: Any) -> dict[str, list[int]]:
    """Returns the shapes of the variables of an open checkpoint, without the optimizer's state."""
    shapes = reader.get_variable_to_shape_map()
    return {name: shape for name, shape in shapes.items() if not _OPTIMIZER_STATE.match(name)}


def read_weights(path: str) -> dict[str, np.ndarray]:
    """Returns the variables of a checkpoint by name, without the optimizer's state."""
    with open_release_checkpoint(path) as reader:
        return {name: reader.get_tensor(name) for name in read_weight_shapes(reader)}


def read_global_step(path: str) -> int:
    """Returns the training step of a checkpoint, from its variable or name; 0 if unknown."""
    with open_release_checkpoint(path) as reader:
        if reader.get_variable_to_shape_map().get(GLOBAL_STEP) == []:
            return int(reader.get_tensor(GLOBAL_STEP))
    return _parse_step(path)


def _parse_step(name: str) -> int:
    """Returns the step in the name of a checkpoint, model.ckpt-STEP; 0 if there is none."""
    step = re.search(r"-(\d+)$", name)
    return int(step[1]) if step else 0


@contextlib.contextmanager
def open_release_checkpoint(path: str) -> Iterator[Any]:
    """Opens a checkpoint to read tensors by name; raises `UserError` if it is damaged."""
    check_checkpoint_path(path)
    with explain_errors(f"No TensorFlow checkpoint can be read at {path}", *_UNREADABLE):
        yield tf.train.load_checkpoint(path)


def find_release_checkpoint(source: str) -> str:
    """Returns the path of the newest checkpoint of a release, without `.index`.

    `source` is a folder of the release with `model/`, the model folder itself, or a checkpoint. In
    a folder, the result is the checkpoint that the file `checkpoint` names, if it exists;
    otherwise, the one with the highest step.
    """
    check_address(source)
    path = source.removesuffix(".index")
    if tf.io.gfile.exists(f"{path}.index"):
        return path
    for folder in (os.path.join(source, "model"), source):
        files = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
        found = {name.removesuffix(".index") for name in files if name.endswith(".index")}
        if found:
            named = _read_checkpoint_file(os.path.join(folder, "checkpoint"))
            newest = max(found, key=lambda name: (_parse_step(name), name))
            return os.path.join(folder, named if named in found else newest)
    if not tf.io.gfile.exists(source):
        raise UserError(f"`{source}` does not exist")
    raise UserError(
        f"`{source}` holds no TensorFlow checkpoint (files .index and .data-*, there or in model/) "
        "and no Transformer-XL of Hugging Face (config.json)"
    )


def _read_checkpoint_file(path: str) -> str:
    """Returns the name of the checkpoint in a file `checkpoint`; its folder may have moved."""
    if not tf.io.gfile.exists(path):
        return ""
    with tf.io.gfile.GFile(path, "rb") as file:
        found = re.search(rb'^model_checkpoint_path: "([^"\n]+)"', file.read(), re.MULTILINE)
    return os.path.basename(found[1].decode("utf-8", "replace")) if found else ""


def escape_name(name: str) -> str:
    """Returns the start of an untrusted name as printable characters on one line."""
    return name[:200].encode("unicode_escape").decode("ascii")


def check_shapes(
    path: str, needed: Mapping[str, list[int]], found: Mapping[str, list[int]]
) -> None:
    """Checks that the saved weights are, by name and shape, exactly those that a model needs."""
    faults = [f"{name} is missing" for name in sorted(needed.keys() - found.keys())]
    for name in sorted(found.keys() - needed.keys()):
        faults.append(f"{escape_name(name)} {found[name]} has no place in the model")
    for name, shape in needed.items():
        if name in found and found[name] != shape:
            faults.append(f"{name} is {found[name]}, the model needs {shape}")
    if faults:
        more = f" (and {len(faults) - 8} more)" if len(faults) > 8 else ""
        raise UserError(f"{path} does not fit the config: {'; '.join(faults[:8])}{more}")


def export_model(out: str, model: TransformerXL, *, step: int) -> str:
    """Writes a model to `model/` as a checkpoint of TensorFlow 1's Saver, and returns its path."""
    check_checkpoint_path(out)
    epsilon = ModelConfig(n_token=model.config.n_token).layer_norm_epsilon
    if model.config.layer_norm_epsilon != epsilon:
        raise UserError(
            f"`layer_norm_epsilon` must be {epsilon}, as the release has no flag for it. "
            f"Received: layer_norm_epsilon={model.config.layer_norm_epsilon}"
        )
    tensors = {
        SCOPE + entry.source: tf.convert_to_tensor(entry.target) for entry in list_entries(model)
    }
    tensors[GLOBAL_STEP] = tf.constant(step, tf.int64)
    folder = os.path.join(out, "model")
    path = os.path.join(folder, f"model.ckpt-{step}")
    with access_path(folder):
        is_new = not tf.io.gfile.isdir(folder)
        tf.io.gfile.makedirs(folder)
        if any(name.endswith(".index") for name in tf.io.gfile.listdir(folder)):
            raise UserError(f"`{folder}` already holds a checkpoint: choose another --out")
    try:
        write_tensors(path, tensors)
    except (tf.errors.OpError, OSError) as error:
        for part in tf.io.gfile.glob(f"{path}.*"):
            tf.io.gfile.remove(part)
        if is_new:
            tf.io.gfile.rmtree(folder)
        raise UserError(f"checkpoint {path} could not be saved: {explain(error)}") from error
    name = json.dumps(os.path.basename(path))
    lines = (f"model_checkpoint_path: {name}", f"all_model_checkpoint_paths: {name}")
    write_text(os.path.join(folder, "checkpoint"), "".join(f"{line}\n" for line in lines))
    return path


def export_data(out: str, vocabulary: Vocabulary, config: ModelConfig, dataset: str) -> None:
    """Writes `data/`: `corpus-info.json` in the format of the release, and the vocabulary.

    No pickle is written: unpickling can execute code, and the release's training and evaluation
    read no pickle.
    """
    folder = os.path.join(out, "data")
    with access_path(folder):
        tf.io.gfile.makedirs(folder)
    # The release's programs drop the first and the last.
    cutoffs = [0, *config.cutoffs, config.n_token] if config.cutoffs else []
    info = {"vocab_size": len(vocabulary), "cutoffs": cutoffs, "dataset": dataset}
    write_json(os.path.join(folder, "corpus-info.json"), info)
    write_json(os.path.join(folder, "vocabulary.json"), vocabulary.to_json())
