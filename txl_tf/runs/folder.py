"""What a run leaves on disk beside its checkpoints: config, vocabulary, log.

MODEL_DIR/config.json         model, training and evaluation, data set
MODEL_DIR/run.json            the run's id, which its checkpoints name
MODEL_DIR/data.json           where its records are; none of an import
MODEL_DIR/vocabulary.json     symbols in id order; none where ids are all that is known
MODEL_DIR/checkpoints/        weights, optimizer, step
MODEL_DIR/averaged/           means of the weights of several checkpoints
MODEL_DIR/log.jsonl           one object a logged step
MODEL_DIR/lock                while a process trains
MODEL_DIR/events/             for TensorBoard: hyper-parameters, and in train/ and validation/
                              the numbers of the log, scores and samples
MODEL_DIR/records/            of an import: the splits that came with it
MODEL_DIR/import.json         of an import: where it comes from
"""

import dataclasses
import difflib
import os
import re
import secrets
import shlex
from typing import Any, Self

import tensorflow as tf

from txl_tf import presets
from txl_tf.config import EvalConfig, ModelConfig, TrainConfig
from txl_tf.config.base import list_differences
from txl_tf.data.files import access_path, remove_file
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.runs.files import exists, list_names, read_json, write_json
from txl_tf.version import __version__

FORMAT_VERSION = 1
CONFIG_NAME = "config.json"
RUN_NAME = "run.json"
DATA_NAME = "data.json"
VOCABULARY_NAME = "vocabulary.json"
LOG_NAME = "log.jsonl"
EVENTS_NAME = "events"
RECORDS_NAME = "records"
EVALUATIONS_NAME = "evaluations.jsonl"
# What a run may change when it goes on: neither weights nor the position in the data depend on it.
_EXTENDABLE = ("train_steps",)


