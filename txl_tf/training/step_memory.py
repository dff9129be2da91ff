"""The memory of a training step by the compiler's own account."""

import math

import tensorflow as tf

from txl_tf.architecture import make_model
from txl_tf.config import ModelConfig, TrainConfig
from txl_tf.training.step import compute_gradients
from txl_tf.training.trainer import DTYPE_POLICIES


def compile_activations(
    model_config: ModelConfig, training: TrainConfig, n_replicas: int = 1
) -> int:
    """Compiles the forward and backward pass of a step with XLA, for the bytes of its activations.

    They are what the step needs besides its arguments (weights, memory, ids) and its results
    (gradients, memory), by XLA's assignment of buffers for the device of this process. This takes
    seconds, and the memory of the weights.

    Args:
        model_config: The model.
        training: Batch, segment, memory, precision, `accumulate_steps` and `remat`.
        n_replicas: The number of replicas.
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
