"""Writing what the 2019 release could read."""

import dataclasses
import json
import os

import tensorflow as tf

from txl_tf.config import ModelConfig
from txl_tf.data.files import access_path
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.errors import UserError, explain
from txl_tf.model import TransformerXL
from txl_tf.release.checkpoint import GLOBAL_STEP, SCOPE, list_entries
from txl_tf.runs.checkpoint_writer import write_tensors
from txl_tf.runs.files import write_json, write_text


def export_model(out: str, model: TransformerXL, *, step: int) -> str:
    """Writes a model as a checkpoint of TensorFlow 1's Saver, under the release's names.

    Args:
        out: folder of the release; the checkpoint goes to its `model/`.
        model: the model.
        step: how many steps made it.

    Returns:
        The path of the checkpoint without `.index`.

    Raises:
        UserError: the release has no place for a setting of the model, the folder holds a
            checkpoint already, or it cannot be written.
    """
    _check_config(model.config)
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
            raise UserError(f"`{folder}` holds a checkpoint already: choose another --out")
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
    """Writes `data/`: `corpus-info.json` as the release's programs read it, and the vocabulary.

    No pickle is written: it would run code where it is read, and the release's training and
    evaluation read none.

    Args:
        out: folder of the release.
        vocabulary: its symbols.
        config: of the model.
        dataset: name of the data set.

    Raises:
        UserError: it cannot be written.
    """
    folder = os.path.join(out, "data")
    with access_path(folder):
        tf.io.gfile.makedirs(folder)
    # The release's programs cut the first and the last off.
    cutoffs = [0, *config.cutoffs, config.n_token] if config.cutoffs else []
    info = {"vocab_size": len(vocabulary), "cutoffs": cutoffs, "dataset": dataset}
    write_json(os.path.join(folder, "corpus-info.json"), info)
    write_json(os.path.join(folder, "vocabulary.json"), vocabulary.to_json())


def _check_config(config: ModelConfig) -> None:
    """Checks that the release's code computes what the model does.

    Raises:
        UserError: it has no setting for a field, and computes as if it were another.
    """
    fields = {field.name: field.default for field in dataclasses.fields(config)}
    for name in ("layer_norm_epsilon",):
        if getattr(config, name) != fields[name]:
            raise UserError(
                f"the release's code has `{name}` {fields[name]}, and no flag for another. "
                f"Received: {name}={getattr(config, name)}"
            )
