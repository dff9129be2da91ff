"""Makes the configs of a run from flags, over a preset, an older run, or defaults; and back."""

import dataclasses
import shlex
from typing import TYPE_CHECKING, Any

from absl import flags

from txl_tf import presets
from txl_tf.cli.config_flags import name_flags, override
from txl_tf.cli.flags import reraise_as_flag_error, write_value
from txl_tf.cli.train_flags import trains
from txl_tf.config import SHAPELESS, EvalConfig, ModelConfig, TrainConfig
from txl_tf.data.records.reading import Records
from txl_tf.errors import UserError, name_program

if TYPE_CHECKING:
    from txl_tf.runs.folder import OtherConfigError, RunConfig

_NOT_REPEATED = ("data_dir", "model_dir", "preset", "warm_start_path", "dry_run")


def make_configs(
    options: flags.FlagValues,
    records: Records,
    preset: presets.Preset | None,
    found: "RunConfig | None" = None,
    start: ModelConfig | None = None,
) -> tuple[ModelConfig, TrainConfig, EvalConfig]:
    """Returns the configs of a run that is trained.

    Flags on the command line come first. Other fields are those of the preset; without one, those
    of the existing run; otherwise the defaults, with an evaluation as in training.

    Args:
        options: The flags.
        records: The data set, which decides the number of tokens, and the default of the cutoffs.
        preset: The preset that the flags name; `None` for none.
        found: The config of an existing run; `None` for a new run.
        start: The model whose weights a new run starts from; `None` if there is none.

    Raises:
        flags.Error: If the text of a flag cannot be parsed.
        UserError: If a value is out of its range, or the preset's cutoffs do not fit the records;
            the message then suggests cutoffs that do.
    """
    model = _make_model_config(options, records, preset, found.model if found else start)
    base = preset or found
    if base:
        # A preset does not decide what XLA compiles, so it leaves the choice of the run.
        jit = (found or base).training.jit
        training = override(dataclasses.replace(base.training, jit=jit), options)
        return model, training, make_eval_config(options, base.evaluation)
    training = override(TrainConfig(), options)
    evaluation = EvalConfig(
        tgt_len=training.tgt_len,
        reset_at_documents=training.reset_at_documents,
        **dataclasses.asdict(training.span),
    )
    return model, training, make_eval_config(options, evaluation)


def _make_model_config(
    options: flags.FlagValues,
    records: Records,
    preset: presets.Preset | None,
    base: ModelConfig | None,
) -> ModelConfig:
    """Returns the model of a run; `base` has the fields that neither flags nor preset decide."""
    n_token = records.n_token
    if preset is None:
        base = base or ModelConfig(n_token=n_token, cutoffs=records.cutoffs)
        return override(base, options, n_token=n_token)
    cutoffs = preset.model.cutoffs
    if cutoffs and cutoffs[-1] >= n_token and not options["cutoffs"].present:
        scaled = scale_cutoffs(cutoffs, preset.model.n_token, n_token)
        example = f"--cutoffs={write_value(scaled)} has their proportions, " if scaled else ""
        raise UserError(
            f"--preset {options.preset} has the cutoffs {write_value(cutoffs)} for "
            f"{preset.model.n_token:,} symbols, but these records have {n_token:,}. Pass --cutoffs "
            f"too: {example}--cutoffs= makes one plain softmax"
        )
    return override(preset.model, options, n_token=n_token)


def scale_cutoffs(cutoffs: tuple[int, ...], n_old: int, n_new: int) -> tuple[int, ...]:
    """Returns rounded cutoffs with the same proportions for a vocabulary of another size.

    >>> scale_cutoffs((20000, 40000, 200000), 267735, 9000)
    (670, 1300, 6700)
    """
    scaled = {float(f"{cutoff * n_new / n_old:.2g}") for cutoff in cutoffs}
    return tuple(sorted({int(value) for value in scaled if 1 <= int(value) < n_new}))


def make_eval_config(options: flags.FlagValues, config: EvalConfig) -> EvalConfig:
    """Returns the config of an evaluation, with the values of the flags on the command line.

    Its flags are named --eval_X. If nothing is trained, --X counts too: the release has one set of
    flags for both, and its users call it with other values to evaluate.
    """
    if not trains(options):
        config = override(config, options, prefix="")
    return override(config, options)


def read_config_to_evaluate(
    options: flags.FlagValues, preset: presets.Preset | None
) -> "RunConfig":
    """Returns the config of an existing run, with the evaluation that the flags describe.

    If the flags change the model, loading the weights fails later.

    Raises:
        flags.Error: If a value is out of its range.
        UserError: If there is no run.
    """
    from txl_tf.runs.folder import read_run_config

    found = read_run_config(options.model_dir)
    base = found.model
    if preset:
        # Neither in the preset nor inferable from the weights.
        names = ("n_token", "cutoffs", "layer_norm_epsilon")
        own = {name: getattr(found.model, name) for name in names}
        base = dataclasses.replace(preset.model, **own)
    model = reraise_as_flag_error(override, base, options)
    evaluation = preset.evaluation if preset else found.evaluation
    return dataclasses.replace(
        found,
        model=model,
        evaluation=reraise_as_flag_error(make_eval_config, options, evaluation),
    )


def explain_other_config(
    options: flags.FlagValues,
    error: "OtherConfigError",
    preset: presets.Preset | None,
    config: "RunConfig",
    data_dir: str,
) -> str:
    """Returns the message of an error, and the command of a new run with the requested config.

    The command starts from the weights of the existing run, if their shapes fit; otherwise there
    is no command.

    Args:
        options: The flags.
        error: The differences of the requested config from that of the existing run.
        preset: The preset that the flags name; `None` for none.
        config: The requested config.
        data_dir: The folder of the data.
    """
    from txl_tf.runs.checkpoint_files import list_checkpoints

    checkpoints = list_checkpoints(options.model_dir)
    shapes = {field.name for field in dataclasses.fields(ModelConfig)} - set(SHAPELESS)
    if not checkpoints or error.names & shapes:
        return str(error)
    values = {"data_dir": data_dir, "model_dir": "NEW_DIR", "warm_start_path": checkpoints[-1][1]}
    values |= _list_new_flags(options, preset, config)
    program = name_program("train_tpu" if "tpu" in options else "train_gpu")
    given = (f"--{name}={write_value(value)}" for name, value in values.items())
    return f"{error}. A new run can start with its weights: {program} {shlex.join(given)}"


def _list_new_flags(
    options: flags.FlagValues, preset: presets.Preset | None, config: "RunConfig"
) -> dict[str, Any]:
    """Returns the flags that make a config without an existing run, except those of places."""
    values: dict[str, Any] = {"preset": options.preset} if preset else {}
    model = preset.model if preset else ModelConfig(n_token=config.model.n_token)
    training = preset.training if preset else TrainConfig()
    requested = dataclasses.replace(config.training, jit=options.jit)  # a new run chooses anew
    known = set(_NOT_REPEATED)
    for base, part in ((model, config.model), (training, requested)):
        names = name_flags(type(part))
        known |= set(names.values())
        for name, flag in names.items():
            if getattr(base, name) != getattr(part, name):
                values[flag] = getattr(part, name)
    return values | {
        name: options[name].value for name in options if options[name].present and name not in known
    }
