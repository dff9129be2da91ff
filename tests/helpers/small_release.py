"""Small folders as the 2019 release has them, with random weights."""

import json
import shutil

import numpy as np
from places import GOLDEN

from txl_tf.config import ModelConfig
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.release.names import SCOPE, list_entries
from txl_tf.runs.checkpoint import write_tensors

DATA = GOLDEN / "data"
SIZES = {"n_layer": 2, "d_model": 12, "d_embed": 12, "n_head": 3, "d_head": 5, "d_inner": 7}


def write_checkpoint(path, tensors):
    """Writes a checkpoint as TensorFlow 1 did, and returns its path."""
    write_tensors(str(path), tensors)
    return str(path)


def draw_weights(config, *, seed=0):
    """Returns random weights by their names in the release, every bias and gain random too."""
    generator = np.random.default_rng(seed)
    entries = list_entries(TransformerXL(config, seed=1))
    return {
        SCOPE + entry.source: generator.normal(0, 0.3, entry.target.shape).astype("float32")
        for entry in entries
    }


def draw_slots(weights, *, step, seed=0):
    """Returns the state of Adam, as a training checkpoint of the release has it."""
    generator = np.random.default_rng(seed)
    slots = {}
    for name, weight in weights.items():
        slots[f"{name}/Adam"] = generator.normal(0, 0.01, weight.shape).astype("float32")
        slots[f"{name}/Adam_1"] = generator.uniform(1e-4, 1e-3, weight.shape).astype("float32")
    powers = {"beta1_power": np.float32(0.9**step), "beta2_power": np.float32(0.999**step)}
    return slots | powers | {"global_step": np.int64(step)}


def make_release(folder, *, dataset="wt103", python=2, step=0, slots=False, **fields):
    """Makes a folder of the release with the data of a golden corpus; returns its config."""
    info = json.loads((DATA / dataset / "corpus-info.json").read_text())
    config = ModelConfig(n_token=info["vocab_size"], **SIZES | fields)
    weights = draw_weights(config)
    if slots:
        weights |= draw_slots(weights, step=step)
    (folder / "model").mkdir(parents=True)
    (folder / "data").mkdir()
    write_checkpoint(folder / "model" / f"model.ckpt-{step}", weights)
    shutil.copy(DATA / dataset / f"cache.py{python}.pkl", folder / "data" / "cache.pkl")
    shutil.copy(DATA / dataset / "corpus-info.json", folder / "data")
    return config
