"""Many training steps a call, with memory carried, on any number of replicas."""

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from txl_tf.config import ModelConfig, TrainConfig
from txl_tf.data.lanes import TrainingLanes
from txl_tf.errors import UserError
from txl_tf.model import TransformerXL
from txl_tf.training.files import explain
from txl_tf.training.optimizer import make_optimizer, read_step_count
from txl_tf.training.step import StepResult, compute_gradients, train_step


class Interval(NamedTuple):
    """The steps of one call, each array of shape (n,).

    Args:
        step: the step after the last one.
        nats: sum of the losses over all replicas.
        tokens: how many tokens that is.
        grad_norm: global norm of the gradients before clipping.
        learning_rate: the one used.
    """

    step: int
    nats: np.ndarray
    tokens: np.ndarray
    grad_norm: np.ndarray
    learning_rate: np.ndarray


class Trainer:
    """Model, optimizer and memory on the replicas of a strategy, and the loop over the steps.

    Each replica holds its rows of the memory in variables of its own, which never leave the
    device: replica r has the lanes r B/R to (r+1) B/R, so any number of replicas sees the same
    text with the same memory. The loop over the steps of a call runs inside one `tf.function`.

    Args:
        strategy: of `tf.distribute`.
        model_config: the model.
        config: schedule, batch, segment, span, seed.
        jit_compile: whether XLA compiles forward and backward pass.

    Raises:
        UserError: the batch is not divisible by the replicas.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model_config: ModelConfig,
        config: TrainConfig,
        *,
        jit_compile: bool = True,
    ):
        n_replicas = strategy.num_replicas_in_sync
        if config.train_batch_size % n_replicas:
            raise UserError(
                "`train_batch_size` must be divisible by the number of replicas. "
                f"Received: train_batch_size={config.train_batch_size}, {n_replicas} replicas"
            )
        self.strategy = strategy
        self.config = config
        self.rows = config.train_batch_size // n_replicas
        with strategy.scope():
            self.model = TransformerXL(model_config, seed=config.seed)
            self.optimizer = make_optimizer(config)
            self.optimizer.build(self.model.trainable_variables)
            self._memory = keras.tree.map_structure(
                _make_replica_variable, self.model.initial_memory(self.rows, config.mem_len)
            )
        # Compiled inside the replica function: with several replicas on CPUs, XLA cannot compile
        # around it. Reduction, clipping and update stay outside.
        self._compute = tf.function(compute_gradients, jit_compile=jit_compile, autograph=False)

    @property
    def step(self) -> int:
        """Number of steps done."""
        return read_step_count(self.optimizer)

    def train(self, lanes: TrainingLanes, stops: Sequence[int]) -> Iterator[Interval]:
        """Runs the steps up to each stop, in one call of the device each, and yields their numbers.

        The segments of the next call are read while the replicas work on this one's.

        Args:
            lanes: the training split.
            stops: ascending steps, the first above `step`.

        Raises:
            UserError: a loss is not finite; the step is named.
        """
        calls = list(itertools.pairwise((self.step, *stops)))
        n_padded = max(stop - start for start, stop in calls)
        for segments, document_starts in _read_ahead(lanes, calls, self.config.reset_at_documents):
            yield self.run(segments, document_starts, n_padded=n_padded)

    def run(
        self,
        segments: np.ndarray,
        document_starts: np.ndarray | None = None,
        *,
        n_padded: int = 0,
    ) -> Interval:
        """Runs a step on each segment.

        Args:
            segments: (n, B, T + 1) int32 ids, inputs and targets overlapping.
            document_starts: (n, B, T) bool, where an input begins a document, which sees nothing
                of what was before it; `None` where the text runs on.
            n_padded: the call is padded to so many segments, of which nothing is computed: a
                call of another length would be traced and compiled anew.

        Raises:
            UserError: a loss is not finite (the step is named), or the device's memory is full.
        """
        start, n_steps = self.step, len(segments)
        padding = max(0, n_padded - n_steps)
        try:
            batch = self._distribute(segments, padding)
            starts = None if document_starts is None else self._distribute(document_starts, padding)
            values = self._run_steps(batch, starts, tf.constant(n_steps)).numpy()
        except tf.errors.ResourceExhaustedError as error:
            raise UserError(
                "the device has too little memory for this model and batch: try a smaller "
                f"train_batch_size, tgt_len or mem_len ({explain(error)})"
            ) from error
        interval = Interval(start + n_steps, *values.T)
        finite = np.isfinite(interval.nats) & np.isfinite(interval.grad_norm)
        if not finite.all():
            step = start + int(np.argmin(finite))
            raise UserError(
                f"the loss or its gradient is not finite at step {step}: "
                "a lower learning_rate or more warmup_steps may help"
            )
        return interval

    def _distribute(self, steps: np.ndarray, padding: int) -> tf.Tensor:
        """Hands each replica its rows of (n, B, ...), with steps of zeros behind: (n, B/R, ...)."""
        steps = np.pad(steps, ((0, padding), (0, 0), (0, 0)))

        def take_rows(context: Any) -> tf.Tensor:
            first = context.replica_id_in_sync_group * self.rows
            return tf.constant(steps[:, first : first + self.rows])

        return self.strategy.experimental_distribute_values_from_function(take_rows)

    @tf.function
    def _run_steps(
        self, segments: tf.Tensor, document_starts: tf.Tensor | None, n_steps: tf.Tensor
    ) -> tf.Tensor:
        """Returns nats, tokens, gradient norm and learning rate of each step, (n, 4) float32."""
        table = tf.TensorArray(tf.float32, size=n_steps, element_shape=(4,))
        for index in tf.range(n_steps):
            results = self.strategy.run(self._run_replica, args=(segments, document_starts, index))
            sums = [
                self.strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)
                for value in (results.nats, results.tokens)
            ]
            equals = [  # on all replicas
                self.strategy.experimental_local_results(value)[0]
                for value in (results.grad_norm, results.learning_rate)
            ]
            table = table.write(index, tf.stack(sums + equals))
        return table.stack()

    def _run_replica(
        self, segments: tf.Tensor, document_starts: tf.Tensor | None, index: tf.Tensor
    ) -> StepResult:
        segment = segments[index]  # (B/R, T + 1)
        memory = keras.tree.map_structure(lambda variable: variable.read_value(), self._memory)
        result, memory = train_step(
            self.model,
            self.optimizer,
            segment[:, :-1],
            segment[:, 1:],
            memory,
            span=self.config.span,
            document_starts=None if document_starts is None else document_starts[index],
            compute=self._compute,
        )
        keras.tree.map_structure(lambda variable, new: variable.assign(new), self._memory, memory)
        return result


def _read_ahead(
    lanes: TrainingLanes, calls: list[tuple[int, int]], with_documents: bool
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Yields the segments of each call and where documents begin there, or `None`.

    One call's are read ahead in a thread.
    """

    def read(step: int, n_steps: int) -> tuple[np.ndarray, np.ndarray | None]:
        starts = lanes.read_document_starts(step, n_steps) if with_documents else None
        return lanes.read(step, n_steps), starts

    with ThreadPoolExecutor(1) as reader:
        ready = None
        for start, stop in calls:
            ahead = reader.submit(read, start, stop - start)
            if ready:
                yield ready.result()
            ready = ahead
        if ready:
            yield ready.result()


def _make_replica_variable(initial: tf.Tensor) -> tf.Variable:
    """Makes a variable that each replica has a value of its own of."""
    return tf.Variable(
        initial,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
