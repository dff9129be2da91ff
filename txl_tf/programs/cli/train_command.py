"""The training command: makes a `TrainJob` from the flags, trains, and evaluates the run.

Training and evaluation do not see the flags, only the objects made from them. TensorFlow is
imported after the flags have been checked, so that an error in them is reported immediately.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absl import flags

from txl_tf.data.files import check_folder
from txl_tf.errors import StoppedError
from txl_tf.programs.cli.legacy_flags import TRAINING_FLAGS, describe_legacy_flags
from txl_tf.programs.cli.train_flags import (
    check_flags,
    choose_folders,
    list_idle_flags,
    make_job,
    trains,
)
from txl_tf.quiet_start import check_backend
from txl_tf.runs.checkpoint_choice import check_exists, find_checkpoint, list_checkpoints
from txl_tf.runs.lock import lock_run
from txl_tf.training.cluster import is_chief

if TYPE_CHECKING:
    from txl_tf.training.job import SamplerMaker, TrainJob


def run(
    options: flags.FlagValues,
    make_strategy: Callable[[flags.FlagValues], Any],
    count_replicas: Callable[[flags.FlagValues], int | None] = lambda _: None,
) -> None:
    """Trains and evaluates as the flags specify.

    `make_strategy` returns a TensorFlow strategy. Without training, `count_replicas` hides the
    devices that the flags leave out, and returns the number of replicas that the strategy would
    have, or `None` if it is unknown.
    """
    # 1) Check the flags, and the files that they name, before anything slow.
    check_flags(options)
    for line in describe_legacy_flags(options, TRAINING_FLAGS):
        print(line)
    if idle := list_idle_flags(options):
        print(f"These flags have no effect without training: {', '.join(idle)}.")
    check_backend()
    found = choose_folders(options)
    _check_paths(options)

    # 2) Make the job from them, and open its data.
    job = make_job(options, found)
    if job.options.deterministic:
        _make_deterministic(job.config.training.seed)
    # A TPU is driven by one process, even if TF_CONFIG is set.
    writes = "tpu" in options or is_chief()

    # 3) Evaluate only.
    if not trains(options):
        if writes:
            count_replicas(options)  # hides the GPUs that --num_gpus leaves out
            _evaluate(job, options)
        else:
            print("Nothing to do for this process: the chief evaluates.")
        return

    # 4) Train, or describe the training; then evaluate if requested.
    locks = writes and not options.dry_run
    with lock_run(job.model_dir) if locks else contextlib.nullcontext():
        from txl_tf.training.dry_run import describe
        from txl_tf.training.job import open_training
        from txl_tf.training.workers import Workers

        if options.dry_run:
            for line in describe(job, count_replicas(options)):
                print(line)
            return
        workers = Workers(make_strategy(options))
        sampler = _choose_sampler(job, on_tpu="tpu" in options)
        loop = open_training(job, workers, make_sampler=sampler)
        stop_signal = loop.run() if loop else None
        del loop  # the evaluation may need the device's memory
        if options.do_eval and stop_signal:
            raise StoppedError(
                f"stopped by {stop_signal.name} after the training, before the evaluation",
                128 + stop_signal,
            )
        if options.do_eval:
            if workers.is_chief:
                _evaluate(job, options)
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
        from txl_tf.runs.checkpoint import check_not_release

        check_not_release(path)


def _make_deterministic(seed: int) -> None:
    """Restricts TensorFlow to deterministic operations in this process."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(seed)  # which such operations require; none is used here
    tf.config.experimental.enable_op_determinism()


def _choose_sampler(job: "TrainJob", *, on_tpu: bool) -> "SamplerMaker | None":
    """Returns a function that makes the sampler for evaluations during training; or `None`."""
    if not (job.options.sample_tokens and job.options.eval_every):
        return None
    reason = None
    if on_tpu:
        reason = "TPUs are not suited to generating one token at a time"
    elif not job.config.model.can_have_memory:
        reason = "generation needs a memory of keys and values"
    elif not job.config.evaluation.mem_len:
        reason = "without memory, each new token would see only the one before"
    if reason:
        if is_chief():
            print(f"No samples: {reason}.")
        return None
    from txl_tf.generation.live_sample import PROMPT_TOKENS, LiveSample

    split = job.records.split(job.options.eval_split)
    return functools.partial(
        LiveSample,
        vocabulary=job.records.vocabulary,
        evaluation=job.config.evaluation,
        prompt=split.read(0, min(PROMPT_TOKENS, len(split))),
        n_new=job.options.sample_tokens,
    )


def _evaluate(job: "TrainJob", options: flags.FlagValues) -> None:
    from txl_tf.programs.cli.evaluation import evaluate_checkpoints

    kept = job.config.training.jit
    default = "auto" if kept == "kernels" else kept  # those are for training
    jit = options.jit if options["jit"].present else default
    evaluate_checkpoints(
        job,
        checkpoint=options.eval_ckpt_path,
        first_step=options.start_eval_steps if options.do_eval_only else None,
        max_segments=options.max_eval_batch if options.max_eval_batch > 0 else None,
        jit=jit,
    )
