"""A training run, from records to checkpoints."""

import contextlib
import dataclasses
import json
import os
import shlex
import sys
import zlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from txl_tf.config import TrainConfig
from txl_tf.config.training import RunOptions
from txl_tf.data.files import exists
from txl_tf.data.lanes.training_lanes import TrainingLanes
from txl_tf.data.records.reading import Records
from txl_tf.errors import UserError, explain
from txl_tf.models.compilation import COMPILED, choose_jit
from txl_tf.models.segment_model import SegmentModel
from txl_tf.runs.checkpoint import explain_bare_weights, load_weights
from txl_tf.runs.checkpoint_choice import WEIGHTS_NAME, list_checkpoints
from txl_tf.runs.folder import (
    RunConfig,
    check_run_folder,
    find_other_splits,
    has_own_split,
    has_run,
    knows_data,
    make_run_folder,
    read_run_config,
    read_run_options,
    recall_start,
    remember_data,
    update_training,
    write_run_options,
)
from txl_tf.scoring.evaluator import Evaluator, check_documents
from txl_tf.scoring.metrics import Score
from txl_tf.training.averages import use_averages
from txl_tf.training.checkpoint import Checkpointer, share_run_id
from txl_tf.training.log import TrainingLog, Validation
from txl_tf.training.loop import TrainingLoop
from txl_tf.training.schedule import make_schedule
from txl_tf.training.trainer import Trainer
from txl_tf.training.workers import Workers

# Takes a model, and returns a function that generates text with the model's current weights.
SamplerMaker = Callable[[SegmentModel], Callable[[], str]]


@dataclasses.dataclass(frozen=True)
class TrainJob:
    """What a training command specifies: the model, the data, the settings and the run folder.

    Args:
        model_dir: The folder of the run.
        records: The records; the run trains on their split "train".
        config: All settings that determine the results of the run.
        options: When the run logs, saves, evaluates and stops.
        warm_start_path: The checkpoint whose weights a new run starts from; `None` for new weights.
        accepts_other_records: Whether a run may continue on records other than those it was trained
            on.
        is_evaluated: Whether the caller evaluates the run after training.
    """

    model_dir: str
    records: Records
    config: RunConfig
    options: RunOptions
    warm_start_path: str | None = None
    accepts_other_records: bool = False
    is_evaluated: bool = False


def open_job(job: TrainJob) -> tuple[RunConfig, TrainingLanes, RunConfig | None]:
    """Checks a job against its records and its folder, before any device is used.

    Returns:
        The config, with a `jit` of "auto" replaced by the choice for this machine; the training
        lanes; and the config of the run in the folder, or `None` if there is none.

    Raises:
        UserError: If the folder holds another run, or only weights; or a split is too short or
            lacks the document boundaries that it needs.
    """
    records, training = job.records, job.config.training
    if training.reset_at_documents:
        check_documents(records, "train")
    if job.config.evaluation.reset_at_documents and (job.options.eval_every or job.is_evaluated):
        check_documents(records, job.options.eval_split)  # now, and not after the training
    jit = choose_jit(training.jit, training.precision)
    training = dataclasses.replace(training, jit=jit)
    config = dataclasses.replace(job.config, training=training)
    lanes = make_lanes(records, training)
    # The run keeps the name of its first records.
    are_known = has_own_split(job.model_dir, records, "train")
    if has_run(job.model_dir) and (job.accepts_other_records or are_known):
        config = dataclasses.replace(config, dataset=read_run_config(job.model_dir).dataset)
    found = check_run_folder(job.model_dir, config, records.vocabulary)
    weights = os.path.join(job.model_dir, WEIGHTS_NAME)
    if found and exists(weights) and not list_checkpoints(job.model_dir):
        raise UserError(explain_bare_weights(f"`{job.model_dir}`", weights))
    return config, lanes, found


