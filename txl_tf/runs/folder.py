"""The folder of a run, and its config and vocabulary.

MODEL_DIR/config.json         data set, model, training and evaluation
MODEL_DIR/run.json            the run's id, which its checkpoints name
MODEL_DIR/options.json        when it saves, evaluates and stops; absent for an import
MODEL_DIR/data.json           folder of the records, as last given, and checksums of their splits;
                              absent for an import
MODEL_DIR/vocabulary.json     symbols in id order; absent if only ids are known
MODEL_DIR/checkpoints/        weights, optimizer, step, memory
MODEL_DIR/averaged/           checkpoint means
MODEL_DIR/log.jsonl           one object for each logged step
MODEL_DIR/validation.jsonl    one object for each evaluation during training
MODEL_DIR/evaluations.jsonl   one object for each evaluation by `txl evaluate`
MODEL_DIR/lock                present while a process trains
MODEL_DIR/events/             for TensorBoard: hyper-parameters, and in train/ and validation/
                              the numbers of the log, scores and samples
MODEL_DIR/records/            for an import: the splits that came with it
MODEL_DIR/import.json         for an import: its origin
"""

import contextlib
import dataclasses
import difflib
import os
import re
import secrets
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

from txl_tf import presets
from txl_tf.config import SHAPELESS, EvalConfig, ModelConfig, TrainConfig
from txl_tf.config.base import list_differences
from txl_tf.config.training import RunOptions
from txl_tf.data.files import (
    exists,
    is_remote,
    join_path,
    list_names,
    make_folder,
    read_json,
    remove_file,
    write_json,
)
from txl_tf.data.records.reading import Records
from txl_tf.data.records.writing import holds_records
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError, explain_errors
from txl_tf.runs.checkpoint_choice import list_checkpoints
from txl_tf.version import __version__

Content = TypeVar("Content")
FORMAT_VERSION = 1
CONFIG_NAME = "config.json"
RUN_NAME = "run.json"
DATA_NAME = "data.json"
VOCABULARY_NAME = "vocabulary.json"
OPTIONS_NAME = "options.json"
LOG_NAME = "log.jsonl"
EVENTS_NAME = "events"
RECORDS_NAME = "records"
EVALUATIONS_NAME = "evaluations.jsonl"
IMPORT_NAME = "import.json"  # where imported weights come from
# Fields that may change when a run resumes: they affect no shape of a weight and no data position.
_CHANGEABLE = ("train_steps", "jit")
_INVALID = (KeyError, TypeError, ValueError, UserError)  # raised for JSON of other content


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """All settings that determine the results of a run.

    Args:
        dataset: The name of the data set.
        model: The model.
        training: Schedule, batch, segment, span and seed.
        evaluation: Lanes, segment and span of the evaluations; may change from call to call.

    Raises:
        UserError: If the model does not support the segment length or span of training or
            evaluation.
    """

    dataset: str
    model: ModelConfig
    training: TrainConfig
    evaluation: EvalConfig

    def __post_init__(self) -> None:
        self.model.check_training(self.training)
        self.model.check_reading(self.evaluation.tgt_len, self.evaluation.span)
        self.model.check_temperature(self.evaluation.temperature)

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
        """Reads the content of `config.json`."""
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
    """Returns the config of a run folder."""
    config = _read_file(model_dir, CONFIG_NAME, "is not the config of a run", RunConfig.from_json)
    if config is None:
        raise UserError(_explain_no_run(model_dir))
    return config


def _read_file(
    model_dir: str, name: str, fault: str, parse: Callable[[Any], Content]
) -> Content | None:
    """Returns the parsed content of a JSON file in a run folder; `None` if the file is missing."""
    path = os.path.join(model_dir, name)
    if not exists(path):
        return None
    content = read_json(path)
    with explain_errors(f"`{path}` {fault}", *_INVALID):
        return parse(content)


def _explain_no_run(folder: str) -> str:
    """Returns an error message with advice for a path that is not a run folder."""
    is_folder = exists(folder)
    fault = f"holds no run: {CONFIG_NAME} is missing" if is_folder else "does not exist"
    message = f"`{folder}` {fault}"
    if folder in presets.names():
        return f"{message}. {folder!r} is a preset: train it, or import its weights"
    if not is_folder:
        close = difflib.get_close_matches(folder, presets.names(), n=1)
        return f"{message}. {close[0]!r} is a preset" if close else message
    found = list_names(folder)
    if found:
        if "saved_model.pb" in found:
            return (
                f"{message}. It is a SavedModel, for `txl score` and TensorFlow Serving: pass "
                "the run that it was exported from"
            )
        is_foreign = {"model", "checkpoint", "model.safetensors", "pytorch_model.bin"} & set(found)
        if is_foreign or any(name.endswith(".index") for name in found):
            return (
                f"{message}. If others trained it: "
                f"txl import_release --source {shlex.quote(folder)} --out RUN"
            )
    return message


