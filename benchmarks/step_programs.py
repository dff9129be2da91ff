"""The programs that TensorFlow hands to XLA: a replica's training step, an evaluation segment.

`TPUStrategy.run` compiles the same functions. Their StableHLO is the same for every platform.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import tensorflow as tf
from jaxlib import _jax
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.compiler.xla.service import hlo_pb2

from txl_tf.config import EvalConfig, ModelConfig, TrainConfig
from txl_tf.errors import UserError, explain_errors
from txl_tf.layers.fused.fusion import use_engine
from txl_tf.layers.fused.tpu_attention import TPU
from txl_tf.models.architecture import make_cached_model, make_model
from txl_tf.models.quantization import quantize
from txl_tf.training.trainer import Trainer
from txl_tf.training.workers import Workers


class _Replica:
    """A replica of several, in which XLA's own operations do what `tf.distribute` does on a TPU."""

    def __init__(self, n_replicas: int):
        self.num_replicas_in_sync = n_replicas

    @property
    def replica_id_in_sync_group(self) -> tf.Tensor:
        return gen_xla_ops.xla_replica_id()

    def all_reduce(self, _: Any, values: Any, options: Any = None) -> Any:
        """Returns the means over all replicas of a tensor or a list of tensors."""
        count = self.num_replicas_in_sync
        group = tf.range(count)[None]

        def average(value: tf.Tensor) -> tf.Tensor:
            total = gen_xla_ops.xla_all_reduce(
                input=value, group_assignment=group, reduce_op="Add", mode="CrossReplica"
            )
            return total / tf.cast(count, value.dtype)

        return tf.nest.map_structure(average, values)


@contextlib.contextmanager
def _stand_in_replica(n_replicas: int) -> Iterator[None]:
    replica = _Replica(n_replicas)
    with mock.patch.object(tf.distribute, "get_replica_context", return_value=replica):
        yield


def export_training_step(
    model: ModelConfig, training: TrainConfig, n_replicas: int = 1, *, kernels: bool = False
) -> bytes:
    """Returns the training step of one replica, with its update of weights, optimizer and memory.

    Args:
        model: The model.
        training: The training; its batch is that of one replica.
        n_replicas: The number of replicas over which the gradients are averaged.
        kernels: Whether attention is computed by the kernels for TPUs.

    Returns:
        The StableHLO of the step in its binary form.

    Raises:
        UserError: If XLA has no such operations, or a shape depends on data.
    """
    training = dataclasses.replace(training, jit="whole")
    trainer = Trainer(Workers(tf.distribute.get_strategy()), model, training)
    shape = (1, training.train_batch_size, training.window_len)
    specs = [tf.TensorSpec((*shape[:2], shape[2] + 1), tf.int32)]
    if training.reset_at_documents:
        specs.append(tf.TensorSpec(shape, tf.bool))

    def step(segments: tf.Tensor, *starts: tf.Tensor) -> Any:
        first = starts[0] if starts else None
        return trainer._run_replica(segments, first, None, 0)  # noqa: SLF001

    with contextlib.ExitStack() as stack:
        if n_replicas > 1:
            stack.enter_context(_stand_in_replica(n_replicas))
        if kernels:
            stack.enter_context(use_engine(TPU))
        return _export(step, *specs)


def export_evaluation_segment(model: ModelConfig, config: EvalConfig, precision: str) -> bytes:
    """Returns the step of an evaluation, which reads a segment with its cache and scores it.

    Args:
        model: The model.
        config: Segment, memory and lanes.
        precision: "float32", or a dtype of the stored kernels, as `txl evaluate` takes it.

    Returns:
        The StableHLO of the step in its binary form.
    """
    network = make_model(model, seed=0)
    if precision != "float32":
        network = quantize(network, precision)
    cached = make_cached_model(network, config.span, config.tgt_len)
    state = cached.initial_state(config.eval_batch_size)
    ids = tf.TensorSpec((config.eval_batch_size, config.tgt_len), tf.int32)
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in tf.nest.flatten(state)]

    def score(ids: tf.Tensor, targets: tf.Tensor, *states: tf.Tensor) -> Any:
        return cached.score(ids, targets, tf.nest.pack_sequence_as(state, states))

    return _export(score, ids, ids, *specs)


def _export(function: Callable[..., Any], *specs: tf.TensorSpec) -> bytes:
    compiled = tf.function(function, jit_compile=True, autograph=False)
    # The CPU's kernels: those of a TPU are known to TensorFlow only where it is built for TPUs.
    with explain_errors("XLA cannot compile the step", tf.errors.OpError, ValueError):
        get_ir = compiled.experimental_get_compiler_ir(*specs)
        serialized = get_ir(stage="hlo_serialized", platform_name="CPU")
    module = hlo_pb2.HloModuleProto.FromString(serialized)
    for computation in module.computations:
        for instruction in computation.instructions:
            if any(instruction.shape.is_dynamic_dimension):
                name = instruction.metadata.op_name or instruction.name
                raise UserError(f"a shape depends on data: {name}")
            # StableHLO has no copy, and a reshape to the same shape is one.
            if instruction.opcode == "copy":
                instruction.opcode = "reshape"
    return _jax.mlir.hlo_to_stablehlo(module.SerializeToString())
