"""The command of a new run, which is suggested where the config of an existing one differs."""

import dataclasses
import shlex
from typing import TYPE_CHECKING, Any

from absl import flags

from txl_tf import presets
from txl_tf.cli.config_flags import name_flags
from txl_tf.cli.data_formats import RECORDS
from txl_tf.cli.flags import write_value
from txl_tf.cli.known_runs import PLACE_FLAGS
from txl_tf.config import SHAPELESS, ModelConfig, TrainConfig

if TYPE_CHECKING:
    from txl_tf.runs.data_place import DataPlace
    from txl_tf.runs.folder import OtherConfigError, RunConfig

_NOT_REPEATED = (*PLACE_FLAGS, "model_dir", "preset", "warm_start_path", "dry_run")


def explain_other_config(
    options: flags.FlagValues,
    error: "OtherConfigError",
    preset: presets.Preset | None,
    config: "RunConfig",
    place: "DataPlace",
) -> str:
    """Returns the differences to the config of the run in the folder, and the command to run.

    There is a command if the run has weights, and these are of the shapes that were asked for.

    Args:
        options: the flags.
        error: the differences.
        preset: the one that the flags name.
        config: the config that was asked for.
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
    """Returns the command line of a new run, which depends on no existing run.

    Args:
        options: the flags of the command at hand.
        preset: the one that they name.
        config: the config that they make.
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
    given = (f"--{name}={write_value(value)}" for name, value in values.items())
    return shlex.join(["python", program, *given])
