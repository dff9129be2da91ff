"""The configs of a run: the flags that were given, over a preset, an older run, or defaults."""

import dataclasses
from typing import TYPE_CHECKING

from absl import flags

from txl_tf import presets
from txl_tf.cli.config_flags import override
from txl_tf.cli.flags import reraise_as_flag_error, write_value
from txl_tf.cli.train_flags import trains
from txl_tf.config import EvalConfig, ModelConfig, TrainConfig
from txl_tf.data.data_set import DataSet
from txl_tf.errors import UserError

if TYPE_CHECKING:
    from txl_tf.runs.folder import RunConfig


def make_configs(
    options: flags.FlagValues,
    records: DataSet,
    preset: presets.Preset | None,
    found: "RunConfig | None" = None,
    start: ModelConfig | None = None,
) -> tuple[ModelConfig, TrainConfig, EvalConfig]:
    """Returns the configs of a run that is trained.

    A flag that was given decides its field. The others are decided by the preset; without one, by
    the run if it exists; otherwise by the defaults, with an evaluation as in training.

    Args:
        options: the flags.
        records: they decide the number of tokens, and the cutoffs if nothing else does.
        preset: the one that the flags name; `None` for none.
        found: the config of an existing run; `None` for a new one.
        start: the model of the run whose weights a new one starts from, if that is known.

    Raises:
        flags.Error: If the text of a flag cannot be read.
        UserError: If a value is out of its range.
    """
    model = make_model_config(options, records, preset, found.model if found else start)
    base = preset or found
    if base:
        return model, override(base.training, options), make_eval_config(options, base.evaluation)
    training = override(TrainConfig(), options)
    evaluation = EvalConfig(
        tgt_len=training.tgt_len,
        reset_at_documents=training.reset_at_documents,
        **dataclasses.asdict(training.span),
    )
    return model, training, make_eval_config(options, evaluation)


def make_model_config(
    options: flags.FlagValues,
    records: DataSet,
    preset: presets.Preset | None,
    base: ModelConfig | None,
) -> ModelConfig:
    """Returns the model of a run.

    Args:
        options: as in `make_configs`.
        records: as in `make_configs`.
        preset: as in `make_configs`.
        base: the model without a preset; `None` for the defaults.

    Raises:
        UserError: If a value is out of its range, or the preset's cutoffs do not fit the records;
            the message then names cutoffs that do.
    """
    n_token = records.n_token
    if preset is None:
        base = base or ModelConfig(n_token=n_token, cutoffs=records.cutoffs)
        return override(base, options, n_token=n_token)
    cutoffs = preset.model.cutoffs
    if cutoffs and cutoffs[-1] >= n_token and not options["cutoffs"].present:
        scaled = scale_cutoffs(cutoffs, preset.model.n_token, n_token)
        example = f"--cutoffs={write_value(scaled)} has their proportions, " if scaled else ""
        raise UserError(
            f"--preset {options.preset} has the cutoffs {write_value(cutoffs)}, for "
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


def make_eval_config(options: flags.FlagValues, config: EvalConfig) -> EvalConfig:
    """Returns the config of an evaluation, with the values of those flags that were given.

    They are named --eval_X. If nothing is trained, --X counts too: the release has one set of
    flags for both, and its users call it with other values to evaluate.
    """
    if not trains(options):
        config = override(config, options, prefix="")
    return override(config, options)


def read_config_to_evaluate(
    options: flags.FlagValues, preset: presets.Preset | None
) -> "RunConfig":
    """Returns the config of an existing run, to be evaluated as the flags say.

    Loading the weights fails later if the flags make another model of it.

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
