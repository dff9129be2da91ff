"""Makes the configs of a run from flags, over a preset, an older run, or defaults.

An existing run also states its data and, for a new run, the initial model.
"""

import dataclasses
import os
import shlex
from typing import TYPE_CHECKING

from absl import flags

from txl_tf import presets
from txl_tf.cli.config_flags import override
from txl_tf.cli.flags import reraise_as_flag_error, write_value
from txl_tf.cli.train_flags import trains
from txl_tf.config import SHAPELESS, EvalConfig, ModelConfig, TrainConfig
from txl_tf.data.files import get_size, join_path
from txl_tf.data.records.reading import Records
from txl_tf.errors import UserError, name_program

if TYPE_CHECKING:
    from txl_tf.runs.folder import OtherConfigError, RunConfig


def make_configs(
    options: flags.FlagValues,
    records: Records,
    preset: presets.Preset | None,
    found: "RunConfig | None" = None,
    start: ModelConfig | None = None,
) -> tuple[ModelConfig, TrainConfig, EvalConfig]:
    """Returns the configs of a run that is trained.

    Flags on the command line come first. Other fields are those of the preset; without one, those
    of the existing run (`found`), or of the model that a new run starts from; otherwise the
    defaults, with an evaluation as in training.
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


def explain_other_config(model_dir: str, error: "OtherConfigError") -> str:
    """Returns the message of an error, and how a new run starts from the weights of the run."""
    from txl_tf.runs.checkpoint_files import list_checkpoints

    checkpoints = list_checkpoints(model_dir)
    shapes = {field.name for field in dataclasses.fields(ModelConfig)} - set(SHAPELESS)
    if not checkpoints or error.names & shapes:
        return str(error)
    start = f"--warm_start_path={checkpoints[-1][1]}"
    return f"{error}. A new run can start with its weights: --model_dir=NEW_DIR {start}"


def find_run(model_dir: str) -> "RunConfig | None":
    """Returns the config of a run folder; `None` if there is no run."""
    if get_size(join_path(model_dir, "config.json")) is None:
        return None

    from txl_tf.runs.folder import read_run_config  # a new run needs no TensorFlow yet

    return read_run_config(model_dir)


def find_data(options: flags.FlagValues, found: "RunConfig | None") -> str:
    """Returns the folder of the data, from the flag or from the run."""
    if options.data_dir is not None:
        return str(options.data_dir)
    if found is None:
        raise flags.Error("--data_dir must be given: this is a new run")

    from txl_tf.runs.folder import find_run_data, recall_data

    # The data of its training, or for an imported run the data that came with it.
    data_dir = recall_data(options.model_dir) or find_run_data(options.model_dir)
    if data_dir is None:
        raise flags.Error(
            f"--data_dir must be given: `{options.model_dir}` does not state where its data are"
        )
    return data_dir


def find_start(options: flags.FlagValues, records: Records) -> ModelConfig | None:
    """Returns the config of the model that --warm_start_path is a checkpoint of, if it is known."""
    if options.warm_start_path is None:
        return None
    folder = os.path.dirname(os.path.dirname(options.warm_start_path)) or "."
    start = find_run(folder)
    if start is None:
        return None
    from txl_tf.runs.folder import VOCABULARY_NAME, read_run_vocabulary

    vocabulary = read_run_vocabulary(folder)
    if vocabulary not in (None, records.vocabulary):
        path = shlex.quote(join_path(folder, VOCABULARY_NAME))
        raise UserError(
            f"`{records.data_dir}` has another vocabulary than `{folder}`, so the weights of that "
            "run cannot be used. To make records with the vocabulary of the run: "
            f"{name_program('make_tfrecords')} --dataset text --level {vocabulary.level} "
            f"--vocab_file {path} --train FILES --valid FILES --data_dir NEW_DATA_DIR"
        )
    if not options.preset:
        print(f"The model is that of {folder}, except for flags given here.")
    return start.model
