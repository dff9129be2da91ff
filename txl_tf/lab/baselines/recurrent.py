"""The base class of recurrent language models, with the interface of `TransformerXL`."""

import keras
from keras import ops

from txl_tf.config import AttentionSpan
from txl_tf.layers import Dropout
from txl_tf.layers.custom_gradient import as_tensor
from txl_tf.models.segment_model import SegmentModel, check_config
from txl_tf.models.transformer_xl import check_starts


class RecurrentLayer(keras.layers.Layer):
    """Base class of recurrent layers, which read a segment from the state of the last segment.

    A subclass creates its weights in `build`, with `add_gates`, and has a static method
    `read_segment(inputs, vector, cells, *weights, document_starts, counts)`, where the weights are
    those of `trainable_weights` in the compute dtype.

    Args:
        kernel_initializer: Initializer of the kernels. The biases of the forget gates start at 1
            (Jozefowicz et al. 2015), the others at 0.

    Call arguments:
        inputs: (B, T, D).
        state: A vector (B, D) in the compute dtype and the cells (B, D) float32.
        document_starts: (B, T) bool, true where the state is cleared before the token is read;
            `None` if it never is.
        counts: (B,) int32, the number of tokens in each row; the rest is padding, which does not
            change the returned state. `None` if there is no padding.

    Returns:
        The hidden states (B, T, D) in the compute dtype, and the state after the segment.

    References:
        Jozefowicz et al. 2015, An empirical exploration of recurrent network architectures.
    """

    def __init__(self, *, kernel_initializer, **kwargs):
        super().__init__(autocast=False, **kwargs)  # the cells stay float32
        self.kernel_initializer = kernel_initializer

    def add_gates(self, name, n_rows, width, n_gates):
        """Returns a new kernel of gates side by side, (n_rows, n_gates width)."""
        shape = (n_rows, n_gates * width)
        kernel = self.add_weight(name=name, shape=shape, initializer=self.kernel_initializer)
        kernel.n_joint = n_gates  # for the optimizer
        return kernel

    def add_gate_biases(self, width, n_gates):
        """Returns new biases of gates, (n_gates width,); the second gate is the forget gate."""

        def initialize(shape, dtype=None):
            return ops.cast(ops.arange(shape[0], dtype="int32") // width == 1, dtype or "float32")

        return self.add_weight(name="bias", shape=(n_gates * width,), initializer=initialize)

    def call(self, inputs, state, document_starts=None, counts=None):
        weights = [as_tensor(weight, self.compute_dtype) for weight in self.trainable_weights]
        return self.read_segment(inputs, *state, *weights, document_starts, counts)


def take_last(first, states, counts):
    """Returns the last states (B, W) of (T, B, W), or those after `counts` (B,) tokens.

    After 0 tokens, these are `first` (B, W).
    """
    if counts is None:
        return states[-1]
    known = ops.concatenate([first[None], states], axis=0)
    return ops.take_along_axis(known, counts[None, :, None], axis=0)[0]


class RecurrentModel(SegmentModel):
    """Base class of recurrent language models that read a text in segments and carry their state.

    They have `n_layer` layers of width `d_model` between the embedding and the softmax of
    `TransformerXL`, which share their weights. Dropout applies to the embeddings, between the
    layers and before the softmax. The memory is the state of the layers. No gradient flows into it
    (truncated backpropagation through time). All weights exist after construction. A subclass
    defines `_make_layer(index)`, which returns a `RecurrentLayer`.

    Args:
        config: The `ModelConfig`.
        seed: Seed of the initial weights and the dropout masks; `None` for a random one.
        remat: Whether to use gradient checkpointing: the backward pass recomputes each layer.

    Call arguments:
        ids: (B, T) int32 in [0, V).
        memory: The memory that `initial_memory` or the last call returned.
        span: `None`, or `AttentionSpan(0)`: there is no attention.
        training: Whether to apply dropout.
        document_starts: (B, T) bool, true where a token of `ids` begins a document: the state is
            cleared before it. `None` if no document begins.
        drops_output: Whether to apply the dropout of the last hidden states in training. If not,
            the caller can use the states without dropout, and apply `output_dropout` itself.

    Returns:
        hidden: (B, T, D) in the compute dtype, for `nll` and `log_probs`.
        memory: The new memory, with the shapes of the old one.

    Raises:
        ValueError: If `document_starts` does not have the shape of `ids`, or if that shape is
            unknown when a function is traced.
        UserError: If the span is not `AttentionSpan(0)`, `ids` are not integers (B, T), or the
            memory has another number of rows.
    """

    def __init__(self, config, *, name=None, **kwargs):
        name = name or check_config(config).model_type
        super().__init__(config, name=name, autocast=False, **kwargs)  # the cells stay float32

    def build(self, ids_shape):
        super().build(ids_shape)
        self.dropout = Dropout(  # between the layers
            self.config.dropout,
            is_locked=self.config.locked_dropout,
            seed=self.seed_generator,
            dtype=self.dtype_policy,
            name="dropout",
        )
        self.dropout.build(self.output_shape)

    @property
    def n_draws(self):
        return self.config.n_layer + 1 + bool(self.config.word_dropout)

    @property
    def layer_kernels(self):
        """The kernels of the layers."""
        layers = self.decoder_layers
        return [x for layer in layers for x in layer.trainable_weights if len(x.shape) == 2]

    def call(
        self,
        ids,
        memory,
        span=None,
        training=False,
        document_starts=None,
        drops_output=True,
    ):
        check_starts(ids, document_starts)
        if span is not None:
            self.config.check_reading(ids.shape[1], span)
        hidden = self.input_dropout(self.embed(ids, training=training), training=training)
        new_memory = []
        for index, (layer, state) in enumerate(zip(self.decoder_layers, memory, strict=True)):
            if index:
                hidden = self.dropout(hidden, training=training)
            hidden, state = self._run_layer(layer, hidden, state, document_starts, training)
            new_memory.append(tuple(map(ops.stop_gradient, state)))
        hidden = self.output_dropout(hidden, training=training and drops_output)
        return hidden, tuple(new_memory)

    def _run_layer(self, layer, hidden, state, document_starts, training):
        """Runs a layer, with gradient checkpointing if the model has it."""
        if not (training and self.remat):
            return layer(hidden, state, document_starts)
        weights = [as_tensor(weight, self.compute_dtype) for weight in layer.trainable_weights]
        # Starts are not an argument: `keras.remat` would look for their gradient.
        run = keras.remat(lambda *tensors: layer.read_segment(*tensors, document_starts))
        return run(hidden, *state, *weights)

    def initial_memory(self, batch_size, mem_len=0, mask_empty=False):
        """Returns the memory before the first segment: zeros.

        Args:
            batch_size: Number of rows B.
            mem_len: Must be 0; for compatibility with `TransformerXL`.
            mask_empty: Has no effect, as an empty state belongs to no token.

        Returns:
            For each layer a vector (B, D) in the compute dtype and the cells (B, D) float32.

        Raises:
            UserError: If `mem_len` is not 0.
        """
        self.config.check_reading(1, AttentionSpan(mem_len))
        shape = (batch_size, self.config.d_model)
        return tuple(
            (ops.zeros(shape, self.compute_dtype), ops.zeros(shape, "float32"))
            for _ in self.decoder_layers
        )
