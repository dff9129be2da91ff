"""The training command: from its flags to a run, and to the evaluation of the run.

`run` reads top to bottom: check the flags, open the data, make the configs; then train (or, with
--dry_run, describe the training) and evaluate. TensorFlow is imported after the flags have been
checked, so that an error in them is reported at once.
"""

import contextlib
import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags

from txl_tf import presets
from txl_tf.config.training import RunOptions
from txl_tf.data.files import check_folder
from txl_tf.data.records.reading import Records
from txl_tf.errors import UserError
from txl_tf.programs.cli.config_flags import override
from txl_tf.programs.cli.flags import reraise_as_flag_error
from txl_tf.programs.cli.legacy_flags import TRAINING_FLAGS, describe_legacy_flags
from txl_tf.programs.cli.run_flags import open_data_set
from txl_tf.programs.cli.train_flags import (
    check_flags,
    choose_folders,
    evaluates,
    explain_other_config,
    find_data,
    find_run,
    find_start,
    make_configs,
    read_config_to_evaluate,
    read_settings,
    trains,
)
from txl_tf.quiet_start import check_backend
from txl_tf.runs.checkpoint_files import check_exists, find_checkpoint, list_checkpoints
from txl_tf.runs.folder import OtherConfigError, RunConfig, read_run_options
from txl_tf.runs.lock import lock_run
from txl_tf.training.cluster import is_chief

if TYPE_CHECKING:
    from txl_tf.training.job import SamplerMaker

MakeStrategy = Callable[[flags.FlagValues], Any]  # returns a strategy of TensorFlow
CountReplicas = Callable[[flags.FlagValues], int | None]


class Inputs(NamedTuple):
    """The flags of a command, and the objects that they name; `found` is the run, if it exists."""

    options: flags.FlagValues
    preset: presets.Preset | None
    found: RunConfig | None
    run_options: RunOptions
    data_dir: str
    records: Records


def run(
    options: flags.FlagValues,
    make_strategy: MakeStrategy,
    count_replicas: CountReplicas = lambda _: None,
) -> None:
    """Trains and evaluates as the flags say.

    `count_replicas` returns, for a dry run, the replicas of the strategy; `None` if unknown.
    """
    check_flags(options)
    for line in describe_legacy_flags(options, TRAINING_FLAGS):
        print(line)
    check_backend()
    choose_folders(options)
    _check_paths(options)
    inputs = _open_inputs(options)
    if trains(options):
        _train(inputs, make_strategy, count_replicas)
    elif _is_writer(options):
        _set_determinism(inputs)
        _evaluate(inputs, read_config_to_evaluate(options, inputs.preset))
    else:
        print("Nothing to do for this process: the chief evaluates.")


def _check_paths(options: flags.FlagValues) -> None:
    """Checks the run folder and the checkpoints before anything slow."""
    check_folder(options.model_dir)
    needed = None
    if options.warm_start_path and trains(options) and not list_checkpoints(options.model_dir):
        needed = options.warm_start_path  # a run that continues does not need it
        check_exists(needed)
    if options.eval_ckpt_path and not trains(options):  # training may still save it
        needed = find_checkpoint(options.model_dir, options.eval_ckpt_path)
    for path in filter(None, (needed, options.eval_ckpt_path, options.warm_start_path)):
        from txl_tf.runs.checkpoint_reader import check_not_release

        check_not_release(path)


def _open_inputs(options: flags.FlagValues) -> Inputs:
    """Opens the objects that the flags name, with every split that the command needs."""
    preset = read_settings(options)
    found = find_run(options.model_dir)
    data_dir = find_data(options)
    records = open_data_set(data_dir)
    remembered = read_run_options(options.model_dir) or RunOptions()
    run_options = reraise_as_flag_error(override, remembered, options)
    inputs = Inputs(options, preset, found, run_options, data_dir, records)
    if trains(options):
        records.split("train")
    if _needs_eval_split(inputs):
        records.split(inputs.run_options.eval_split)
    return inputs


def _needs_eval_split(inputs: Inputs) -> bool:
    return evaluates(inputs.options) or inputs.run_options.eval_every > 0


