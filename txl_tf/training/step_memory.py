"""The memory of training: what follows from the config, and the compiler's account of a step."""

import math
from typing import NamedTuple

import tensorflow as tf

from txl_tf.architecture import make_model
from txl_tf.config import ModelConfig, TrainConfig
from txl_tf.training.step import compute_gradients
from txl_tf.training.trainer import DTYPE_POLICIES

_FLOAT_BYTES = 4


class KeptMemory(NamedTuple):
    """The bytes that training keeps between its steps on each replica."""

    weights: int
    gradients: int  # twice, if several replicas or parts of a batch add them up
    optimizer: int  # the moments, two for each weight or one, and the average of the weights
    memory: int  # the recurrent memory, before and after a step


def count_kept_memory(model: ModelConfig, training: TrainConfig, n_replicas: int = 1) -> KeptMemory:
    """Returns the memory that training keeps between its steps, which follows from the config."""
    weights = _FLOAT_BYTES * model.count_parameters()
    optimizer = weights * (3 if training.has_average else 2)
    if training.optimizer == "muon":  # its matrices have no second moment
        optimizer -= _FLOAT_BYTES * sum(rows * columns for rows, columns in model.list_matrices())
    rows = math.ceil(training.train_batch_size / n_replicas)
    states = rows * training.mem_len * model.d_model * model.n_layer
    return KeptMemory(
        weights=weights,
        gradients=weights * (2 if n_replicas > 1 or training.accumulate_steps > 1 else 1),
        optimizer=optimizer,
        memory=2 * states * (_FLOAT_BYTES if training.precision == "float32" else 2),
    )


def compile_activations(
    model_config: ModelConfig, training: TrainConfig, n_replicas: int = 1
) -> int:
    """Compiles the forward and backward pass of a step with XLA, for the bytes of its activations.

    They are what the step needs besides its arguments (weights, memory, ids) and its results
    (gradients, memory), by XLA's assignment of buffers for the device of this process. This takes
    seconds, and the memory of the weights.
    """
    # TensorFlow installs it, but does not export it.
    from tensorflow.compiler.xla.service import hlo_pb2

    policy = DTYPE_POLICIES[training.precision]
    model = make_model(model_config, seed=training.seed, remat=training.remat, dtype=policy)
    rows = math.ceil(training.train_batch_size / n_replicas / training.accumulate_steps)
    memory = model.initial_memory(rows, training.mem_len)

    def compute(ids: tf.Tensor, memory: tuple[tf.Tensor, ...]) -> object:
        return compute_gradients(
            model, ids, ids, memory, span=training.span, loss_start=training.extra_len
        )

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
