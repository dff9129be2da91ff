"""What a run that is there gives to a command line, and the command line of a new run.

A run remembers its config and its data: flags that are not given are as they were.
"""

import dataclasses
import os
import shlex
from typing import TYPE_CHECKING, Any

from absl import flags

from txl_tf import presets
from txl_tf.cli.config_flags import name_flags, override
from txl_tf.cli.data_formats import RECORDS
from txl_tf.config import SHAPELESS, ModelConfig, TrainConfig
from txl_tf.data.data_set import DataSet
from txl_tf.data.files import get_size, join_path
from txl_tf.errors import UserError

if TYPE_CHECKING:
    from txl_tf.runs.data_place import DataPlace
    from txl_tf.runs.folder import OtherConfigError, RunConfig

# Flags that say where data are, and that a run remembers.
PLACE_FLAGS = ("data_dir", "data_format", "record_info_dir", "corpus_info_path")
_NOT_REPEATED = (*PLACE_FLAGS, "model_dir", "preset", "warm_start_path", "dry_run")


def find_run(model_dir: str) -> "RunConfig | None":
    """Returns the config of a run folder, or `None`; tensorflow is imported only for a run.

    Raises:
        UserError: the config cannot be read.
    """
    if get_size(join_path(model_dir, "config.json")) is None:
        return None

    from txl_tf.runs.folder import read_run_config

    return read_run_config(model_dir)


def find_warm_start(path: str) -> str | None:
    """Returns the folder of the run that a checkpoint is of; `None` where there is none."""
    folder = os.path.dirname(os.path.dirname(path)) or "."
    return folder if get_size(join_path(folder, "config.json")) is not None else None


def find_data(options: flags.FlagValues, found: "RunConfig | None") -> "DataPlace":
    """Returns where the data are: as the flags say, or as the run remembers.

    Args:
        options: the flags.
        found: the config of the run; `None` for a new one.

    Raises:
        flags.Error: the flags do not say, and no run knows.
        UserError: the folder that the run knows is gone.
    """
    if options.data_dir is None and found is None:
        raise flags.Error("--data_dir must be given: a new run knows no data")

    from txl_tf.runs.data_place import DataPlace, find_run_data, recall_data

    given: dict[str, Any] = {name: options[name].value for name in PLACE_FLAGS}
    if options.data_dir is not None:
        return DataPlace(**given)
    # What it was trained on; else, of an import, what came with it.
    place = recall_data(options.model_dir) or find_run_data(options.model_dir)
    if place is None:
        raise flags.Error(
            f"--data_dir must be given: `{options.model_dir}` does not know where its data are"
        )
    present = {name: given[name] for name in PLACE_FLAGS if options[name].present}
    return dataclasses.replace(place, **present)


def check_warm_start(folder: str, records: DataSet) -> None:
    """Checks that a data set has the vocabulary of the run that a new one starts from.

    Raises:
        UserError: it has another one: the weights would mean nothing.
    """
    from txl_tf.runs.folder import VOCABULARY_NAME, read_run_vocabulary

    vocabulary = read_run_vocabulary(folder)
    if vocabulary is None or records.vocabulary in (None, vocabulary):
        return
    path = shlex.quote(join_path(folder, VOCABULARY_NAME))
    raise UserError(
        f"`{records.data_dir}` has another vocabulary than `{folder}`, whose weights are of no use "
        "for it. To make records with the vocabulary of that run: python "
        f"data_prep/make_tfrecords.py --dataset text --level {vocabulary.level} "
        f"--vocab_file {path} --train FILES --valid FILES --data_dir NEW_DATA_DIR"
    )


