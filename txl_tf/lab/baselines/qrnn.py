"""A quasi-recurrent language model: all products at once, and a loop over the time steps."""

import keras
from keras import ops

from txl_tf.lab.baselines.recurrent import RecurrentLayer, RecurrentModel, take_last
from txl_tf.layers.custom_gradient import custom_gradient
from txl_tf.layers.fused.for_xla import matmul_rows


@keras.saving.register_keras_serializable(package="txl_tf")
class QRNNModel(RecurrentModel):
    """A quasi-recurrent language model (QRNN), a baseline of table 8 of Dai et al. 2019.

    The arguments are those of `RecurrentModel`; the config has `model_type="qrnn"`. As in Merity et
    al. 2018, the first layer has a window of two inputs, the others of one. The memory of a layer
    consists of its last input and its cells.

    >>> from txl_tf.config import ModelConfig
    >>> model = QRNNModel(ModelConfig(n_token=11, n_layer=2, d_model=6, d_embed=6,
    ...                               model_type="qrnn"))
    >>> hidden, memory = model(ops.zeros((2, 3), "int32"), model.initial_memory(batch_size=2))
    >>> model.nll(hidden, ops.ones((2, 3), "int32")).shape == (2, 3)
    True

    References:
        Merity et al. 2018, An analysis of neural language modeling at multiple scales,
        https://arxiv.org/abs/1803.08240.
    """

    def _make_layer(self, index):
        return QRNNLayer(
            window=2 if index == 0 else 1,
            kernel_initializer=self._initializer,
            name=f"layer_{index}",
            dtype=self.dtype_policy,
        )


class QRNNLayer(RecurrentLayer):
    """A layer of a QRNN with fo-pooling, with the arguments of `RecurrentLayer`.

        z, f, o = split([x_{t-1}, x_t] W + b)
        c_t = sigmoid(f) c_{t-1} + (1 - sigmoid(f)) tanh(z)
        h_t = sigmoid(o) c_t

    No matrix product depends on the previous step. The loop over the steps has a hand-written
    gradient, like that of the LSTM. Gates and cells are float32 under every dtype policy; the
    products are in the compute dtype.

    Args:
        window: The number of inputs that the gates depend on: 1, or 2 to include the previous one.

    References:
        Bradbury et al. 2017, Quasi-recurrent neural networks, https://arxiv.org/abs/1611.01576.
    """

    def __init__(self, *, window, **kwargs):
        super().__init__(**kwargs)
        self.window = window

    def build(self, input_shape, *_):
        width = input_shape[-1]
        self.kernel = self.add_gates("kernel", self.window * width, width, 3)
        self.bias = self.add_gate_biases(width, 3)

    @staticmethod
    def read_segment(inputs, before, cells, kernel, bias, document_starts=None, counts=None):
        inputs = ops.swapaxes(inputs, 0, 1)  # (T, B, D)
        starts = None
        if document_starts is not None:
            starts = ops.transpose(document_starts)[..., None]  # (T, B, 1)

        def clear(values):
            return values if starts is None else ops.where(starts, ops.zeros_like(values), values)

        window = inputs
        if kernel.shape[0] > inputs.shape[-1]:
            previous = clear(ops.concatenate([before[None], inputs[:-1]], axis=0))
            window = ops.concatenate([previous, inputs], axis=-1)  # (T, B, 2 D)
        gates = ops.cast(matmul_rows(window, kernel) + bias, "float32")
        z, f, o = ops.split(gates, 3, axis=-1)
        f = ops.sigmoid(f)
        all_cells = pool(clear(f), (1 - f) * ops.tanh(z), cells)
        hidden = ops.cast(ops.swapaxes(ops.sigmoid(o) * all_cells, 0, 1), inputs.dtype)
        last = (take_last(before, inputs, counts), take_last(cells, all_cells, counts))
        return hidden, last


@custom_gradient
def pool(kept, added, first):
    """Returns c_t = kept_t c_{t-1} + added_t, (T, B, D), where c_{-1} is `first` (B, D)."""
    cells = _recur(kept, added, first)

    def compute_gradients(upstream):
        following = ops.concatenate([kept[1:], ops.zeros_like(kept[:1])], axis=0)
        to_added = _recur(following, upstream, ops.zeros_like(first), reverse=True)
        before = ops.concatenate([first[None], cells[:-1]], axis=0)
        return to_added * before, to_added, kept[0] * to_added[0]

    return cells, compute_gradients


def _recur(kept, added, first, *, reverse=False):
    def step(cells, index):
        cells = kept[index] * cells + added[index]
        return cells, cells

    length = added.shape[0]
    return ops.scan(step, first, ops.arange(length, dtype="int32"), length=length, reverse=reverse)[
        1
    ]