class OtherConfigError(UserError):
    """A run folder holds a run with another config.

    Args:
        message: each difference.
        names: the fields that differ.
    """

    def __init__(self, message: str, names: frozenset[str]):
        super().__init__(message)
        self.names = names


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """All that a run's numbers depend on.

    Args:
        dataset: name of the data set.
        model: the model.
        training: schedule, batch, segment, span, seed.
        evaluation: lanes, segment and span of its evaluations; may change from call to call.
    """

    dataset: str
    model: ModelConfig
    training: TrainConfig
    evaluation: EvalConfig

    def to_json(self) -> dict[str, Any]:
        """Returns the content of `config.json`."""
        parts = {"model": self.model, "training": self.training, "evaluation": self.evaluation}
        return {
            "format_version": FORMAT_VERSION,
            "created_by": f"txl_tf {__version__}",
            "dataset": self.dataset,
            **{name: part.to_json() for name, part in parts.items()},
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Reads the content of `config.json`.

        Raises:
            UserError: another format version, or a config that is not valid.
        """
        if not isinstance(content, dict):
            raise UserError(f"expected an object, found {content!r}")
        if content.get("format_version") != FORMAT_VERSION:
            raise UserError(
                f"the run has format version {content.get('format_version')}; "
                f"this version of txl_tf reads format version {FORMAT_VERSION}"
            )
        known = {"format_version", "created_by", *(field.name for field in dataclasses.fields(cls))}
        if set(content) != known:
            raise UserError(f"expected the keys {sorted(known)}, found {sorted(content)}")
        return cls(
            dataset=content["dataset"],
            model=ModelConfig.from_json(content["model"]),
            training=TrainConfig.from_json(content["training"]),
            evaluation=EvalConfig.from_json(content["evaluation"]),
        )


def read_run_config(model_dir: str) -> RunConfig:
    """Returns the config of a run folder.

    Raises:
        UserError: the folder holds none, or it cannot be read.
    """
    path = os.path.join(model_dir, CONFIG_NAME)
    if not has_run(model_dir):
        raise UserError(_explain_no_run(model_dir))
    try:
        return RunConfig.from_json(read_json(path))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"`{path}` is no config of a run: {error}") from error


def _explain_no_run(folder: str) -> str:
    """Returns what to do about a path that is no run folder."""
    message = f"`{folder}` holds no run: {CONFIG_NAME} is missing"
    if folder in presets.names():
        return f"{message}. {folder!r} is a preset: train it, or import its weights"
    if not exists(folder):
        close = difflib.get_close_matches(folder, presets.names(), n=1)
        hint = f". {close[0]!r} is a preset" if close else ""
        return f"{message}, and so is the folder{hint}"
    found = list_names(folder)
    if found:
        if "saved_model.pb" in found:
            return f"{message}. It is a SavedModel: `tf.saved_model.load` reads it"
        is_foreign = {"model", "checkpoint", "model.safetensors", "pytorch_model.bin"} & set(found)
        if is_foreign or any(name.endswith(".index") for name in found):
            return (
                f"{message}. If others trained it: "
                f"python -m txl_tf.import_release --source {shlex.quote(folder)} --out RUN"
            )
    return message


def read_run_vocabulary(model_dir: str) -> Vocabulary | None:
    """Returns the vocabulary of a run folder; `None` if the run knows ids alone.

    Raises:
        UserError: the folder holds no run, or its vocabulary cannot be read.
    """
    path = os.path.join(model_dir, VOCABULARY_NAME)
    if not exists(path):
        if not has_run(model_dir):
            raise UserError(_explain_no_run(model_dir))
        return None
    try:
        return Vocabulary.from_json(read_json(path))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"`{path}` is no vocabulary: {error}") from error


def has_run(model_dir: str) -> bool:
    """Tells whether a folder holds a run."""
    return exists(os.path.join(model_dir, CONFIG_NAME))


def make_run_id() -> str:
    """Returns a new id of a run: 12 hexadecimal digits, so that it is a float64 as well."""
    return secrets.token_hex(6)


def read_run_id(model_dir: str) -> str | None:
    """Returns the id of a run; `None` if its folder has none, as those of older versions.

    Raises:
        UserError: it cannot be read.
    """
    path = os.path.join(model_dir, RUN_NAME)
    if not exists(path):
        return None
    content = read_json(path)
    run_id = content.get("run_id") if isinstance(content, dict) else None
    if not isinstance(run_id, str) or not re.fullmatch("[0-9a-f]{12}", run_id):
        raise UserError(f"`{path}` must hold the id of a run. Received: {content!r}")
    return run_id


def make_run_folder(
    model_dir: str, config: RunConfig, vocabulary: Vocabulary | None, run_id: str | None = None
) -> None:
    """Makes a run folder, unless there is one; without a vocabulary if that is `None`.

    One that has no id, as those of older versions, is given one.

    Args:
        model_dir: the folder.
        config: of the run.
        vocabulary: of the run.
        run_id: of the run; `None` for a new one.
    """
    with access_path(model_dir):
        tf.io.gfile.makedirs(model_dir)
    if read_run_id(model_dir) is None:
        write_json(os.path.join(model_dir, RUN_NAME), {"run_id": run_id or make_run_id()})
    if not has_run(model_dir):
        path = os.path.join(model_dir, VOCABULARY_NAME)
        if vocabulary is None:
            remove_file(path)  # of a run that was never made whole, and is not this one
        else:
            write_json(path, vocabulary.to_json())
        write_json(os.path.join(model_dir, CONFIG_NAME), config.to_json())


def check_run_folder(
    model_dir: str, config: RunConfig, vocabulary: Vocabulary | None
) -> RunConfig | None:
    """Checks that a folder holds no run, or this one, perhaps with another number of steps.

    Returns:
        The config that the folder holds; `None` if it holds no run.

    Raises:
        UserError: it holds one with another config or vocabulary; each difference is named.
    """
    if not has_run(model_dir):
        return None
    check_vocabulary(model_dir, vocabulary)
    return check_config(model_dir, config)


def update_training(model_dir: str, training: TrainConfig) -> None:
    """Writes another training config into the folder of a run; the rest stays."""
    found = read_run_config(model_dir)
    config = dataclasses.replace(found, training=training)
    write_json(os.path.join(model_dir, CONFIG_NAME), config.to_json())


def check_vocabulary(model_dir: str, vocabulary: Vocabulary | None) -> None:
    """Checks that a run has a vocabulary, or none if it is `None`.

    Raises:
        UserError: the run has another one, or one of both has none.
    """
    found = read_run_vocabulary(model_dir)
    if found != vocabulary:
        kind = "no" if found is None else "a" if vocabulary is None else "another"
        raise UserError(
            f"`{model_dir}` holds a run on records with {kind} vocabulary"
            f"{', these have none' if vocabulary is None else ''}. "
            "Choose another --model_dir, or the run's own --data_dir"
        )


def check_config(model_dir: str, config: RunConfig) -> RunConfig:
    """Checks that a run has a config; its evaluation and its number of steps may be others.

    Returns:
        The run's config.

    Raises:
        OtherConfigError: it has another one; each difference is named.
    """
    found = read_run_config(model_dir)
    old, new = map(_flatten, (found, config))
    differences = list_differences(old, new)
    if differences:
        raise OtherConfigError(
            f"`{model_dir}` holds a run with another config: {'; '.join(differences)}. "
            "Choose another --model_dir",
            frozenset(name for name in old if repr(old[name]) != repr(new[name])),
        )
    return found


def _flatten(config: RunConfig) -> dict[str, Any]:
    values = {"dataset": config.dataset, **config.model.to_json(), **config.training.to_json()}
    return {name: value for name, value in values.items() if name not in _EXTENDABLE}
