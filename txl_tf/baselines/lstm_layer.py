"""A layer of an LSTM, computed as one product for all inputs and a loop over the time steps."""

import keras
from keras import ops

from txl_tf.layers.custom_gradient import as_tensor, custom_gradient
from txl_tf.layers.fused.matrix_products import matmul_rows


@keras.saving.register_keras_serializable(package="txl_tf")
class LSTMLayer(keras.layers.Layer):
    """A layer of an LSTM, which reads a segment from the state that the last segment left.

        i, f, g, o = split(x_t W + h_{t-1} U + b)
        c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g)
        h_t = sigmoid(o) tanh(c_t)

    Gates and cells are float32 under every dtype policy; the products are in the compute dtype.

    `keras.layers.LSTM` cannot clear the state within a segment, and keeps the cells in the compute
    dtype. It is also slower, because it multiplies each input by itself, and because the automatic
    gradient of its loop adds up the gradient of U step by step. A training step of one layer of
    width 256 on 16 rows of 64 tokens took, on two CPU cores:

        float32, XLA    37 ms here,  89 ms with Keras
        float32         40 ms        62 ms
        bfloat16, XLA   40 ms       251 ms
        bfloat16        24 ms        46 ms

    Unrolled loops took 81 to 187 ms, and with XLA up to 55 s to compile.

    Args:
        kernel_initializer: Initializer of W and U. The biases of the forget gates start at 1
            (Jozefowicz et al. 2015), the others at 0.

    Call arguments:
        inputs: (B, T, D).
        state: The hidden state (B, D) in the compute dtype and the cells (B, D) float32.
        document_starts: (B, T) bool, true where the state is cleared before the token is read;
            `None` if it never is.
        counts: (B,) int32, the number of tokens in each row; the rest is padding, which does not
            change the returned state. `None` if there is no padding.

    Returns:
        The hidden states (B, T, D) in the compute dtype, and the state after the segment.

    >>> layer, state = LSTMLayer(), (ops.zeros((2, 6)), ops.zeros((2, 6)))
    >>> hidden, state = layer(ops.zeros((2, 3, 6)), state)
    >>> hidden.shape == (2, 3, 6), len(state)
    (True, 2)

    References:
        Hochreiter and Schmidhuber 1997, Long short-term memory.
        Jozefowicz et al. 2015, An empirical exploration of recurrent network architectures.
    """

    def __init__(self, *, kernel_initializer=None, **kwargs):
        super().__init__(**kwargs)
        self.kernel_initializer = keras.initializers.get(kernel_initializer or "glorot_uniform")

    def build(self, input_shape, *_):
        width = input_shape[-1]
        self.kernel, self.recurrent_kernel = (
            self.add_weight(
                name=name, shape=(width, 4 * width), initializer=self.kernel_initializer
            )
            for name in ("kernel", "recurrent_kernel")
        )
        for kernel in (self.kernel, self.recurrent_kernel):
            kernel.n_joint = 4  # matrices side by side, for the optimizer
        self.bias = self.add_weight(
            name="bias", shape=(4 * width,), initializer=initialize_gate_biases
        )

    def call(self, inputs, state, document_starts=None, counts=None):
        weights = (self.kernel, self.recurrent_kernel, self.bias)
        weights = [as_tensor(weight, self.compute_dtype) for weight in weights]
        return read_segment(inputs, *state, *weights, document_starts, counts)

    def get_config(self):
        return super().get_config() | {
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer)
        }


def initialize_gate_biases(shape, dtype=None):
    """Returns the initial biases of the gates i, f, g and o: 1 for f, the others 0."""
    width = shape[0] // 4
    is_forget = ops.arange(shape[0]) // width == 1
    return ops.cast(is_forget, dtype or "float32")