def open_training(
    job: TrainJob, workers: Workers, make_sampler: SamplerMaker | None = None
) -> TrainingLoop | None:
    """Makes the model of a run, restores its newest checkpoint if there is one, and opens its log.

    A new run gets its folder. The run stores what a `jit` of "auto" stands for here, and the
    location of its records. With `make_sampler`, it generates a text at each evaluation.

    In the 2019 code: the beginning of `train` of train_gpu.py; `TrainingLoop.run` is the rest.

    Returns:
        The loop, whose `run` trains; `None` if no step is left, or early stopping has ended the
        training.

    Raises:
        UserError: As in `open_job`, `describe_other_records` and `Trainer`; or if the run has
            already taken more steps than the job specifies, a record is damaged, a checkpoint
            cannot be restored, or another process of the run has ended or was started with other
            flags.
    """
    # 1) Check everything that needs no device.
    config, lanes, found = open_job(job)
    training = config.training
    model_dir, records, options = job.model_dir, job.records, job.options
    _check_agreement(workers, job, config)
    if change := describe_other_records(job):
        workers.say(change)

    # 2) Make the model and the optimizer, and restore them.
    with workers.explain_losses():
        trainer = Trainer(workers, config.model, training)
    checkpointer = Checkpointer(
        model_dir,
        trainer.model,
        trainer.optimizer,
        trainer.memory,
        workers,
        run_id=share_run_id(workers, model_dir),
        keep=options.keep_checkpoints,
    )
    first_step = checkpointer.restore()
    check_steps(model_dir, first_step, training)
    _describe_start(trainer, records, lanes)
    _warm_start(trainer, first_step, job.warm_start_path, use_ema=options.use_ema)
    if found and found.training != training and workers.is_chief:  # all have read the old one
        update_training(model_dir, training)
        for change in describe_changes(first_step, found.training, training).values():
            print(change)
    if first_step >= training.train_steps:
        workers.say(f"All {training.train_steps} steps are done.")
        is_known = knows_data(model_dir) and not find_other_splits(model_dir, records)
        if workers.is_chief and is_known:
            _remember_records(job, first_step)  # they may have moved
        return None

    # 3) Make the folder of a new run, and its log.
    lanes.read(first_step)  # a damaged record ends a new run before it has a folder
    evaluator = Evaluator(
        trainer.model, config.evaluation, vocabulary=records.vocabulary, jit=training.jit
    )
    held_out = (
        evaluator.cut_lanes(records.split(options.eval_split)) if options.eval_every else None
    )
    log, validation = None, None
    if workers.is_chief:
        make_run_folder(model_dir, config, records.vocabulary, checkpointer.run_id)
        _change_options(model_dir, options)
        _remember_records(job, first_step)
        level = records.vocabulary.level
        log = TrainingLog(model_dir, config, options, first_step=first_step, level=level)
        validation = Validation(
            model_dir,
            options,
            first_step=first_step,
            lanes=held_out,
            evaluation=config.evaluation,
        )
        if differences := validation.compare_settings():
            print(
                "warning: earlier evaluations had other settings, and the best checkpoint is "
                f"chosen by the losses of all: {'; '.join(differences)}",
                file=sys.stderr,
            )
    (is_over,) = workers.broadcast([validation is not None and validation.is_over])
    if is_over:
        print(
            validation.describe_end() if validation else "Early stopping: the chief ends the run."
        )
        return None

    # 4) Evaluations use the averaged weights, if there are any, and generate a sample.
    sample = None
    if make_sampler and workers.is_chief and options.eval_every:
        sample = make_sampler(trainer.model)
    if options.eval_every and training.has_average:
        name = "ema" if training.ema else "average_from"
        weights = "averaged weights" if options.use_ema else "weights"
        workers.say(f"Evaluations use the {weights} ({name} {getattr(training, name)}).")

    def evaluate() -> tuple[Score, str | None]:
        assert held_out is not None  # without `eval_every` nothing is evaluated
        averages = use_averages(trainer.optimizer) if options.use_ema else contextlib.nullcontext()
        with averages:
            return evaluator.score_lanes(held_out), _generate(sample, workers) if sample else None

    return TrainingLoop(
        trainer,
        lanes,
        checkpointer,
        log=log,
        validation=validation,
        options=options,
        evaluate=evaluate,
    )


def _check_agreement(workers: Workers, job: TrainJob, config: RunConfig) -> None:
    """Checks that all processes of a run have the same job; the error names one that differs."""
    shared = (
        config.to_json(),
        job.options.to_json(),
        job.records.checksums,
        job.warm_start_path,
        job.accepts_other_records,
        job.is_evaluated,
        len(workers.strategy.extended.worker_devices),
    )
    sums = workers.gather([zlib.crc32(json.dumps(shared).encode())])[:, 0]
    for index in np.flatnonzero(sums != sums[0]).tolist():
        raise UserError(
            f"{workers.name(index)} was started with other flags, or on other records, than "
            f"{workers.name(0)}: all processes of a run need the same"
        )


def _describe_start(trainer: Trainer, records: Records, lanes: TrainingLanes) -> None:
    """Prints the sizes of model and data, and the devices."""
    workers = trainer.workers
    devices = workers.strategy.extended.worker_devices
    names = [name.rpartition("device:")[2] for name in devices]
    if workers.count > 1:
        print(
            f"Process {workers.index + 1} of {workers.count}, {workers.name(workers.index)}: lanes "
            f"{trainer.memory.lanes.start} to {trainer.memory.lanes.stop - 1} of {lanes.n_lanes}"
            + ("" if workers.is_chief else f"; {workers.name(0)} reports.")
        )
    workers.say(
        f"{trainer.model.config.count_parameters():,} parameters on {', '.join(names)}, "
        f"{trainer.rows} lanes each; {len(records.split('train')):,} tokens, "
        f"{describe_epoch(lanes)}"
    )
    workers.say(f"XLA compiles {COMPILED[trainer.jit]}.")


