"""The cached forward pass as one stateless function of fixed shapes, which converters take."""

import keras
import tensorflow as tf

from txl_tf.cached_model import CachedModel, CachedState
from txl_tf.layers.packed_kernel import use_product
from txl_tf.quantization import pack_kernels
from txl_tf.runs.checkpoint_reader import name_variables

STEP_INPUTS = ("ids", "keys", "values", "length")
STEP_OUTPUTS = ("log_probabilities", "new_keys", "new_values", "new_length")


class TracedStep(tf.Module):
    """One step of a model: (ids, memory) -> (log-probabilities, memory).

    The kernels are stored by rows, as the formats want them. With "int8" the rows hold the integers
    that `quantize` stores, and the scales multiply the products.

    Attributes:
        inputs: The shapes of the inputs by name, in order.
        outputs: The shapes of the outputs by name, in order.
        function: Takes the inputs, and returns the outputs by name.
    """

    def __init__(self, cached: CachedModel, batch_size: int, precision: str):
        super().__init__(name="step")
        config, mem_len = cached.model.config, cached.span.mem_len
        ids = (batch_size, cached.tgt_len)
        states = (config.n_layer, batch_size, config.n_head, mem_len, config.d_head)
        memory = (states, states, (batch_size,))
        self.inputs = dict(zip(STEP_INPUTS, (ids, *memory), strict=True))
        log_probs = (*ids, config.n_token)
        self.outputs = dict(zip(STEP_OUTPUTS, (log_probs, *memory), strict=True))
        self._cached = CachedModel(
            pack_kernels(cached.model, "float32", "int8" if precision == "int8" else "float32"),
            cached.span,
            cached.tgt_len,
            mask_empty_memory=cached.mask_empty_memory,
            temperature=cached.temperature,
        )
        self.weights = name_variables(self._cached.model.weights)
        self.positions = self._cached.positions
        # Floats, which the converters store as the same integers: a cast within the graph would be
        # computed in every step.
        kernels = self._cached.model.kernels if precision == "int8" else []
        self.integers = {
            kernel.rows.path: tf.Variable(tf.cast(kernel.rows, tf.float32), trainable=False)
            for kernel in kernels
        }
        dtypes = (tf.int32, tf.float32, tf.float32, tf.int32)
        self.function = tf.function(
            self._run,
            input_signature=[
                tf.TensorSpec(shape, dtype, name)
                for (name, shape), dtype in zip(self.inputs.items(), dtypes, strict=True)
            ],
            autograph=False,
        )

    def _run(
        self, ids: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, length: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        cached = self._cached
        empty = cached.initial_state(ids.shape[0])
        state = CachedState(tuple(tf.unstack(keys)), tuple(tf.unstack(values)), empty.last, length)
        with use_product(self._multiply_rows):
            hidden, state = cached.read(ids, state)
            log_probs = cached.model.log_probs(hidden)
        if cached.temperature != 1:
            log_probs = tf.nn.log_softmax(log_probs / cached.temperature)
        memory = (tf.stack(state.keys), tf.stack(state.values), state.filled)
        return dict(zip(STEP_OUTPUTS, (log_probs, *memory), strict=True))

    def _multiply_rows(self, inputs: tf.Tensor, rows: keras.Variable | tf.Tensor) -> tf.Tensor:
        """Returns the product of inputs (n, K) and rows (L, K) of a `PackedKernel`."""
        if isinstance(rows, keras.Variable):
            rows = self.integers.get(rows.path, rows)
        return tf.matmul(inputs, tf.cast(rows, tf.float32), transpose_b=True)
