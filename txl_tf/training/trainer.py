"""The training loop on the device: many steps per call, on any number of replicas."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.config import ModelConfig, TrainConfig
from txl_tf.data.lanes.training_lanes import TrainingLanes
from txl_tf.errors import UserError
from txl_tf.models.architecture import make_model
from txl_tf.models.compilation import choose_jit, compile_function, explain_full_memory
from txl_tf.training.intervals import Interval, Pace
from txl_tf.training.optimizer import read_step_count
from txl_tf.training.replica_memory import ReplicaMemory
from txl_tf.training.step import StepResult, TrainStep, compute_gradients
from txl_tf.training.strategy import measure_peak_memory
from txl_tf.training.update_rules import make_optimizer
from txl_tf.training.workers import Workers

# Weights, optimizer and losses are float32 under every policy.
DTYPE_POLICIES = {
    "float32": "float32",
    "bfloat16": "mixed_bfloat16",
    "float16": "mixed_float16",
}

ADVICE = (
    "for this model and batch: try remat, more accumulate_steps, or a smaller train_batch_size, "
    "tgt_len or mem_len"
)

_compute_norm = tf.function(tf.linalg.global_norm, autograph=False)


def check_batch(config: TrainConfig, n_replicas: int) -> int:
    """Returns the number of lanes per replica.

    Raises:
        UserError: If the batch size is not divisible by the number of replicas, and the lanes of a
            replica by `accumulate_steps`.
    """
    if config.train_batch_size % n_replicas:
        raise UserError(
            "`train_batch_size` must be divisible by the number of replicas. "
            f"Received: train_batch_size={config.train_batch_size}, {n_replicas} replicas"
        )
    rows = config.train_batch_size // n_replicas
    if rows % config.accumulate_steps:
        raise UserError(
            "the lanes of a replica must be divisible by `accumulate_steps`. Received: "
            f"{rows} lanes a replica, accumulate_steps={config.accumulate_steps}"
        )
    return rows


class CallSegments(NamedTuple):
    """The segments of one call to the device, as this process reads them.

    Args:
        ids: (n, rows, window + 1) int32, overlapping inputs and targets; the window is T, or longer
            with extra context or random lengths.
        document_starts: (n, rows, window) bool, true where an input starts a document, or `None`.
        lengths: (n,) int32, the lengths of the segments; positions after them have no loss. `None`
            for T.
        wait: How long the device waited for them, in seconds.
    """

    ids: np.ndarray
    document_starts: np.ndarray | None = None
    lengths: np.ndarray | None = None
    wait: float = 0.0


class Trainer:
    """The model, optimizer and memory on the replicas of a strategy, and the loop over steps.

    The loop over the steps of a call runs inside one `tf.function`.

    In the 2019 code: `TPUEstimator`, whose `cache` is the memory.

    Raises:
        UserError: As in `check_batch`, or if the device runs out of memory.
    """

    def __init__(self, workers: Workers, model_config: ModelConfig, config: TrainConfig):
        self.workers = workers
        self.strategy = workers.strategy
        self.config = config
        self.jit = choose_jit(config.jit, config.precision)
        self.rows = check_batch(config, self.strategy.num_replicas_in_sync)
        with self.strategy.scope(), explain_full_memory(ADVICE):
            self.model = make_model(
                model_config,
                seed=config.seed,
                remat=config.remat,
                dtype=DTYPE_POLICIES[config.precision],
            )
            self.optimizer = make_optimizer(config, jit=self.jit)
            self.optimizer.build(self.model.trainable_variables)
        with explain_full_memory(ADVICE):
            self.memory = ReplicaMemory(
                workers,
                self.model,
                self.rows,
                config.mem_len,
                mask_empty=config.reset_at_documents,
            )
        # Compiled inside the replica function, because XLA cannot compile `strategy.run` itself
        # with several replicas on CPUs. Reduction, clipping and update stay outside.
        self.train_step = TrainStep(
            self.model,
            self.optimizer,
            compute=compile_function(compute_gradients, self.jit),
        )

    @property
    def step(self) -> int:
        """The number of steps done."""
        return read_step_count(self.optimizer)

    def read_gauges(self) -> dict[str, float]:
        """Returns the weight norm and, if known, the peak memory and the loss scale."""
        weights = [tf.convert_to_tensor(weight) for weight in self.model.trainable_variables]
        gauges = {"parameter_norm": float(_compute_norm(weights))}
        memory_bytes = measure_peak_memory(self.strategy)
        if memory_bytes is not None:
            gauges["peak_memory_bytes"] = memory_bytes
        if self.optimizer.loss_scale:
            gauges["loss_scale"] = float(self.optimizer.loss_scale.read())
        return gauges

    def read_ahead(self, lanes: TrainingLanes, pace: Pace) -> Iterator[CallSegments]:
        """Plans the calls of a pace, and yields the segments of each.

        While the replicas compute, a thread reads the segments of the next call. `pace` begins at
        `step` and knows `lanes.changes`. Each yield must go to `run`, with the same pace, before
        the next one is requested, because its duration decides how long later calls are.

        Raises:
            UserError: If a record is damaged.
        """
        with ThreadPoolExecutor(1) as reader:
            ahead: Future[CallSegments] | None = reader.submit(self._read, lanes, *pace.plan())
            while ahead:
                begin = time.perf_counter()
                segments = ahead.result()
                wait = time.perf_counter() - begin
                is_last = pace.is_planned
                ahead = None if is_last else reader.submit(self._read, lanes, *pace.plan())
                yield segments._replace(wait=wait)

    def _read(self, lanes: TrainingLanes, start: int, n_steps: int) -> CallSegments:
        is_reset = self.config.reset_at_documents
        rows = slice(self.memory.lanes.start, self.memory.lanes.stop)
        starts = lanes.read_document_starts(start, n_steps, rows) if is_reset else None
        is_random = self.config.has_random_lengths
        lengths = lanes.read_lengths(start, n_steps) if is_random else None
        return CallSegments(lanes.read(start, n_steps, rows), starts, lengths)

    def run(self, segments: CallSegments, pace: Pace | None = None) -> Interval:
        """Runs a step on each segment in one call to the device; returns their metrics.

        Args:
            segments: The segments of this process.
            pace: The plan that contains the call. It takes a note of the duration, and the call is
                padded to its longest one: the padding is not computed, but avoids tracing and
                compiling again for a call of another length. `None` for a single call, whose
                duration is not measured.

        Raises:
            UserError: If the device runs out of memory, or another process has ended.
        """
        ids, document_starts, lengths, wait = segments
        start, n_steps = self.step, len(ids)
        padding = 0 if pace is None else max(0, pace.longest - n_steps)
        begin = time.perf_counter()
        with explain_full_memory(ADVICE):
            batch = self._distribute(ids, padding)
            starts = None if document_starts is None else self._distribute(document_starts, padding)
            padded_lengths = None if lengths is None else tf.constant(np.pad(lengths, (0, padding)))
            with self.workers.explain_losses():
                values = self.run_steps(batch, starts, tf.constant(n_steps), padded_lengths).numpy()
        duration = time.perf_counter() - begin
        seconds = np.full(n_steps, np.nan)
        if pace is not None:
            # All processes use the chief's clock, so that they plan the same calls.
            (duration_of_chief,) = self.workers.broadcast([duration])
            pace.note(duration_of_chief, n_steps)
            if not pace.is_compiled(start):
                seconds[:] = (wait + duration) / n_steps
        nats, tokens, grad_norm, learning_rate = values.T
        tgt_len = ids.shape[2] - 1 - self.config.extra_len
        read_lengths = np.full(n_steps, tgt_len) if lengths is None else lengths
        n_read = self.config.train_batch_size * read_lengths
        return Interval(start + n_steps, nats, tokens, grad_norm, learning_rate, n_read, seconds)

    def _distribute(self, steps: np.ndarray, padding: int) -> tf.Tensor:
        """Hands each replica its rows of (n, rows, ...), padded with steps of zeros."""
        steps = np.pad(steps, ((0, padding), (0, 0), (0, 0)))

        def take_rows(context: Any) -> tf.Tensor:
            first = context.replica_id_in_sync_group * self.rows - self.memory.lanes.start
            return tf.constant(steps[:, first : first + self.rows])

        return self.strategy.experimental_distribute_values_from_function(take_rows)

    @tf.function(autograph=False)
    def run_steps(
        self,
        segments: tf.Tensor,
        document_starts: tf.Tensor | None,
        n_steps: tf.Tensor,
        lengths: tf.Tensor | None,
    ) -> tf.Tensor:
        """Runs the steps; returns nats, tokens, gradient norm and learning rate, (n, 4) float32."""
        table = tf.TensorArray(tf.float32, size=n_steps, element_shape=(4,))

        def run_replica(
            segments: tf.Tensor,
            document_starts: tf.Tensor | None,
            length: tf.Tensor | None,
            index: tf.Tensor,
        ) -> StepResult:
            segment = segments[index]  # (rows, T + 1)
            result, memory = self.train_step(
                segment[:, :-1],
                segment[:, 1:],
                self.memory.read(),
                document_starts=None if document_starts is None else document_starts[index],
                count=length,
            )
            self.memory.assign(memory)
            return result

        def run_step(index: tf.Tensor, table: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            length = None if lengths is None else lengths[index]
            arguments = (segments, document_starts, length, index)
            results = self.strategy.run(run_replica, args=arguments)
            values = [self.strategy.experimental_local_results(value)[0] for value in results]
            return index + 1, table.write(index, tf.stack(values))  # the same on all replicas

        _, table = tf.while_loop(lambda index, _: index < n_steps, run_step, (0, table))
        return table.stack()
