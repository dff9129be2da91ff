"""The training command: from its flags to a `TrainJob`, and to the evaluation of the run.

The flags end here: training and evaluation take what they name. TensorFlow is imported after the
flags have been checked, so that an error in them is reported at once.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absl import flags

from txl_tf.config.training import RunOptions
from txl_tf.data.files import check_folder
from txl_tf.data.records.reading import Records
from txl_tf.programs.cli.config_flags import override
from txl_tf.programs.cli.flags import reraise_as_flag_error
from txl_tf.programs.cli.legacy_flags import TRAINING_FLAGS, describe_legacy_flags
from txl_tf.programs.cli.run_flags import open_data_set
from txl_tf.programs.cli.train_flags import (
    check_flags,
    choose_folders,
    evaluates,
    find_start,
    make_configs,
    read_config_to_evaluate,
    read_settings,
    trains,
)
from txl_tf.quiet_start import check_backend
from txl_tf.runs.checkpoint_files import check_exists, find_checkpoint, list_checkpoints
from txl_tf.runs.folder import RunConfig, has_run, read_run_config, read_run_options
from txl_tf.runs.lock import lock_run
from txl_tf.training.cluster import is_chief

if TYPE_CHECKING:
    from txl_tf.training.job import SamplerMaker


def run(
    options: flags.FlagValues,
    make_strategy: Callable[[flags.FlagValues], Any],
    count_replicas: Callable[[flags.FlagValues], int | None] = lambda _: None,
) -> None:
    """Trains and evaluates as the flags say.

    `make_strategy` returns a strategy of TensorFlow; `count_replicas`, for a dry run, the number
    of its replicas, or `None` if it is not known.
    """
    # 1) Check the flags, and the files that they name, before anything slow.
    check_flags(options)
    for line in describe_legacy_flags(options, TRAINING_FLAGS):
        print(line)
    check_backend()
    choose_folders(options)
    _check_paths(options)
    # A TPU is driven by one process, even if TF_CONFIG is set.
    writes = "tpu" in options or is_chief()

    # 2) Open the data, with every split that is needed.
    preset = read_settings(options)
    found = read_run_config(options.model_dir) if has_run(options.model_dir) else None
    records = open_data_set(options.data_dir)
    remembered = read_run_options(options.model_dir) or RunOptions()
    run_options = reraise_as_flag_error(override, remembered, options)
    if trains(options):
        records.split("train")
    if evaluates(options) or run_options.eval_every:
        records.split(run_options.eval_split)

    # 3) Evaluate only.
    if not trains(options):
        if writes:
            config = read_config_to_evaluate(options, preset)
            _set_determinism(run_options, config)
            _evaluate(options, run_options, records, config)
        else:
            print("Nothing to do for this process: the chief evaluates.")
        return

    # 4) Train, or describe the training; then evaluate if the flags say so.
    start = None if found else find_start(options, records)
    configs = reraise_as_flag_error(make_configs, options, records, preset, found, start)
    locks = writes and not options.dry_run
    with lock_run(options.model_dir) if locks else contextlib.nullcontext():
        from txl_tf.training.dry_run import describe
        from txl_tf.training.job import TrainJob, train
        from txl_tf.training.workers import Workers

        config = RunConfig(records.dataset, *configs)
        _set_determinism(run_options, config)
        job = TrainJob(
            options.model_dir,
            records,
            config,
            run_options,
            warm_start_path=options.warm_start_path,
            accepts_other_records=options.accept_other_records,
            is_evaluated=options.do_eval,
        )
        if options.dry_run:
            for line in describe(job, count_replicas(options)):
                print(line)
            return
        workers = Workers(make_strategy(options))
        # TPUs make no samples: they are not suited to generating one token at a time.
        samples = run_options.sample_tokens and run_options.eval_every and "tpu" not in options
        make_sampler = _choose_sampler(records, config, run_options) if samples else None
        train(job, workers, make_sampler=make_sampler)
        if options.do_eval:
            if workers.is_chief:
                _evaluate(options, run_options, records, config)
            workers.wait()  # if another process ended, tensorflow would stop the chief too


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


def _set_determinism(options: RunOptions, config: RunConfig) -> None:
    """Restricts TensorFlow to deterministic operations, if the run does so."""
    if options.deterministic:
        from txl_tf.training.job import make_deterministic

        make_deterministic(config.training.seed)


def _choose_sampler(
    records: Records, config: RunConfig, options: RunOptions
) -> "SamplerMaker | None":
    """Returns a function that makes the sampler of evaluations in training.

    LSTMs make no samples, as there is no generation for them.
    """
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


def _evaluate(
    options: flags.FlagValues, run_options: RunOptions, records: Records, config: RunConfig
) -> None:
    from txl_tf.programs.cli.evaluation import evaluate_checkpoints

    evaluate_checkpoints(
        records,
        config,
        model_dir=options.model_dir,
        split=run_options.eval_split,
        checkpoint=options.eval_ckpt_path,
        first_step=options.start_eval_steps if options.do_eval_only else None,
        max_segments=options.max_eval_batch if options.max_eval_batch > 0 else None,
        use_ema=run_options.use_ema,
        jit=options.jit if options["jit"].present else config.training.jit,
    )