def _train(inputs: Inputs, make_strategy: MakeStrategy, count_replicas: CountReplicas) -> None:
    """Trains, or describes the training in a dry run; then evaluates if the flags say so."""
    options, preset, found, run_options, data_dir, records = inputs
    start = None if found else find_start(options, records)
    configs = reraise_as_flag_error(make_configs, options, records, preset, found, start)
    with _lock_folder(options):
        from txl_tf.programs.cli.dry_run import describe_dry_run
        from txl_tf.scoring.evaluator import check_documents
        from txl_tf.training import job
        from txl_tf.training.workers import Workers

        _set_determinism(inputs)
        config = RunConfig(records.dataset, *configs)
        if _needs_eval_split(inputs) and config.evaluation.reset_at_documents:
            check_documents(records, run_options.eval_split)  # now, and not after the training
        try:
            if options.dry_run:
                n_replicas = count_replicas(options)
                for line in describe_dry_run(options, run_options, records, config, n_replicas):
                    print(line)
                return
            workers = Workers(make_strategy(options))
            job.train(
                workers,
                records,
                config,
                run_options,
                model_dir=options.model_dir,
                warm_start_path=options.warm_start_path,
                settings=_write_settings(options),
                data_dir=data_dir,
                accepts_other_records=options.accept_other_records,
                make_sampler=_choose_sampler(inputs, config),
            )
        except OtherConfigError as error:
            raise UserError(explain_other_config(options.model_dir, error)) from error
        if options.do_eval:
            if workers.is_chief:
                _evaluate(inputs, config)
            workers.wait()  # if another process ended, tensorflow would stop the chief too


def _lock_folder(options: flags.FlagValues) -> contextlib.AbstractContextManager[None]:
    """Keeps other runs out of the run folder, if this process writes to it."""
    writes = _is_writer(options) and not options.dry_run
    return lock_run(options.model_dir) if writes else contextlib.nullcontext()


def _is_writer(options: flags.FlagValues) -> bool:
    """Returns whether this process evaluates, and writes to the run folder."""
    # A TPU is driven by one process, even if TF_CONFIG is set.
    return "tpu" in options or is_chief()


def _set_determinism(inputs: Inputs) -> None:
    """Restricts TensorFlow to deterministic operations, if the run does so."""
    if inputs.run_options.deterministic:
        from txl_tf.training.job import make_deterministic

        make_deterministic(inputs.options.seed)


def _write_settings(options: flags.FlagValues) -> str:
    """Returns the flags that all processes of a run must share, as JSON."""
    values = options.flag_values_dict()
    # These may differ between the processes; `run` is a second name.
    own = ("data_dir", "model_dir", "run", "threads", "quiet", "verbose")
    return json.dumps({name: values[name] for name in values if name not in own})


def _choose_sampler(inputs: Inputs, config: RunConfig) -> "SamplerMaker | None":
    """Returns a function that makes the sampler of evaluations in training; `None` for no samples.

    TPUs make no samples: they are not suited to generating one token at a time. Nor do LSTMs, for
    which there is no generation.
    """
    options, records = inputs.run_options, inputs.records
    has_samples = options.sample_tokens and options.eval_every and "tpu" not in inputs.options
    if not has_samples:
        return None
    if not config.model.can_have_memory:
        if is_chief():
            print("No samples: generation needs a memory of keys and values.")
        return None
    from txl_tf.generation.live_sample import PROMPT_TOKENS, LiveSample

    split = records.split(options.eval_split)
    return functools.partial(
        LiveSample,
        vocabulary=records.vocabulary,
        evaluation=config.evaluation,
        prompt=split.read(0, min(PROMPT_TOKENS, len(split))),
        n_new=options.sample_tokens,
    )


def _evaluate(inputs: Inputs, config: RunConfig) -> None:
    from txl_tf.programs.cli.evaluation import evaluate_checkpoints

    options, run_options = inputs.options, inputs.run_options
    evaluate_checkpoints(
        inputs.records,
        config,
        model_dir=options.model_dir,
        split=run_options.eval_split,
        checkpoint=options.eval_ckpt_path,
        first_step=options.start_eval_steps if options.do_eval_only else None,
        max_segments=options.max_eval_batch if options.max_eval_batch > 0 else None,
        use_ema=run_options.use_ema,
        jit=options.jit if options["jit"].present else config.training.jit,
    )
