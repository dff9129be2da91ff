"""A dry run: what a training command would do, and the resources it would need."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from txl_tf.config.run_options import RunOptions
from txl_tf.config.stages import find_stage
from txl_tf.data.data_set import DataSet
from txl_tf.data.lanes import TrainingLanes
from txl_tf.errors import UserError
from txl_tf.evaluation.checkpoints import describe_evaluation
from txl_tf.runs.checkpoint_files import list_checkpoints
from txl_tf.runs.files import exists
from txl_tf.runs.folder import RunConfig, check_run_folder
from txl_tf.training.costs import (
    TrainingMemory,
    count_run_flops,
    count_step_flops,
    estimate_memory,
)
from txl_tf.training.job import check_steps, describe_epoch, describe_extension, make_lanes
from txl_tf.training.trainer import check_batch

if TYPE_CHECKING:
    from txl_tf.config import ModelConfig

_SAMPLED_TOKENS = 200_000  # of which the bins are counted


class Job(NamedTuple):
    """A training run that was asked for.

    Args:
        records: the data set.
        config: of the run.
        options: when it evaluates and saves.
        model_dir: run folder.
        eval_split: split of the evaluations.
        warm_start_path: checkpoint whose weights a new run starts from.
        evaluates_after: whether the run is evaluated after training.
        n_replicas: their number; `None` if it is not known before the start.
    """

    records: DataSet
    config: RunConfig
    options: RunOptions
    model_dir: str
    eval_split: str
    warm_start_path: str | None
    evaluates_after: bool
    n_replicas: int | None


def describe_job(job: Job) -> Iterator[str]:
    """Yields lines about what the training would do and need.

    Raises:
        UserError: If the training would be refused.
    """
    config, training = job.config, job.config.training
    found = check_run_folder(job.model_dir, config, job.records.vocabulary)
    lanes = make_lanes(job.records, training)
    n_replicas = job.n_replicas or 1
    check_batch(training, n_replicas)
    checkpoints = list_checkpoints(job.model_dir)
    first_step = checkpoints[-1][0] if checkpoints else 0
    check_steps(job.model_dir, first_step, training)
    counts: dict[str, Any] = {
        "n_replicas": n_replicas,
        "bin_shares": measure_bin_shares(job.records, config.model),
    }
    parts = config.model.count_parameters_by_part()
    yield "A dry run: nothing is trained or written."
    yield (
        f"parameters  {sum(parts):,}: embedding {parts.embedding:,}, layers {parts.layers:,}, "
        f"softmax {parts.softmax:,} beside the tables"
    )
    memory = estimate_memory(config.model, training, n_replicas=n_replicas)
    yield f"memory      {_describe_memory(memory)}"
    yield f"            {_describe_replicas(job)}"
    flops = count_step_flops(config.model, training, **counts)
    yield (
        f"step        {training.train_batch_size * training.tgt_len:,} tokens, "
        f"{training.train_batch_size} lanes of {training.tgt_len}; "
        f"{_format_flops(flops)} in matrix products"
    )
    n_tokens = _count_tokens(lanes, training.train_steps) - _count_tokens(lanes, first_step)
    epochs = n_tokens / (lanes.n_lanes * lanes.lane_len)
    all_flops = count_run_flops(config.model, training, first_step=first_step, **counts)
    yield (
        f"run         step {first_step:,} to {training.train_steps:,}: {n_tokens:,} tokens, "
        f"{epochs:,.2f} epochs, {describe_epoch(lanes)}; {_format_flops(all_flops)}"
    )
    yield f"start       {_describe_start(job, checkpoints)}"
    if found and found.training != training:
        yield f"schedule    {describe_extension(first_step, found.training, training)}"
    yield f"saves       every {job.options.save_steps:,} steps and at the end, to {job.model_dir}"
    yield f"evaluation  {_describe_evaluations(job)}"


def measure_bin_shares(records: DataSet, model: "ModelConfig") -> tuple[float, ...]:
    """Returns the share of tokens in each bin at the beginning of the training text."""
    split = records.split("train")
    ids = split.read(0, min(len(split), _SAMPLED_TOKENS))
    bins = np.searchsorted(model.cutoffs, ids, side="right")
    counts = np.bincount(bins, minlength=len(model.bins))
    return tuple((counts / counts.sum()).tolist())


def _describe_memory(memory: TrainingMemory) -> str:
    parts = memory._asdict()
    listed = ", ".join(f"{name} {_format_bytes(size)}" for name, size in parts.items())
    return f"about {_format_bytes(sum(memory))}: {listed}; the activations are an estimate"


def _describe_replicas(job: Job) -> str:
    n_lanes = job.config.training.train_batch_size
    if job.n_replicas is None:
        return f"for all {n_lanes} lanes; the number of replicas is known when training starts"
    rows = n_lanes // job.n_replicas
    lanes = f"{rows} lane{'s' * (rows > 1)}"
    if job.n_replicas == 1:
        return f"on 1 replica with {lanes}"
    return f"on each of {job.n_replicas} replicas with {lanes}"


def _describe_start(job: Job, checkpoints: list[tuple[int, str]]) -> str:
    if checkpoints:
        step, path = checkpoints[-1]
        if step == job.config.training.train_steps:
            return f"all {step:,} steps are done, in {path}"
        return f"restores {path}"
    if job.warm_start_path is None:
        return f"new weights, seed {job.config.training.seed}"
    if not exists(f"{job.warm_start_path}.index"):
        raise UserError(f"checkpoint {job.warm_start_path} does not exist")
    return f"the weights of {job.warm_start_path}"


def _describe_evaluations(job: Job) -> str:
    times = []
    if job.options.eval_every:
        times.append(f"every {job.options.eval_every:,} steps and at the end")
    if job.evaluates_after:
        times.append("after training")
    if not times:
        return "none"
    n_tokens = len(job.records.split(job.eval_split)) - 1
    return (
        f"{', '.join(times)}: {n_tokens:,} tokens of {job.eval_split} with "
        f"{describe_evaluation(job.config.evaluation)}"
    )


def _count_tokens(lanes: TrainingLanes, step: int) -> int:
    """Returns the tokens that all lanes have read before a step."""
    return lanes.n_lanes * find_stage(lanes.stages, step).count_tokens(step)


def _format_bytes(size: int) -> str:
    """Returns a size in a readable unit.

    >>> _format_bytes(3 * 2**29)
    '1.5 GiB'
    """
    for unit, unit_size in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= unit_size:
            return f"{size / unit_size:.1f} {unit}"
    return f"{size / 2**10:.1f} KiB"


def _format_flops(flops: float) -> str:
    """Returns a number of operations in a readable unit.

    >>> _format_flops(2.5e15)
    '2.5 PFLOP'
    """
    for unit, size in (("EFLOP", 1e18), ("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9)):
        if flops >= size:
            return f"{flops / size:.3g} {unit}"
    return f"{flops / 1e6:.3g} MFLOP"