def make_model_config(
    options: flags.FlagValues,
    records: DataSet,
    preset: presets.Preset | None,
    base: ModelConfig | None,
) -> ModelConfig:
    """Returns the model of a run: as `make_configs`, with the model `base` without a preset.

    Raises:
        UserError: a value is out of its range; or the preset's cutoffs are not for these records,
            then such as would be are named.
    """
    n_token = records.n_token
    if preset is None:
        base = base or ModelConfig(n_token=n_token, cutoffs=records.cutoffs)
        return override(base, options, n_token=n_token)
    cutoffs = preset.model.cutoffs
    if cutoffs and cutoffs[-1] >= n_token and not options["cutoffs"].present:
        scaled = scale_cutoffs(cutoffs, preset.model.n_token, n_token)
        example = f"--cutoffs={_join(scaled)} has their proportions, " if scaled else ""
        raise UserError(
            f"--preset {options.preset} has the cutoffs {_join(cutoffs)}, for "
            f"{preset.model.n_token:,} symbols, and these records have {n_token:,}. Pass --cutoffs "
            f"too: {example}--cutoffs= makes one plain softmax"
        )
    return override(preset.model, options, n_token=n_token)


def scale_cutoffs(cutoffs: tuple[int, ...], n_old: int, n_new: int) -> tuple[int, ...]:
    """Returns cutoffs with the same proportions in another vocabulary, rounded.

    >>> scale_cutoffs((20000, 40000, 200000), 267735, 9000)
    (670, 1300, 6700)
    """
    scaled = {float(f"{cutoff * n_new / n_old:.2g}") for cutoff in cutoffs}
    return tuple(sorted({int(value) for value in scaled if 1 <= int(value) < n_new}))


def explain_other_config(
    options: flags.FlagValues,
    error: "OtherConfigError",
    preset: presets.Preset | None,
    config: "RunConfig",
    place: "DataPlace",
) -> str:
    """Returns what to do about a run in another config: its weights may start a new run.

    Args:
        options: the flags.
        error: what differs.
        preset: the one that the flags name.
        config: what the flags ask for.
        place: where the data are.
    """
    from txl_tf.runs.checkpoint_files import list_checkpoints

    checkpoints = list_checkpoints(options.model_dir)
    shapes = {field.name for field in dataclasses.fields(ModelConfig)} - set(SHAPELESS)
    if not checkpoints or error.names & shapes:
        return str(error)
    places = {name: value for name, value in dataclasses.asdict(place).items() if value is not None}
    if place.data_format == RECORDS:
        del places["data_format"]
    places |= {"model_dir": "NEW_DIR", "warm_start_path": checkpoints[-1][1]}
    command = write_command(options, preset, config, places)
    return f"{error}. A new run can start with its weights: {command}"


def write_command(
    options: flags.FlagValues,
    preset: presets.Preset | None,
    config: "RunConfig",
    places: dict[str, str],
) -> str:
    """Returns the command line of a new run, which depends on no run that is there.

    Args:
        options: the flags of the command at hand.
        preset: the one that they name.
        config: what they come to.
        places: the flags that say where things are.
    """
    defaults = (ModelConfig(n_token=config.model.n_token), TrainConfig())
    bases: tuple[ModelConfig | TrainConfig, ...] = (
        (preset.model, preset.training) if preset else defaults
    )
    values: dict[str, Any] = dict(places)
    if preset:
        values["preset"] = options.preset
    for base, part in zip(bases, (config.model, config.training), strict=True):
        for name, flag in name_flags(type(part)).items():
            if getattr(base, name) != getattr(part, name):
                values[flag] = getattr(part, name)
    known = {*name_flags(ModelConfig).values(), *name_flags(TrainConfig).values(), *_NOT_REPEATED}
    values |= {
        name: options[name].value for name in options if options[name].present and name not in known
    }
    program = "train_tpu.py" if "tpu" in options else "train_gpu.py"
    given = (f"--{name}={_write_value(value)}" for name, value in values.items())
    return shlex.join(["python", program, *given])


def _write_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(":".join(map(str, x)) if isinstance(x, tuple) else str(x) for x in value)
    return str(value)


def _join(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))