def describe_epoch(lanes: TrainingLanes) -> str:
    """Returns the length of an epoch as text."""
    if lanes.random_lengths:
        return f"about {lanes.steps_per_epoch:,} steps an epoch, with segments of random lengths"
    if not lanes.changes:
        return f"{lanes.steps_per_epoch:,} steps an epoch"
    ends = [f" up to step {step:,}" for step in lanes.changes]
    stages = [
        f"{lanes.lane_len // stage.tgt_len:,} steps with segments of {stage.tgt_len}{end}"
        for stage, end in zip(lanes.stages, [*ends, ""], strict=True)
    ]
    return f"an epoch of {lanes.n_lanes * lanes.lane_len:,} takes {', '.join(stages)}"


def make_lanes(records: Records, training: TrainConfig) -> TrainingLanes:
    """Returns the lanes in which a run reads its training split."""
    return TrainingLanes(
        records.split("train"),
        n_lanes=training.train_batch_size,
        tgt_len=training.tgt_len,
        tgt_len_schedule=training.tgt_len_schedule,
        seed=training.seed,
        extra_len=training.extra_len,
        tgt_len_std=training.tgt_len_std,
        half_len_rate=training.half_len_rate,
    )


def check_steps(model_dir: str, n_done: int, training: TrainConfig) -> None:
    """Checks that a run has not taken more steps than `train_steps`."""
    if n_done > training.train_steps:
        raise UserError(
            f"`{model_dir}` has made {n_done} steps: `train_steps` must be at least as many. "
            f"Received: train_steps={training.train_steps}"
        )


def describe_other_records(job: TrainJob) -> str | None:
    """Describes how the records differ from those that a run was trained on.

    Returns:
        The description; `None` if they do not differ, or no steps are left.

    Raises:
        UserError: If they differ and the job does not accept that.
    """
    checkpoints = list_checkpoints(job.model_dir)
    names = find_other_splits(job.model_dir, job.records)
    if not names or not checkpoints or checkpoints[-1][0] >= job.config.training.train_steps:
        return None
    splits = f"split{'s' * (len(names) > 1)} {', '.join(names)}"
    change = (
        f"`{job.records.data_dir}` holds other records than `{job.model_dir}` was trained on: "
        f"{splits}"
    )
    if not job.accepts_other_records:
        raise UserError(
            f"{change}. Pass the run's own --data_dir; or start a new run on them with "
            f"--warm_start_path={shlex.quote(checkpoints[-1][1])}; or continue this one on them "
            "with --accept_other_records"
        )
    return f"{change}. Training continues on them (--accept_other_records)."


def _change_options(model_dir: str, options: RunOptions) -> None:
    old = dataclasses.asdict(read_run_options(model_dir) or options.without_limits())
    for name, value in dataclasses.asdict(options.without_limits()).items():
        if value != old[name]:
            print(f"{name} is now {value} instead of {old[name]}.")
    write_run_options(model_dir, options)


def describe_changes(step: int, old: TrainConfig, new: TrainConfig) -> dict[str, str]:
    """Returns what changes if a run continues from a step with another config, by subject."""
    changes = {}
    if old.train_steps != new.train_steps:
        decay = "cosine" if new.schedule == "cosine" else "linear decay"
        rates = [float(make_schedule(training)(step)) for training in (old, new)]
        changes["schedule"] = (
            f"train_steps is now {new.train_steps} instead of {old.train_steps}: the {decay} of "
            f"the learning rate ends at step {new.train_steps}, and the rate at step {step} "
            f"changes from {rates[0]:.3g} to {rates[1]:.3g}."
        )
    if old.jit not in ("auto", new.jit):  # "auto" was written by an import
        changes["jit"] = (
            f"jit is now {new.jit} instead of {old.jit}: from step {step} on, numbers may be "
            "rounded differently."
        )
    return changes


def _warm_start(
    trainer: Trainer, first_step: int, warm_start_path: str | None, *, use_ema: bool
) -> None:
    """Loads the weights of a checkpoint into a new run, and prints where the run starts."""
    if first_step:
        ignored = " --warm_start_path is ignored: it is for new runs." if warm_start_path else ""
        trainer.workers.say(f"Resuming from step {first_step}.{ignored}")
    elif warm_start_path:
        is_averaged = load_weights(trainer.model, warm_start_path, use_ema=use_ema)
        trainer.optimizer.restart_averages()
        name = "averaged weights" if is_averaged else "weights"
        trainer.workers.say(f"Warm start from the {name} of {warm_start_path}.")


def _remember_records(job: TrainJob, first_step: int) -> None:
    """Saves the place of the records; a run that has begun keeps the checkpoint it started from."""
    start = recall_start(job.model_dir) if first_step else job.warm_start_path
    records = job.records
    remember_data(job.model_dir, records.data_dir, records.checksums, warm_start_path=start)


def _generate(sample: Callable[[], str], workers: Workers) -> str | None:
    """Returns a sample, or `None` if the device fails, so that training continues."""
    try:
        return sample()
    except (tf.errors.OpError, UserError) as error:  # the latter if its memory is full
        workers.say(f"No sample: {explain(error)}")
        return None
