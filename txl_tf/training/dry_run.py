"""A dry run: what a training run would do, and the resources it would need."""

import contextlib
import math
from collections.abc import Iterator

import tensorflow as tf

from txl_tf.config import ModelConfig, TrainConfig
from txl_tf.config.parameters import count_by_part, list_matrices
from txl_tf.config.training import OPTIMIZERS
from txl_tf.models.architecture import make_model
from txl_tf.models.compilation import check_kernels, explain_full_memory
from txl_tf.runs.checkpoint import DAMAGE, CheckpointReader
from txl_tf.runs.checkpoint_choice import is_weights_file, list_checkpoints
from txl_tf.runs.weights_file import read_weights_file
from txl_tf.scoring.evaluator import describe_evaluation
from txl_tf.training.job import (
    TrainJob,
    check_steps,
    describe_changes,
    describe_epoch,
    describe_other_records,
    open_job,
)
from txl_tf.training.loop import check_stop_step
from txl_tf.training.step import compute_gradients
from txl_tf.training.trainer import ADVICE, DTYPE_POLICIES, check_batch

_FLOAT_BYTES = 4


def describe(job: TrainJob, n_replicas: int | None) -> Iterator[str]:
    """Yields lines about what a training run would do and need; nothing is trained or written.

    `n_replicas` is `None` if it is not known before training starts. Performs the checks of
    `open_training` and `TrainingLoop.run`.
    """
    config, lanes, found = open_job(job)
    training, options, model_dir = config.training, job.options, job.model_dir
    check_batch(training, n_replicas or 1)
    checkpoints = list_checkpoints(model_dir)
    _check_start(job, checkpoints)
    first_step = checkpoints[-1][0] if checkpoints else 0
    check_steps(model_dir, first_step, training)
    if first_step < training.train_steps:
        check_stop_step(options.stop_step, first_step)
    if training.jit == "kernels" and n_replicas is not None:
        check_kernels()
    parts = count_by_part(config.model)
    change = describe_other_records(job)
    yield "A dry run: nothing is trained or written."
    yield (
        f"parameters  {sum(parts.values()):,}: "
        + ", ".join(f"{name} {size:,}" for name, size in parts.items())
        + " without the tables"
    )
    yield from _describe_memory(config.model, training, n_replicas)
    yield (
        f"step        {training.train_batch_size * training.tgt_len:,} tokens, "
        f"{training.train_batch_size} lanes of {training.tgt_len}"
        + (f" after {training.extra_len} of extra context" if training.extra_len else "")
    )
    n_tokens = lanes.n_lanes * (
        lanes.count_tokens(training.train_steps) - lanes.count_tokens(first_step)
    )
    epochs = n_tokens / (lanes.n_lanes * lanes.lane_len)
    yield (
        f"run         step {first_step:,} to {training.train_steps:,}: {n_tokens:,} tokens, "
        f"{epochs:,.2f} epochs, {describe_epoch(lanes)}"
    )
    yield f"start       {_describe_start(job.warm_start_path, training, checkpoints)}"
    changes = describe_changes(first_step, found.training, training) if found else {}
    changes |= {"records": change} if change else {}
    for subject, change in changes.items():
        yield f"{subject:<12}{change}"
    yield f"saves       every {options.save_steps:,} steps and at the end, to {model_dir}"
    yield f"evaluation  {_describe_evaluations(job)}"


def _check_start(job: TrainJob, checkpoints: list[tuple[int, str]]) -> None:
    """Checks the checkpoint from which training would start."""
    start = checkpoints[-1][1] if checkpoints else job.warm_start_path
    if start is None:
        return
    if is_weights_file(start):
        read_weights_file(make_model(job.config.model), start)
        return
    with contextlib.suppress(*DAMAGE):  # training sets a damaged checkpoint aside
        reader = CheckpointReader(start)
        reader.check_config(job.config.model)
        if checkpoints:
            reader.check_optimizer()


def _describe_memory(
    model: ModelConfig, training: TrainConfig, n_replicas: int | None
) -> Iterator[str]:
    """Yields lines about the memory of training on each replica."""
    kept = count_kept_memory(model, training, n_replicas or 1)
    parts = ", ".join(f"{name} {_format_bytes(size)}" for name, size in kept.items())
    yield f"memory      {_describe_replicas(training.train_batch_size, n_replicas)}: {parts}"
    if n_replicas is None:
        yield "            and the activations, which depend on the TPU"
        return
    yield "            compiling the step for its activations, which takes some seconds ..."
    size = compile_activations(model, training, n_replicas)
    is_whole = training.jit in ("whole", "kernels")
    limit = "" if is_whole else f", for --jit=whole, not for --jit={training.jit}"
    yield f"            activations {_format_bytes(size)} by XLA's account{limit}"
    yield f"            all {_format_bytes(sum(kept.values()) + size)}"


