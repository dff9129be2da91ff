"""Making a run folder of a model that others trained: what it holds, and where that comes from."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.config import EvalConfig, ModelConfig
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.data.writing import write_records
from txl_tf.errors import UserError
from txl_tf.model import TransformerXL
from txl_tf.release.checkpoint import load_model, load_optimizer, read_global_step
from txl_tf.release.corpus import read_corpus
from txl_tf.release.hub import is_hub_folder, load_hub_model, read_hub_vocabulary
from txl_tf.release.infer import find_checkpoint, infer_config
from txl_tf.runs.checkpoint_writer import save_weights
from txl_tf.runs.files import read_json, write_aside, write_json
from txl_tf.runs.folder import RECORDS_NAME, RunConfig, make_run_folder
from txl_tf.training.optimizer import Optimizer, make_optimizer

IMPORT_NAME = "import.json"


class Release(NamedTuple):
    """A model that others trained, with what came with it.

    Args:
        kind: "release2019" or "hub".
        path: of the checkpoint, or of the folder.
        model: its weights.
        step: how many steps made them; 0 where that is not known.
        evaluation: how its makers say that it is evaluated; `None` where they do not.
        dataset: the name of its data set; `None` where it is not known.
        vocabulary: its symbols; `None` where they are not there.
        splits: the ids of its splits, (n,) int32 each; those that are there.
    """

    kind: str
    path: str
    model: TransformerXL
    step: int
    evaluation: EvalConfig | None
    dataset: str | None
    vocabulary: Vocabulary | None
    splits: Mapping[str, np.ndarray]


def read_release(source: str, *, dataset: str | None = None) -> Release:
    """Reads a folder of the 2019 release, or one of Hugging Face transformers.

    Args:
        source: a folder of the release, with `model/` and perhaps `data/`; its model folder; a
            checkpoint; or a folder of Hugging Face transformers' TransfoXL.
        dataset: name of the data set, where it is not known or wrong.

    Raises:
        UserError: it is neither, a file of it cannot be read or contradicts another, or a weight
            is not a finite number.
    """
    if is_hub_folder(source):
        model, evaluation = load_hub_model(source)
        _check_finite(source, model)
        vocabulary = read_hub_vocabulary(source)
        _check_size(source, vocabulary, model.config)
        return Release("hub", source, model, 0, evaluation, dataset, vocabulary, {})
    path = find_checkpoint(source)
    config = infer_config(path)
    data_dir = _find_data(source, path)
    found, vocabulary, splits = _read_data(data_dir, dataset, config)
    model, step = load_model(path, config), read_global_step(path)
    _check_finite(path, model)
    return Release("release2019", path, model, step, None, dataset or found, vocabulary, splits)


def _check_finite(source: str, model: TransformerXL) -> None:
    """Checks that the weights are numbers: those of a run that diverged are not."""
    broken = [weight.path for weight in model.weights if not np.isfinite(weight.numpy()).all()]
    if broken:
        raise UserError(
            f"`{source}` holds NaN or infinity in {len(broken)} of its weights, {broken[0]} first: "
            "the training that wrote it diverged"
        )


def _find_data(source: str, path: str) -> str | None:
    """Returns the folder of the data beside a checkpoint; `None` if there is none."""
    model_dir = os.path.dirname(path)
    for folder in (os.path.join(source, "data"), os.path.join(model_dir, os.pardir, "data")):
        if tf.io.gfile.isdir(folder):
            return os.path.normpath(folder)
    return None


def _read_data(
    data_dir: str | None, dataset: str | None, config: ModelConfig
) -> tuple[str | None, Vocabulary | None, Mapping[str, np.ndarray]]:
    """Returns name, vocabulary and splits of a data folder, as far as they are there."""
    if data_dir is None:
        return dataset, None, {}
    info_path = os.path.join(data_dir, "corpus-info.json")
    info = read_json(info_path) if tf.io.gfile.exists(info_path) else {}
    _check_info(info_path, info, config)
    name = dataset or info.get("dataset")
    json_path = os.path.join(data_dir, "vocabulary.json")
    if tf.io.gfile.exists(json_path):  # as `txl_tf.export_release` writes it
        try:
            vocabulary = Vocabulary.from_json(read_json(json_path))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"`{json_path}` is no vocabulary: {error}") from error
        _check_size(json_path, vocabulary, config)
        return name, vocabulary, {}
    pickle_path = os.path.join(data_dir, "cache.pkl")
    if not tf.io.gfile.exists(pickle_path):
        return name, None, {}
    corpus = read_corpus(pickle_path, dataset=name)
    _check_size(pickle_path, corpus.vocabulary, config)
    return corpus.dataset or name, corpus.vocabulary, corpus.splits


def _check_info(path: str, info: Any, config: ModelConfig) -> None:
    """Checks what a `corpus-info.json` says of the model."""
    if not isinstance(info, dict) or not isinstance(info.get("dataset", ""), str):
        raise UserError(f"`{path}` must be an object with the name of a data set")
    size = info.get("vocab_size", config.n_token)
    if size != config.n_token:
        raise UserError(
            f"`{path}` says that the vocabulary has {size!r} symbols, the model has "
            f"{config.n_token}: they are not of one model"
        )


def _check_size(place: str, vocabulary: Vocabulary | None, config: ModelConfig) -> None:
    if vocabulary is not None and len(vocabulary) != config.n_token:
        raise UserError(
            f"`{place}` holds a vocabulary of {len(vocabulary):,} symbols, the model has "
            f"{config.n_token:,}: they are not of one model"
        )


def write_run(
    out: str, release: Release, config: RunConfig, *, splits: tuple[str, ...], keep_optimizer: bool
) -> None:
    """Writes a run folder, whole or not at all.

    Args:
        out: the folder, new or empty.
        release: what to write.
        config: of the run.
        splits: splits to write the records of.
        keep_optimizer: write the state of Adam, so that training goes on.

    Raises:
        UserError: `out` holds something, the optimizer's state is not there, or `out` cannot be
            written.
    """
    with write_aside(out) as aside:
        make_run_folder(aside, config, release.vocabulary)
        optimizer = _make_optimizer(release, config) if keep_optimizer else None
        save_weights(aside, release.model, step=release.step, optimizer=optimizer)
        if splits:
            _write_records(aside, release, config, splits)
        write_json(os.path.join(aside, IMPORT_NAME), {"kind": release.kind, "path": release.path})


def _make_optimizer(release: Release, config: RunConfig) -> Optimizer:
    """Returns the optimizer of the run in the state that the checkpoint left it in."""
    if release.kind != "release2019":
        raise UserError(f"{release.path} holds no state of an optimizer")
    if config.training.optimizer != "adam":
        raise UserError(
            "the state is that of Adam: `optimizer` must be adam. "
            f"Received: optimizer={config.training.optimizer}"
        )
    optimizer = make_optimizer(config.training)
    optimizer.build(release.model.trainable_variables)
    load_optimizer(release.path, release.model, optimizer)
    return optimizer


def _write_records(
    model_dir: str, release: Release, config: RunConfig, splits: tuple[str, ...]
) -> None:
    assert release.vocabulary is not None, "who has the ids of a text has its vocabulary"
    write_records(
        os.path.join(model_dir, RECORDS_NAME),
        dataset=config.dataset,
        vocabulary=release.vocabulary,
        splits={split: [release.splits[split]] for split in splits},
        cutoffs=release.model.config.cutoffs,
        made_from={"pickle": release.path},
    )
