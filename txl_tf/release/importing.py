"""Imports a model of the 2019 release, or of Hugging Face transformers, as a run folder."""

import os
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.config import EvalConfig, ModelConfig
from txl_tf.data.files import is_remote, read_json, write_json
from txl_tf.data.records.writing import write_records
from txl_tf.data.temporary_folders import write_aside
from txl_tf.data.text.vocabulary import Vocabulary, check_size
from txl_tf.errors import UserError, explain_errors
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.release.corpus import read_corpus
from txl_tf.release.infer import infer_config
from txl_tf.release.names import SCOPE, list_entries
from txl_tf.release.transformers_folder import (
    is_transformers_folder,
    load_transformers_model,
    read_transformers_vocabulary,
)
from txl_tf.release.weights import (
    GLOBAL_STEP,
    SLOTS,
    find_release_checkpoint,
    load_model,
    open_release_checkpoint,
    read_global_step,
)
from txl_tf.runs.checkpoint import save_weights
from txl_tf.runs.folder import (
    IMPORT_NAME,
    RECORDS_NAME,
    RunConfig,
    make_run_folder,
    read_run_vocabulary,
)
from txl_tf.training.optimizer import Optimizer
from txl_tf.training.update_rules import make_optimizer


class Release(NamedTuple):
    """A released model and the data that came with it; unknown fields are `None`."""

    kind: str  # "release2019" or "transformers"
    path: str  # of the checkpoint, or of the folder
    model: TransformerXL
    step: int  # the number of steps that it was trained for; 0 if unknown
    evaluation: EvalConfig | None  # as its authors state it
    dataset: str | None
    vocabulary: Vocabulary | None
    splits: Mapping[str, np.ndarray]  # the ids of each split, (n,) int32


def read_release(source: str, *, dataset: str | None = None) -> Release:
    """Reads a folder of the 2019 release or of Hugging Face transformers.

    Args:
        source: A folder of the release, with `model/` and optionally `data/`; its model folder; a
            checkpoint; or a folder of a Hugging Face Transformer-XL.
        dataset: The name of the data set, if the source gives none or a wrong one.
    """
    if is_transformers_folder(source):
        model, evaluation = load_transformers_model(source)
        _check_finite(source, model)
        vocabulary = read_transformers_vocabulary(source)
        return Release("transformers", source, model, 0, evaluation, dataset, vocabulary, {})
    path = find_release_checkpoint(source)
    config = infer_config(path)
    found, vocabulary, splits = _read_data(_find_data(source, path), dataset, config)
    model, step = load_model(path, config), read_global_step(path)
    _check_finite(path, model)
    return Release("release2019", path, model, step, None, dataset or found, vocabulary, splits)


def _check_finite(source: str, model: TransformerXL) -> None:
    broken = [weight.path for weight in model.weights if not np.isfinite(weight.numpy()).all()]
    if broken:
        raise UserError(
            f"`{source}` holds NaN or infinity in {len(broken)} of its weights, first in "
            f"{broken[0]}: the training that wrote it diverged"
        )


def _find_data(source: str, path: str) -> str | None:
    """Returns the data folder next to a checkpoint; `None` if there is none."""
    model_dir = os.path.dirname(path)
    for folder in (os.path.join(source, "data"), os.path.join(model_dir, os.pardir, "data")):
        if tf.io.gfile.isdir(folder):
            return folder if is_remote(folder) else os.path.normpath(folder)
    return None


def _read_data(
    data_dir: str | None, dataset: str | None, config: ModelConfig
) -> tuple[str | None, Vocabulary | None, Mapping[str, np.ndarray]]:
    """Returns the name, vocabulary and splits of a data folder, as far as it contains them."""
    if data_dir is None:
        return dataset, None, {}
    info_path = os.path.join(data_dir, "corpus-info.json")
    info = read_json(info_path) if tf.io.gfile.exists(info_path) else {}
    if not isinstance(info, dict) or not isinstance(info.get("dataset", ""), str):
        raise UserError(f"`{info_path}` must be an object with the name of a data set")
    name = dataset or info.get("dataset")
    json_path = os.path.join(data_dir, "vocabulary.json")
    if tf.io.gfile.exists(json_path):  # as `txl export_release` writes it
        vocabulary = read_run_vocabulary(data_dir)  # the file is that of a run folder
        _check_vocabulary(json_path, vocabulary, config)
        return name, vocabulary, {}
    pickle_path = os.path.join(data_dir, "cache.pkl")
    if not tf.io.gfile.exists(pickle_path):
        return name, None, {}
    corpus = read_corpus(pickle_path, dataset=name)
    _check_vocabulary(pickle_path, corpus.vocabulary, config)
    return corpus.dataset, corpus.vocabulary, corpus.splits


def _check_vocabulary(path: str, vocabulary: Vocabulary | None, config: ModelConfig) -> None:
    with explain_errors(f"`{path}`", UserError):
        check_size(vocabulary, config.n_token)


def write_run(
    out: str, release: Release, config: RunConfig, *, splits: tuple[str, ...], keep_optimizer: bool
) -> None:
    """Writes a run folder with records of some splits; it appears only when it is complete.

    With `keep_optimizer`, it holds the state of Adam, so that training can continue.
    """
    with write_aside(out) as aside:
        make_run_folder(aside, config, release.vocabulary)
        optimizer = _restore_optimizer(release, config) if keep_optimizer else None
        save_weights(aside, release.model, step=release.step, optimizer=optimizer)
        if splits:
            assert release.vocabulary is not None, "a source with splits has a vocabulary"
            write_records(
                os.path.join(aside, RECORDS_NAME),
                dataset=config.dataset,
                vocabulary=release.vocabulary,
                splits={split: [release.splits[split]] for split in splits},
                cutoffs=release.model.config.cutoffs,
                made_from={"checkpoint": release.path},
            )
        write_json(os.path.join(aside, IMPORT_NAME), {"kind": release.kind, "path": release.path})


def _restore_optimizer(release: Release, config: RunConfig) -> Optimizer:
    """Returns the optimizer of the run with the state of the checkpoint.

    TensorFlow 1 stores the powers of beta; here, they follow from the number of steps.
    """
    path = release.path
    if release.kind != "release2019":
        raise UserError(f"{path} does not hold the state of an optimizer")
    if config.training.optimizer != "adam":
        raise UserError(
            "`optimizer` must be adam, as the checkpoint holds the state of Adam. "
            f"Received: optimizer={config.training.optimizer}"
        )
    optimizer = make_optimizer(config.training)
    optimizer.build(release.model.trainable_variables)
    moments = {id(each.weight): (each.momentum, each.velocity) for each in optimizer.slots}
    fault = f"{path} does not hold the state of Adam"
    with open_release_checkpoint(path) as reader:
        shapes = reader.get_variable_to_shape_map()
        for source, target in list_entries(release.model):
            for slot, moment in zip(SLOTS, moments[id(target)], strict=True):
                name, shape = f"{SCOPE}{source}/{slot}", list(target.shape)
                if name not in shapes:
                    raise UserError(f"{fault}: {name} is missing")
                if shapes[name] != shape:
                    raise UserError(f"{fault}: {name} is {shapes[name]}, not {shape}")
                moment.assign(reader.get_tensor(name))
        if shapes.get(GLOBAL_STEP) != []:
            raise UserError(f"{fault}: {GLOBAL_STEP} is missing")
        optimizer.iterations.assign(int(reader.get_tensor(GLOBAL_STEP)))
    return optimizer
