"""An LSTM language model: one product for all inputs and a loop over the time steps."""

import keras
from keras import ops

from txl_tf.lab.baselines.recurrent import RecurrentLayer, RecurrentModel, take_last
from txl_tf.layers.custom_gradient import custom_gradient
from txl_tf.layers.fused.for_xla import matmul_rows


@keras.saving.register_keras_serializable(package="txl_tf")
class LSTMModel(RecurrentModel):
    """An LSTM language model, the baseline of Dai et al. 2019, section 4.3.

    The arguments are those of `RecurrentModel`; the config has `model_type="lstm"`. The memory of a
    layer consists of its hidden state and its cells.

    >>> from txl_tf.config import ModelConfig
    >>> model = LSTMModel(ModelConfig(n_token=11, n_layer=2, d_model=6, d_embed=6,
    ...                               model_type="lstm"))
    >>> hidden, memory = model(ops.zeros((2, 3), "int32"), model.initial_memory(batch_size=2))
    >>> model.nll(hidden, ops.ones((2, 3), "int32")).shape == (2, 3)
    True

    References:
        Zaremba et al. 2014, Recurrent neural network regularization,
        https://arxiv.org/abs/1409.2329.
    """

    def _make_layer(self, index):
        return LSTMLayer(
            kernel_initializer=self._initializer, name=f"layer_{index}", dtype=self.dtype_policy
        )


class LSTMLayer(RecurrentLayer):
    """A layer of an LSTM, with the arguments of `RecurrentLayer`.

        i, f, g, o = split(x_t W + h_{t-1} U + b)
        c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g)
        h_t = sigmoid(o) tanh(c_t)

    Gates and cells are float32 under every dtype policy; the products are in the compute dtype.

    `keras.layers.LSTM` cannot clear the state within a segment, and keeps the cells in the compute
    dtype. It is slower (docs/ablations.md): it multiplies the inputs one by one, and accumulates
    the gradient of U step by step.

    References:
        Hochreiter and Schmidhuber 1997, Long short-term memory.
    """

    def build(self, input_shape, *_):
        width = input_shape[-1]
        self.kernel = self.add_gates("kernel", width, width, 4)
        self.recurrent_kernel = self.add_gates("recurrent_kernel", width, width, 4)
        self.bias = self.add_gate_biases(width, 4)

    @staticmethod
    def read_segment(
        inputs, hidden, cells, kernel, recurrent_kernel, bias, document_starts=None, counts=None
    ):
        first = ops.concatenate([ops.cast(hidden, "float32"), cells], axis=-1)
        projected = matmul_rows(ops.swapaxes(inputs, 0, 1), kernel) + bias  # (T, B, 4 D)
        tensors = [projected, recurrent_kernel, first]
        if document_starts is not None:
            tensors.append(ops.transpose(document_starts)[..., None])  # (T, B, 1)
        states = recur(*tensors)  # (T, B, 2 D) float32
        last = take_last(first, states, counts)
        width = inputs.shape[-1]
        all_hidden = ops.cast(ops.swapaxes(states[..., :width], 0, 1), inputs.dtype)
        return all_hidden, (ops.cast(last[..., :width], inputs.dtype), last[..., width:])


@custom_gradient
def recur(projected, kernel, first, starts=None):
    """Returns the hidden states and the cells after each time step, (T, B, 2 D) float32.

    Args:
        projected: (T, B, 4 D), the terms of the gates that depend on the inputs.
        kernel: (D, 4 D), the recurrent kernel. The products are computed in its dtype. Its gradient
            is one product over all steps, after a loop back through time.
        first: (B, 2 D) float32, the states before the segment.
        starts: (T, B, 1) bool, true where the states are cleared; `None` if they never are.
    """
    tgt_len, width, dtype = projected.shape[0], kernel.shape[0], kernel.dtype
    empty, empty_gates = ops.zeros_like(first), ops.zeros(projected.shape[1:], "float32")
    indices = ops.arange(tgt_len, dtype="int32")

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
