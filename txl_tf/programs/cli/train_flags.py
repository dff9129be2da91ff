"""The flags of the training command, and the `TrainJob` that they describe.

The flags are those of the 2019 release and additional ones. They override the settings of a preset
or of an existing run, or the defaults. An existing run also provides its data, and the model of a
new run that starts from its weights.
"""

import dataclasses
import functools
import json
import os
import tomllib
from typing import TYPE_CHECKING

from absl import flags

from txl_tf import presets
from txl_tf.config import EvalConfig, ModelConfig, TrainConfig
from txl_tf.config.base import MAX_INTEGER
from txl_tf.config.training import RunOptions
from txl_tf.data.files import is_remote, join_path, read_text
from txl_tf.data.records.reading import Records
from txl_tf.errors import UserError, explain_errors
from txl_tf.programs.cli.config_flags import define_config_flags, name_flags, override
from txl_tf.programs.cli.flags import define_flag, define_second_name, refuse_flags, write_value
from txl_tf.programs.cli.legacy_flags import TRAINING_FLAGS, define_legacy_flags
from txl_tf.programs.cli.run_flags import (
    CHECKPOINT_HELP,
    DATA_SETS,
    RUNS,
    choose_data_set,
    define_threads_flag,
    find_only_data_set,
    open_data_set,
    say_default,
)
from txl_tf.runs.checkpoint_choice import is_weights_file, list_checkpoints
from txl_tf.runs.folder import (
    RunConfig,
    StoredRun,
    has_run,
    name_preparation,
    read_run,
    read_run_config,
    read_run_vocabulary,
)

if TYPE_CHECKING:
    from txl_tf.training.job import TrainJob

MAX_CPU_REPLICAS = 256  # each one needs memory and threads
_ANY_SIZE = MAX_INTEGER  # of a vocabulary: the records decide on it