def count_kept_memory(
    model: ModelConfig, training: TrainConfig, n_replicas: int = 1
) -> dict[str, int]:
    """Returns the bytes that each replica keeps between training steps, by what they hold.

    They are computed from the config alone.
    """
    weights = _FLOAT_BYTES * model.count_parameters()
    facts = OPTIMIZERS[training.optimizer]
    optimizer = weights * (facts.n_moments + training.has_average)
    matrices = _FLOAT_BYTES * sum(rows * columns for rows, columns in list_matrices(model))
    optimizer += matrices * (facts.count_moments(is_matrix=True) - facts.n_moments)
    rows = math.ceil(training.train_batch_size / n_replicas)
    states = rows * training.mem_len * model.d_model * model.n_layer
    adds_up = n_replicas > 1 or training.accumulate_steps > 1  # to a second copy
    return {
        "weights": weights,
        "gradients": weights * (2 if adds_up else 1),
        "optimizer": optimizer,
        # The recurrent memory, before and after a step.
        "memory": 2 * states * (_FLOAT_BYTES if training.precision == "float32" else 2),
    }


@explain_full_memory(ADVICE)
def compile_activations(
    model_config: ModelConfig, training: TrainConfig, n_replicas: int = 1
) -> int:
    """Compiles the forward and backward pass of a step with XLA; returns its activation bytes.

    These are what the step needs besides its arguments (weights, memory, ids) and its results
    (gradients, memory), according to XLA's buffer assignment for the device of this process. This
    takes seconds, and as much memory as the weights.
    """
    # TensorFlow installs it, but does not export it.
    from tensorflow.compiler.xla.service import hlo_pb2

    policy = DTYPE_POLICIES[training.precision]
    model = make_model(model_config, seed=training.seed, remat=training.remat, dtype=policy)
    rows = math.ceil(training.train_batch_size / n_replicas / training.accumulate_steps)
    memory = model.initial_memory(rows, training.mem_len)
    loss_start = training.find_loss_start(training.window_len)

    def compute(ids: tf.Tensor, memory: tuple[tf.Tensor, ...]) -> object:
        return compute_gradients(model, ids, ids, memory, span=training.span, loss_start=loss_start)

    ids = tf.zeros((rows, training.window_len), tf.int32)
    step = tf.function(compute, jit_compile=True, autograph=False)
    content = step.experimental_get_compiler_ir(ids, memory)(stage="optimized_hlo_proto_serialized")
    buffers = hlo_pb2.HloProto.FromString(content).buffer_assignment.buffer_allocations
    return sum(
        buffer.size
        for buffer in buffers
        if not buffer.is_entry_computation_parameter
        and not buffer.maybe_live_out
        and not buffer.is_constant
        and not buffer.is_thread_local
    )


def _describe_replicas(n_lanes: int, n_replicas: int | None) -> str:
    if n_replicas is None:
        return f"for all {n_lanes} lanes; the number of replicas is known when training starts"
    rows = n_lanes // n_replicas
    lanes = f"{rows} lane{'s' * (rows > 1)}"
    if n_replicas == 1:
        return f"on 1 replica with {lanes}"
    return f"on each of {n_replicas} replicas with {lanes}"


def _describe_start(
    warm_start_path: str | None, training: TrainConfig, checkpoints: list[tuple[int, str]]
) -> str:
    if checkpoints:
        step, path = checkpoints[-1]
        if step == training.train_steps:
            return f"all {step:,} steps are done, in {path}"
        return f"restores {path}"
    if warm_start_path is None:
        return f"new weights, seed {training.seed}"
    return f"the weights of {warm_start_path}"


def _describe_evaluations(job: TrainJob) -> str:
    times = []
    if job.options.eval_every:
        times.append(f"every {job.options.eval_every:,} steps and at the end")
    if job.is_evaluated:
        times.append("after training")
    if not times:
        return "none"
    split = job.options.eval_split
    return (
        f"{', '.join(times)}: {len(job.records.split(split)) - 1:,} tokens of {split} with "
        f"{describe_evaluation(job.config.evaluation)}"
    )


def _format_bytes(size: int) -> str:
    """Returns a size in a readable unit.

    >>> _format_bytes(3 * 2**29)
    '1.5 GiB'
    """
    for unit, unit_size in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= unit_size:
            return f"{size / unit_size:.1f} {unit}"
    return f"{size / 2**10:.1f} KiB"
