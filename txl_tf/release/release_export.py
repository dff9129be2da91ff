"""Writes models in the format of the 2019 release."""

import json
import os

import tensorflow as tf

from txl_tf.config import ModelConfig
from txl_tf.data.files import access_path, write_json, write_text
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError, explain
from txl_tf.model import TransformerXL
from txl_tf.release.weights import GLOBAL_STEP, SCOPE, list_entries
from txl_tf.runs.checkpoint_writer import write_tensors


def export_model(out: str, model: TransformerXL, *, step: int) -> str:
    """Writes a model to `model/` as a checkpoint of TensorFlow 1's Saver, and returns its path."""
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
    """Writes `data/`: `corpus-info.json` as the release's programs read it, and the vocabulary.

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
