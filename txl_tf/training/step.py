"""One training step on one replica."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from txl_tf.config import AttentionSpan
from txl_tf.models.gradients import take_gradients
from txl_tf.models.segment_model import SegmentModel, check_trainable
from txl_tf.training.optimizer import Optimizer

Memory = Any  # a nest of tensors that only the model looks into

# Gradients are copied into packs for the reduction: a single pack for most models, several for the
# largest ones, where a copy of all gradients would take too much of the device's memory.
PACK_BYTES = 256 * 2**20


class StepResult(NamedTuple):
    """What a training step reports.

    Args:
        nats: () float32, the loss summed over the tokens of all replicas.
        tokens: () float32, the number of these tokens (only those with a loss).
        grad_norm: () float32, the global norm of the gradients before clipping and without loss
            scaling; not finite if the step was skipped.
        learning_rate: () float32, the learning rate of the step.
    """

    nats: tf.Tensor
    tokens: tf.Tensor
    grad_norm: tf.Tensor
    learning_rate: tf.Tensor


class TrainStep:
    """Performs training steps on one replica, with teacher forcing.

    Under `tf.distribute`, it is called in a replica, with the rows of that replica. The gradients
    are averaged over the replicas before they are clipped, so any number of replicas takes the same
    step as a single one with all rows. A step with non-finite gradients is skipped: only the
    optimizer's step count and loss scale change, and the memory if the loss was finite.

    In the 2019 code: `model_fn` of `get_model_fn`, `single_core_graph` and
    `average_grads_and_vars`.

    Args:
        model: The model, built by its constructor.
        optimizer: An optimizer from `make_optimizer`. Its `config` also has the attention span, the
            positions without a loss, the penalties on the last hidden states, and how the gradients
            are computed and averaged.
        compute: A compiled `compute_gradients`; by default it runs uncompiled.

    Raises:
        UserError: If the model is quantized.
        ValueError: In a call, if the rows are not divisible by `accumulate_steps`.
    """

    def __init__(
        self,
        model: SegmentModel,
        optimizer: Optimizer,
        *,
        compute: Callable[..., tuple[tf.Tensor, list[tf.Tensor], Memory]] | None = None,
    ):
        check_trainable(model)
        self.model = model
        self.optimizer = optimizer
        self.compute = compute or compute_gradients

    def __call__(
        self,
        ids: tf.Tensor,
        targets: tf.Tensor,
        memory: Memory,
        *,
        document_starts: tf.Tensor | None = None,
        count: tf.Tensor | None = None,
    ) -> tuple[StepResult, Memory]:
        """Performs a step on one segment.

        Args:
            ids: (B, T) int32, the inputs; the first `extra_len` are extra context.
            targets: (B, T) int32, the ids one position to the right of `ids`.
            memory: The memory from `model.initial_memory` or the previous step.
            document_starts: (B, T) bool, true where `ids` starts a document, which sees nothing of
                the text before it; `None` if the text continues.
            count: () int32, the number of positions in a segment of random length. The rest of
                `ids` has no loss, and must not reach a later step through the memory. The learning
                rate is multiplied by `count / tgt_len`. `None` for all positions.

        Returns:
            A `StepResult` and the new memory.
        """
        optimizer, config = self.optimizer, self.optimizer.config
        replica = tf.distribute.get_replica_context()
        n_replicas = replica.num_replicas_in_sync
        loss_scale = optimizer.loss_scale.read() if optimizer.loss_scale else None
        loss_start = config.find_loss_start(ids.shape[1])
        n_scored = ids.shape[1] - loss_start if count is None else count

        # 1) Compute the parts of the rows one by one, each with its own dropout masks.
        n_parts = config.accumulate_steps
        if n_parts > 1 and ids.shape[0] % n_parts:
            raise ValueError(  # a class that TensorFlow preserves while tracing
                "the rows of `ids` must be divisible by `accumulate_steps`. "
                f"Received: {ids.shape[0]} rows, accumulate_steps={n_parts}"
            )
        sums: list[tf.Tensor] = []  # of the loss, and the gradients of the mean loss
        memories = []
        parts = _split_rows((ids, targets, memory, document_starts), n_parts)
        for part, (part_ids, part_targets, part_memory, part_starts) in enumerate(parts):
            stream = replica.replica_id_in_sync_group * n_parts + part
            self.model.set_dropout_seed(optimizer.iterations, stream=stream)
            if sums:  # make the ids depend on the previous part, or XLA would compute both at once
                is_known = tf.math.is_finite(tf.reshape(sums[1], [-1])[0])
                part_ids = tf.maximum(part_ids, tf.cast(is_known, part_ids.dtype) - 1)
            nats, gradients, part_memory = self.compute(
                self.model,
                part_ids,
                part_targets,
                part_memory,
                span=config.span,
                document_starts=part_starts,
                loss_scale=loss_scale,
                loss_start=loss_start,
                count=count,
                ar=config.ar,
                tar=config.tar,
            )
            memories.append(part_memory)
            if n_parts > 1:
                gradients = [gradient / n_parts for gradient in gradients]
            values = [nats, *gradients]
            sums = list(map(tf.add, sums, values)) if sums else values
        new_memory = keras.tree.map_structure(lambda *each: tf.concat(each, axis=0), *memories)

        # 2) Average over the replicas.
        means = _average(replica, sums, config.reduce_dtype) if n_replicas > 1 else sums
        nats, *gradients = means
        if loss_scale is not None:
            gradients = [gradient / loss_scale for gradient in gradients]

        # 3) Update. As the gradients are averaged, either all replicas skip a step or none does.
        rate_factor = None
        if count is not None:  # after AWD-LSTM (Merity et al. 2017, section 4.1)
            rate_factor = tf.cast(count, tf.float32) / config.tgt_len
        rate = optimizer.learning_rate
        result = StepResult(
            nats=nats * n_replicas,
            tokens=tf.cast(targets.shape[0] * n_scored * n_replicas, tf.float32),
            grad_norm=tf.linalg.global_norm(gradients),
            learning_rate=tf.identity(rate if rate_factor is None else rate * rate_factor),
        )
        variables = self.model.trainable_variables
        optimizer.apply(gradients, variables, norm=result.grad_norm, rate_factor=rate_factor)
        is_known = tf.math.is_finite(nats)  # otherwise the new memory would spoil the next step
        memory = keras.tree.map_structure(
            lambda states, old: tf.where(is_known, states, old), new_memory, memory
        )
        return result, memory


def _average(
    replica: tf.distribute.ReplicaContext, values: list[tf.Tensor], dtype: str
) -> list[tf.Tensor]:
    """Averages the loss and the gradients over the replicas in one packed reduction."""
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=PACK_BYTES)
    mean = tf.distribute.ReduceOp.MEAN
    if dtype == "float32":
        return replica.all_reduce(mean, values, options)
    nats, *gradients = values  # the loss keeps its precision
    gradients = replica.all_reduce(mean, [tf.cast(grad, dtype) for grad in gradients], options)
    return [replica.all_reduce(mean, nats), *(tf.cast(grad, tf.float32) for grad in gradients)]


def _split_rows(inputs: Any, n_parts: int) -> list[Any]:
    """Returns the parts of a nest of tensors (B, ...), each with B / n_parts rows."""
    columns = [
        [tensor] * n_parts if tensor is None else tf.split(tensor, n_parts)
        for tensor in keras.tree.flatten(inputs)
    ]
    return [keras.tree.pack_sequence_as(inputs, part) for part in zip(*columns, strict=True)]


def compute_gradients(
    model: SegmentModel,
    ids: tf.Tensor,
    targets: tf.Tensor,
    memory: Memory,
    *,
    span: AttentionSpan,
    document_starts: tf.Tensor | None = None,
    loss_scale: tf.Tensor | None = None,
    loss_start: int = 0,
    count: tf.Tensor | None = None,
    ar: float = 0.0,
    tar: float = 0.0,
) -> tuple[tf.Tensor, list[tf.Tensor], Memory]:
    """Runs the forward and backward pass on one segment.

    The arguments are those of `TrainStep` and its config, and `loss_scale`, () or `None`, by which
    the loss is multiplied for the gradients. Of the positions from `loss_start` on, the first
    `count` have a loss.

    Returns:
        The summed loss in nats, () float32, without the penalties; the dense gradients of the
        mean loss, in the order of `model.trainable_variables`; the new memory.
    """
    with tf.GradientTape() as tape:
        states, memory = model(
            ids,
            memory,
            span=span,
            training=True,
            document_starts=document_starts,
            drops_output=False,
        )
        hidden = model.output_dropout(states, training=True)
        nats = model.nll(hidden[:, loss_start:], targets[:, loss_start:])
        if count is None:
            loss = tf.reduce_mean(nats)
        else:
            nats = tf.where(tf.range(nats.shape[1]) < count, nats, 0.0)
            loss = tf.reduce_sum(nats) / tf.cast(nats.shape[0] * count, tf.float32)
        if ar or tar:
            loss += _penalize(states[:, loss_start:], count, ar=ar, tar=tar)
        if loss_scale is not None:
            loss *= loss_scale
    return tf.reduce_sum(nats), take_gradients(tape, loss, model), memory


def _penalize(hidden: tf.Tensor, count: tf.Tensor | None, *, ar: float, tar: float) -> tf.Tensor:
    """Returns the penalties on the last hidden states, () float32.

    Both apply to the states before dropout, as for Transformer-XL on Penn Treebank. In AWD-LSTM,
    the first applies to the states after dropout, and with a dropout rate p is larger by a factor
    of 1 / (1 - p) on average (Merity et al. 2017, https://arxiv.org/abs/1708.02182, section 4.6).

    Args:
        hidden: (B, T, D), the states at the positions with a loss.
        count: () int32, how many positions count, from the first on; `None` for all.
        ar: Factor of the activation regularization: the mean square of the states.
        tar: Factor of the temporal activation regularization: the mean square of the differences
            between consecutive positions, of which there must be at least two.
    """
    states = tf.cast(hidden, tf.float32)
    penalty = tf.zeros(())
    if ar:
        penalty += ar * _compute_mean(tf.square(states), count)
    if tar:
        squares = tf.square(states[:, 1:] - states[:, :-1])
        penalty += tar * _compute_mean(squares, None if count is None else count - 1)
    return penalty


def _compute_mean(values: tf.Tensor, count: tf.Tensor | None) -> tf.Tensor:
    """Returns the mean over the first `count` positions of (B, T, ...); 0 if there are none."""
    if count is None:
        return tf.reduce_mean(values)
    by_position = tf.reduce_mean(values, axis=[0, *range(2, values.shape.rank)])
    is_counted = tf.range(values.shape[1]) < count
    divisor = tf.cast(tf.maximum(count, 1), tf.float32)
    return tf.reduce_sum(tf.where(is_counted, by_position, 0.0)) / divisor