def read_run_vocabulary(model_dir: str) -> Vocabulary | None:
    """Returns the vocabulary of a run folder; `None` if only ids are known."""
    found = _read_file(model_dir, VOCABULARY_NAME, "is not a vocabulary", Vocabulary.from_json)
    if found is None and not has_run(model_dir):
        raise UserError(_explain_no_run(model_dir))
    return found


def read_run_options(model_dir: str) -> RunOptions | None:
    """Returns the options that a run was last trained with; `None` if none are saved."""
    fault = "does not hold the options of a run"
    return _read_file(model_dir, OPTIONS_NAME, fault, RunOptions.from_json)


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """The content of a run folder.

    Args:
        config: The settings that determine its results.
        options: When it logs, saves, evaluates and stops; the defaults if none are saved.
        data_dir: The folder of the records that it was last trained on, or of those that came with
            it; `None` if neither is known.
        warm_start_path: The checkpoint from which it started; `None` if there was none.
    """

    config: RunConfig
    options: RunOptions
    data_dir: str | None
    warm_start_path: str | None


def read_run(model_dir: str, *, needs_data: bool = True) -> StoredRun | None:
    """Reads the folder of a run to continue or evaluate; returns `None` for a new run.

    Without `needs_data`, it does not look for the records.

    Raises:
        UserError: If a file of the run is damaged, or its records no longer exist.
    """
    if not has_run(model_dir):
        return None
    return StoredRun(
        read_run_config(model_dir),
        read_run_options(model_dir) or RunOptions(),
        find_run_data(model_dir) if needs_data else None,
        recall_start(model_dir),
    )


def write_run_options(model_dir: str, options: RunOptions) -> None:
    """Saves the options that a run remembers."""
    write_json(os.path.join(model_dir, OPTIONS_NAME), options.without_limits().to_json())


def has_run(model_dir: str) -> bool:
    """Returns whether a folder holds a run."""
    return exists(os.path.join(model_dir, CONFIG_NAME))


def make_run_id() -> str:
    """Returns a new run id: 12 hexadecimal digits, which float64 represents exactly."""
    return secrets.token_hex(6)


def read_run_id(model_dir: str) -> str | None:
    """Returns the id of a run; `None` if its folder has none, like that of a new run."""

    def parse(content: Any) -> str:
        run_id = content.get("run_id") if isinstance(content, dict) else None
        if not isinstance(run_id, str) or not re.fullmatch("[0-9a-f]{12}", run_id):
            raise ValueError(f"found {content!r}")
        return run_id

    return _read_file(model_dir, RUN_NAME, "does not hold the id of a run", parse)


def make_run_folder(
    model_dir: str, config: RunConfig, vocabulary: Vocabulary | None, run_id: str | None = None
) -> None:
    """Creates a run folder if there is none; a folder copied without its id gets a new id."""
    make_folder(model_dir)
    if read_run_id(model_dir) is None:
        write_json(os.path.join(model_dir, RUN_NAME), {"run_id": run_id or make_run_id()})
    if not has_run(model_dir):
        path = os.path.join(model_dir, VOCABULARY_NAME)
        if vocabulary is None:
            remove_file(path)  # left by another run whose folder was not completed
        else:
            write_json(path, vocabulary.to_json())
        write_json(os.path.join(model_dir, CONFIG_NAME), config.to_json())


def check_run_folder(model_dir: str, config: RunConfig, vocabulary: Vocabulary) -> RunConfig | None:
    """Checks that a folder holds no run or the given one, and returns the config of the latter.

    Only the evaluation, the number of steps and `jit` may differ.

    Raises:
        UserError: If it holds another run. The message names each difference, and how a new run
            can start with its weights.
    """
    if not has_run(model_dir):
        return None
    check_vocabulary(model_dir, vocabulary)
    found = read_run_config(model_dir)
    old, new = map(_flatten, (found, config))
    differences = list_differences(old, new)
    if not differences:
        return found
    fault = f"`{model_dir}` holds a run with another config: {'; '.join(differences)}. "
    fault += "Choose another folder"
    shapes = {field.name for field in dataclasses.fields(ModelConfig)} - set(SHAPELESS)
    checkpoints = list_checkpoints(model_dir)
    if checkpoints and all(repr(old[name]) == repr(new[name]) for name in shapes):
        start = f"--warm_start_path={shlex.quote(checkpoints[-1][1])}"
        fault += f". A new run can start with its weights: --model_dir=NEW_DIR {start}"
    raise UserError(fault)


def update_training(model_dir: str, training: TrainConfig) -> None:
    """Replaces the training config in the folder of a run."""
    found = read_run_config(model_dir)
    config = dataclasses.replace(found, training=training)
    write_json(os.path.join(model_dir, CONFIG_NAME), config.to_json())