def read_segment(
    inputs, hidden, cells, kernel, recurrent_kernel, bias, document_starts=None, counts=None
):
    """Reads a segment with an LSTM; the arguments are those of `LSTMLayer`, and its weights."""
    first = ops.concatenate([ops.cast(hidden, "float32"), cells], axis=-1)
    projected = matmul_rows(ops.swapaxes(inputs, 0, 1), kernel) + bias  # (T, B, 4 D)
    tensors = [projected, recurrent_kernel, first]
    if document_starts is not None:
        tensors.append(ops.transpose(document_starts)[..., None])  # (T, B, 1)
    states = recur(*tensors)  # (T, B, 2 D) float32
    last = states[-1]
    if counts is not None:
        known = ops.concatenate([first[None], states], axis=0)
        last = ops.take_along_axis(known, counts[None, :, None], axis=0)[0]
    width = inputs.shape[-1]
    all_hidden = ops.cast(ops.swapaxes(states[..., :width], 0, 1), inputs.dtype)
    return all_hidden, (ops.cast(last[..., :width], inputs.dtype), last[..., width:])


@custom_gradient
def recur(projected, kernel, first, starts=None):
    """Returns the states of an LSTM after each time step.

    The gradient of the kernel is one product over all steps, after a loop back through time.

    Args:
        projected: (T, B, 4 D), the terms of the gates that depend on the inputs.
        kernel: (D, 4 D), the recurrent kernel, in whose dtype the products are computed.
        first: (B, 2 D) float32, the hidden state and the cells before the first step.
        starts: (T, B, 1) bool, true where the state is cleared before the step; `None` for nowhere.

    Returns:
        (T, B, 2 D) float32, the hidden states and the cells.
    """
    tgt_len, width, dtype = projected.shape[0], kernel.shape[0], kernel.dtype
    empty, empty_gates = ops.zeros_like(first), ops.zeros(projected.shape[1:], "float32")
    indices = ops.arange(tgt_len)

    def multiply(left, right):
        return ops.cast(ops.matmul(ops.cast(left, dtype), right), "float32")

    def clear(states, index):
        return states if starts is None else ops.where(starts[index], 0.0, states)

    def step(carry, index):
        hidden, cells = ops.split(clear(carry[0], index), 2, axis=-1)
        gates = ops.cast(projected[index], "float32") + multiply(hidden, kernel)
        i, f, g, o = ops.split(gates, 4, axis=-1)
        i, f, g, o = ops.sigmoid(i), ops.sigmoid(f), ops.tanh(g), ops.sigmoid(o)
        cells = f * cells + i * g
        states = ops.concatenate([o * ops.tanh(cells), cells], axis=-1)
        carry = states, ops.concatenate([i, f, g, o], axis=-1)
        return carry, carry

    _, (states, all_gates) = ops.scan(step, (first, empty_gates), indices, length=tgt_len)

    def compute_gradients(upstream):
        before = ops.concatenate([first[None], states[:-1]], axis=0)
        if starts is not None:
            before = ops.where(starts, 0.0, before)
        transposed = ops.transpose(kernel)

        def step_back(carry, index):
            to_h, to_c = ops.split(carry[0] + upstream[index], 2, axis=-1)
            i, f, g, o = ops.split(all_gates[index], 4, axis=-1)
            # Split, because XLA takes the wrong part for `states[index, :, width:]`.
            old_cells, cells = (ops.split(x[index], 2, axis=-1)[1] for x in (before, states))
            squashed = ops.tanh(cells)
            to_c = to_c + to_h * o * (1 - squashed * squashed)
            to_gates = ops.concatenate(
                [
                    to_c * g * i * (1 - i),
                    to_c * old_cells * f * (1 - f),
                    to_c * i * (1 - g * g),
                    to_h * squashed * o * (1 - o),
                ],
                axis=-1,
            )
            to_states = ops.concatenate([multiply(to_gates, transposed), to_c * f], axis=-1)
            carry = clear(to_states, index), to_gates
            return carry, carry

        (to_first, _), (_, to_gates) = ops.scan(
            step_back, (empty, empty_gates), indices, length=tgt_len, reverse=True
        )
        hidden = ops.reshape(before[..., :width], (-1, width))
        to_kernel = ops.matmul(
            ops.transpose(ops.cast(hidden, dtype)),
            ops.cast(ops.reshape(to_gates, (-1, 4 * width)), dtype),
        )
        gradients = ops.cast(to_gates, projected.dtype), to_kernel, to_first
        return gradients if starts is None else (*gradients, None)

    return states, compute_gradients