def define_flags() -> flags.FlagValues:
    """Returns the flags of the training command, before parsing."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options, section="Run")
    text = f"Folder of the records. [default: that of the run; else the only one in {DATA_SETS}/]"
    define("data_dir", str, None, text, is_path=True)
    text = f"Folder of the run. [default: {RUNS}/NAME, with the name of the data's folder]"
    define("model_dir", str, None, text, is_path=True)
    define_second_name(options, "run", "model_dir")
    text = "Preset whose settings replace the defaults of the flags."
    define("preset", str, None, text, choices=presets.names())
    text = (
        "Settings in place of a preset: a config.json, such as that of a run, or a .toml file with "
        "some of its fields in the sections model, training and evaluation."
    )
    define("config", str, None, text, is_path=True)
    text = "Path of the checkpoint whose weights a new run starts from (fine-tuning)."
    define("warm_start_path", str, None, text, is_path=True)
    text = "Continue a run on different records from those it was trained on."
    define("accept_other_records", bool, False, text, rare=True)
    text = "Print what the command would do and the resources that it would need, and stop."
    define("dry_run", bool, False, text)
    define("do_train", bool, True, "Train.")
    define("do_eval", bool, False, "Evaluate, after training if --do_train is set.")
    text = "Evaluate all checkpoints of the run instead of training."
    define("do_eval_only", bool, False, text, rare=True)
    define("eval_ckpt_path", str, None, CHECKPOINT_HELP, is_path=True, rare=True)
    text = "Step of the first checkpoint that --do_eval_only evaluates."
    define("start_eval_steps", int, 10_000, text, rare=True)
    text = "Number of batches to evaluate; -1 for all."
    define("max_eval_batch", int, -1, text, lower_bound=-1, rare=True)
    text = "Share the weights of embedding and softmax; false is not supported."
    define("tie_weight", bool, True, text, rare=True)
    define_config_flags(options, RunOptions, section="Run")
    define_config_flags(options, ModelConfig, section="Model")
    define_config_flags(options, TrainConfig, section="Training")
    define_config_flags(options, EvalConfig, section="Evaluation")
    define_legacy_flags(options, TRAINING_FLAGS)
    define_threads_flag(options)
    return options


def trains(options: flags.FlagValues) -> bool:
    """Returns whether the command trains."""
    return options.do_train and not options.do_eval_only


def evaluates(options: flags.FlagValues) -> bool:
    """Returns whether the command evaluates checkpoints, possibly after training."""
    return options.do_eval or options.do_eval_only


def check_flags(options: flags.FlagValues) -> None:
    """Checks that flags that belong to no config do not contradict each other."""
    if options.config and options.preset:
        raise flags.Error("--config and --preset cannot be used together")
    if not options.tie_weight:
        raise flags.Error("--tie_weight=false: the softmax always has the embedding's weights")
    if not trains(options) and not evaluates(options):
        raise flags.Error("--do_train=false: pass --do_eval or --do_eval_only too")
    if options.do_eval_only and options.eval_ckpt_path:
        raise flags.Error(
            "--eval_ckpt_path is for --do_eval; --do_eval_only evaluates all checkpoints"
        )
    if options.dry_run and not trains(options):
        raise flags.Error("--dry_run is for training: pass --do_train too")
    if options.max_eval_batch == 0:
        raise flags.Error("--max_eval_batch must be -1, for all, or positive. Received: 0")
    if "tpu" in options and options.cpu_replicas:
        refuse_flags(options, "tpu_zone", "gcp_project", reason="with --cpu_replicas")
    if not options.do_eval:
        refuse_flags(options, "eval_ckpt_path", reason="without --do_eval")
    if not options.do_eval_only:
        refuse_flags(options, "start_eval_steps", reason="without --do_eval_only")
    if not evaluates(options):
        refuse_flags(options, "max_eval_batch", reason="without --do_eval or --do_eval_only")


def list_idle_flags(options: flags.FlagValues) -> list[str]:
    """Returns the flags on the command line that have no effect because nothing is trained."""
    if trains(options):
        return []
    of_training = {"warm_start_path", "accept_other_records", "cpu_replicas"}
    of_training |= {"tpu", "tpu_zone", "gcp_project"}
    of_training |= {*name_flags(TrainConfig).values(), *name_flags(RunOptions).values()}
    # Without training, --X is --eval_X.
    used = {"jit", "deterministic", "eval_split", "use_ema", *name_flags(EvalConfig, "").values()}
    return [f"--{x}" for x in options if x in of_training - used and options[x].present]


def choose_folders(options: flags.FlagValues) -> StoredRun | None:
    """Sets the defaults of `model_dir` and `data_dir`, and prints those of a new run.

    By default, a run uses the data it was trained on or, if imported, the data that came with it.
    Returns the content of the run folder; `None` for a new run.
    """
    model_dir = options.model_dir
    if model_dir is None:
        data_dir = options.data_dir or find_only_data_set()
        place = data_dir if is_remote(data_dir) else os.path.abspath(data_dir)
        name = os.path.basename(place.rstrip("/").removesuffix("/tfrecords"))
        options["model_dir"].value = join_path(RUNS, name)
    found = read_run(options.model_dir, needs_data=options.data_dir is None)
    if options.data_dir is None:
        if found and found.data_dir is None:
            raise flags.Error(
                f"--data_dir must be given: `{options.model_dir}` does not state where its data are"
            )
        options["data_dir"].value = found.data_dir if found else choose_data_set()
    if model_dir is None:
        say_default("model_dir", options.model_dir, "named after the data")
    start = found.warm_start_path if found else None
    if start and not options.warm_start_path and not list_checkpoints(options.model_dir):
        options["warm_start_path"].value = start
        say_default("warm_start_path", start, "with which the run was begun")
    return found


def read_settings(options: flags.FlagValues, base: ModelConfig) -> presets.Preset | None:
    """Returns the preset of `--preset`, or the settings in the file of `--config`; or `None`.

    What a file does not state is that of the model `base`, the default in training, and that of
    training in the evaluation.

    Raises:
        flags.Error: If flags do not go with the file.
        UserError: If the file cannot be read, or has unknown sections or fields.
    """
    path = options.config
    if path is None:
        return presets.get(options.preset) if options.preset else None
    faults = (OSError, ValueError, TypeError, UserError)
    with explain_errors(f"`{path}` holds no valid settings", *faults):
        text = read_text(path)
        content = tomllib.loads(text) if path.endswith(".toml") else json.loads(text)
        if not isinstance(content, dict):
            raise UserError("it is not an object with sections")
        sections = ("model", "training", "evaluation")
        model, training, evaluation = (content.pop(name, {}) for name in sections)
        unknown = set(content) - {"format_version", "created_by", "dataset"}
        if unknown:
            raise UserError(f"unknown section {min(unknown)}, not one of {', '.join(sections)}")
        # `n_token` only says for which size the cutoffs of the file are.
        n_token = model.pop("n_token", _ANY_SIZE) if "cutoffs" in model else base.n_token
        stated = ModelConfig.from_json(base.to_json() | model | {"n_token": n_token})
        trained = TrainConfig.from_json(training)
    read = _evaluate_as_trained(override(trained, options))
    with explain_errors(f"`{path}` holds no valid settings", *faults):
        evaluated = EvalConfig.from_json(dataclasses.asdict(read) | evaluation)
    return presets.Preset(stated, trained, evaluated)


def make_job(options: flags.FlagValues, found: StoredRun | None) -> "TrainJob":
    """Returns the job that the flags describe, for a new run or for the existing run `found`.

    Raises:
        flags.Error: If the flags contradict each other or the existing run.
        UserError: If settings, records or a split cannot be read, or there is no run to evaluate.
    """
    records = open_data_set(options.data_dir)
    known = found.config if found else None
    start = None if known or not trains(options) else find_start(options, records)
    preset = read_settings(options, choose_model(records, known.model if known else start))
    base = found.options if found else RunOptions()
    run_options = override(base, options)
    is_evaluated = evaluates(options) or run_options.eval_every > 0
    if is_evaluated or options["eval_split"].present:
        records.split(run_options.eval_split)
    if trains(options):
        if run_options.sample_tokens and not run_options.eval_every:
            refuse_flags(options, "sample_tokens", reason="without --eval_every")
        records.split("train")
        try:
            config = make_config(options, records, preset, known, start)
        except UserError as error:
            raise flags.Error(str(error)) from error
        if known and known.evaluation != config.evaluation and not is_evaluated:
            print(
                "The run keeps its own evaluation settings: others have no effect without "
                "--eval_every or --do_eval."
            )
    else:
        known = known or read_run_config(options.model_dir)
        config = make_config_to_evaluate(options, preset, known)

    from txl_tf.training.job import TrainJob  # with TensorFlow, so after the checks

    return TrainJob(
        options.model_dir,
        records,
        config,
        run_options,
        warm_start_path=options.warm_start_path,
        accepts_other_records=options.accept_other_records,
        is_evaluated=options.do_eval,
    )


def make_config(
    options: flags.FlagValues,
    records: Records,
    preset: presets.Preset | None,
    found: RunConfig | None = None,
    start: ModelConfig | None = None,
) -> RunConfig:
    """Returns the config of a run to train.

    Flags on the command line take precedence. Other fields come from the preset; without one, from
    the existing run (`found`) or the model that a new run starts from (`start`); otherwise they
    have their defaults, and the evaluation uses the settings of training.
    """
    model = _make_model_config(options, records, preset, found.model if found else start)
    unused = ("init_std", "proj_init_std") if model.init == "uniform" else ("init_range",)
    refuse_flags(options, *unused, reason=f"with init={model.init}")
    base = preset or found
    n_warmup = preset.training.warmup_steps if preset else 0
    has_own = options["train_steps"].present and not options["warmup_steps"].present
    if has_own and options.train_steps < n_warmup:
        raise UserError(
            f"--train_steps must be at least {n_warmup:,}, the warm-up of "
            f"{options.preset or options.config}, which --warmup_steps changes. "
            f"Received: {options.train_steps}"
        )
    if base:
        # A preset does not decide what XLA compiles, so the run keeps its choice.
        jit = (found or base).training.jit
        training = override(dataclasses.replace(base.training, jit=jit), options)
        evaluation = base.evaluation
        if options["reset_at_documents"].present:  # otherwise validation would be another task
            evaluation = dataclasses.replace(
                evaluation, reset_at_documents=training.reset_at_documents
            )
    else:
        training = override(TrainConfig(), options)
        evaluation = _evaluate_as_trained(training)
    evaluation = make_eval_config(options, evaluation)
    if evaluation.counts_self and not evaluation.same_length:
        refuse_flags(options, "eval_counts_self", reason="without same_length")
        if training.counts_self and not training.same_length:
            refuse_flags(options, "counts_self", reason="without same_length")
    return RunConfig(records.dataset, model, training, evaluation)


def _evaluate_as_trained(training: TrainConfig) -> EvalConfig:
    """Returns the evaluation config of a run that sets none: that of its training."""
    return EvalConfig(
        tgt_len=training.tgt_len,
        reset_at_documents=training.reset_at_documents,
        **dataclasses.asdict(training.span),
    )


def _make_model_config(
    options: flags.FlagValues,
    records: Records,
    preset: presets.Preset | None,
    base: ModelConfig | None,
) -> ModelConfig:
    """Returns the model config of a run; `base` has the fields that no flag or preset sets."""
    n_token = records.n_token
    if preset is None:
        return override(choose_model(records, base), options, n_token=n_token)
    cutoffs = preset.model.cutoffs
    if cutoffs and cutoffs[-1] >= n_token and not options["cutoffs"].present:
        source = f"--preset {options.preset}" if options.preset else options.config
        n_preset = preset.model.n_token
        is_known = n_preset != _ANY_SIZE
        scaled = scale_cutoffs(cutoffs, n_preset, n_token) if is_known else ()
        size = f" for {n_preset:,} symbols" if is_known else ""
        example = f"--cutoffs={write_value(scaled)} has their proportions, " if scaled else ""
        raise UserError(
            f"{source} has the cutoffs {write_value(cutoffs)}{size}, but these records have "
            f"{n_token:,} symbols. Pass --cutoffs too: {example}--cutoffs= makes one plain softmax"
        )
    return override(preset.model, options, n_token=n_token)


def choose_model(records: Records, base: ModelConfig | None) -> ModelConfig:
    """Returns the model that a run has, or starts from; or the default for its records."""
    return base or ModelConfig(n_token=records.n_token, cutoffs=records.cutoffs)


def scale_cutoffs(cutoffs: tuple[int, ...], n_old: int, n_new: int) -> tuple[int, ...]:
    """Returns rounded cutoffs with the same proportions for a vocabulary of another size.

    >>> scale_cutoffs((20000, 40000, 200000), 267735, 9000)
    (670, 1300, 6700)
    """
    scaled = {float(f"{cutoff * n_new / n_old:.2g}") for cutoff in cutoffs}
    return tuple(sorted({int(value) for value in scaled if 1 <= int(value) < n_new}))


def make_eval_config(options: flags.FlagValues, config: EvalConfig) -> EvalConfig:
    """Returns the config of an evaluation, with the values of the flags on the command line.

    Its flags are named --eval_X. If nothing is trained, --X also applies: the release has only one
    set of flags, which its users set to other values for an evaluation.
    """
    if not trains(options):
        config = override(config, options, prefix="")
    return override(config, options)


def make_config_to_evaluate(
    options: flags.FlagValues, preset: presets.Preset | None, found: RunConfig
) -> RunConfig:
    """Returns the config of an existing run, with the evaluation that the flags describe.

    If the flags change the model, loading the weights fails later.
    """
    base = found.model
    if preset:
        # Neither in the preset nor inferable from the weights.
        names = ("n_token", "cutoffs", "layer_norm_epsilon")
        own = {name: getattr(found.model, name) for name in names}
        base = dataclasses.replace(preset.model, **own)
    evaluation = preset.evaluation if preset else found.evaluation
    return dataclasses.replace(
        found, model=override(base, options), evaluation=make_eval_config(options, evaluation)
    )


def find_start(options: flags.FlagValues, records: Records) -> ModelConfig | None:
    """Returns the model config of the checkpoint in --warm_start_path, if it is known."""
    if options.warm_start_path is None:
        return None
    path = options.warm_start_path
    folder = os.path.dirname(path if is_weights_file(path) else os.path.dirname(path)) or "."
    if not has_run(folder):
        return None
    start = read_run_config(folder)
    vocabulary = read_run_vocabulary(folder)
    if vocabulary not in (None, records.vocabulary):
        raise UserError(
            f"`{records.data_dir}` has another vocabulary than `{folder}`, so the weights of that "
            f"run cannot be used. {name_preparation(folder, vocabulary)}"
        )
    if not (options.preset or options.config):
        print(f"The model is that of {folder}, except for flags given here.")
    return start.model