def check_vocabulary(model_dir: str, vocabulary: Vocabulary) -> None:
    """Checks that a run has a given vocabulary."""
    found = read_run_vocabulary(model_dir)
    if found == vocabulary:
        return
    if found is None:
        raise UserError(
            f"`{model_dir}` holds a run without a vocabulary, which cannot continue on records: "
            "import it from a source with its data, or start a new run from one of its checkpoints "
            "with --warm_start_path"
        )
    raise UserError(
        f"`{model_dir}` holds a run on records with another vocabulary. Pass the run's own "
        f"--data_dir, or another run. {name_preparation(model_dir, found)}"
    )


def name_preparation(folder: str, vocabulary: Vocabulary) -> str:
    """Returns, for messages, how to make records with the vocabulary of a run."""
    known = shlex.quote(join_path(folder, VOCABULARY_NAME))
    return (
        "To make records with the vocabulary of the run: txl prepare "
        f"--dataset text --level {vocabulary.level} --vocab_file {known} --train FILES "
        "--valid FILES --data_dir NEW_DATA_DIR"
    )


def _flatten(config: RunConfig) -> dict[str, Any]:
    model = dataclasses.asdict(config.model)  # all fields, to compare model types
    values = {"dataset": config.dataset, **model, **config.training.to_json()}
    return {name: value for name, value in values.items() if name not in _CHANGEABLE}


def remember_data(
    model_dir: str,
    data_dir: str,
    checksums: Mapping[str, str],
    *,
    warm_start_path: str | None = None,
) -> None:
    """Saves what a run was given: records, the checksums of their splits, and its first weights.

    Paths are saved as absolute paths.
    """

    def locate(path: str | None) -> str | None:
        return path if path is None or is_remote(path) else os.path.abspath(path)

    content = {"data_dir": locate(data_dir), "checksums": dict(checksums)}
    content["warm_start_path"] = locate(warm_start_path)
    write_json(os.path.join(model_dir, DATA_NAME), content)


def has_own_split(model_dir: str, records: Records, split: str) -> bool:
    """Returns whether a split of records is that of a run."""
    known = _read_data(model_dir).get("checksums", {})
    if split in known:
        return known[split] == records.checksums[split]
    return _has_own_data(model_dir, records)


def find_other_splits(model_dir: str, records: Records) -> list[str]:
    """Returns the splits of records that differ from those that a run was trained with."""
    known = _read_data(model_dir).get("checksums", {})
    return [name for name, found in records.checksums.items() if known.get(name, found) != found]


def warn_of_other_split(model_dir: str, records: Records, split: str) -> None:
    """Prints a warning if a split of a run's own records has changed since its training."""
    if _has_own_data(model_dir, records) and split in find_other_splits(model_dir, records):
        print(
            f"warning: `{records.data_dir}` was made again since `{model_dir}` was trained: split "
            f"{split} holds other records",
            file=sys.stderr,
        )


def knows_data(model_dir: str) -> bool:
    """Returns whether a run has saved the location of its records."""
    return exists(os.path.join(model_dir, DATA_NAME))


def find_run_data(model_dir: str) -> str | None:
    """Returns the folder of a run's records: the one last given, or the one inside the run.

    Returns `None` if there is neither.

    Raises:
        UserError: If the folder that was given no longer exists.
    """
    own = join_path(model_dir, RECORDS_NAME)
    data_dir = _read_data(model_dir).get("data_dir")
    if data_dir is None:
        return own if holds_records(own) else None
    if not is_remote(data_dir) and not os.path.isdir(data_dir):
        if os.path.basename(data_dir) == RECORDS_NAME and holds_records(own):
            return own  # the run was moved, with its records in it
        others = f", or {own}, those that came with it" if holds_records(own) else ""
        raise UserError(
            f"`{data_dir}`, the data folder of `{model_dir}`, no longer exists: pass "
            f"--data_dir, the folder of its records{others}"
        )
    return data_dir


def _has_own_data(model_dir: str, records: Records) -> bool:
    """Returns whether records are in the folder that a run uses by default."""
    with contextlib.suppress(UserError):  # that folder no longer exists
        data_dir = find_run_data(model_dir)
        if data_dir is not None:
            return os.path.abspath(records.data_dir) == os.path.abspath(data_dir)
    return False


def recall_start(model_dir: str) -> str | None:
    """Returns the saved checkpoint from which a run started; `None` if there was none."""
    return _read_data(model_dir).get("warm_start_path")


def _read_data(model_dir: str) -> dict[str, Any]:
    """Returns what a run was given, as `remember_data` saves it; empty if it has saved nothing."""

    def parse(content: Any) -> dict[str, Any]:
        if not isinstance(content, dict) or not isinstance(content.get("data_dir"), str):
            raise ValueError(f"found {content!r}")
        return content

    return _read_file(model_dir, DATA_NAME, "does not hold the folder of the records", parse) or {}
