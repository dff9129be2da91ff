"""An LSTM language model with the interface of `TransformerXL`, as a baseline."""

import keras
from keras import ops

from txl_tf.baselines.lstm_layer import LSTMLayer, read_segment
from txl_tf.config import AttentionSpan
from txl_tf.layers.custom_gradient import as_tensor
from txl_tf.model import SegmentModel, check_ids


@keras.saving.register_keras_serializable(package="txl_tf")
class LSTMModel(SegmentModel):
    """An LSTM language model that reads a text in segments and carries its state.

    The baseline of the comparison of context lengths in Dai et al. 2019, section 4.3: `n_layer`
    layers of width `d_model` between the embedding and the softmax of `TransformerXL`, which share
    their weights. Dropout applies to the embeddings, between the layers and before the softmax.
    The memory is the state of the layers. No gradient flows into it (truncated backpropagation
    through time). All weights exist after construction.

    Args:
        config: The `ModelConfig`, with `model_type="lstm"`.
        seed: Seed of the initial weights and the dropout masks; `None` for a random one.
        remat: Gradient checkpointing: the backward pass computes each layer again.

    Call arguments:
        ids: (B, T) int32 in [0, V).
        memory: The memory that `initial_memory` or the last call returned.
        span: `None`, or `AttentionSpan(0)`: an LSTM has no attention.
        training: Whether to apply dropout.
        document_starts: (B, T) bool, true where a token of `ids` begins a document: the state is
            cleared before it. `None` if no document begins.
        drops_output: Whether training applies the dropout of the last hidden states. If not, the
            caller does, by `output_dropout`, and has the states before it, too.
        filled: As for `TransformerXL`; it changes nothing, as an empty state is that of no token.

    Returns:
        hidden: (B, T, D) in the compute dtype, for `nll` and `log_probs`.
        memory: The new memory, with the shapes of the old one.

    Raises:
        ValueError: If `document_starts` does not have the shape of `ids`, or if that shape is
            unknown when a function is traced.
        UserError: If the config is not that of an LSTM, or the span is another one.

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

    def __init__(self, config, *, seed=None, remat=False, name="lstm", **kwargs):
        super().__init__(config, seed=seed, remat=remat, name=name, **kwargs)

    def _make_layer(self, index):
        return LSTMLayer(
            kernel_initializer=self._initializer, name=f"layer_{index}", dtype=self.dtype_policy
        )

    @property
    def n_draws(self):
        return self.config.n_layer + 1 + bool(self.config.word_dropout)

    def call(
        self,
        ids,
        memory,
        span=None,
        training=False,
        document_starts=None,
        drops_output=True,
        filled=None,
    ):
        check_ids(ids, document_starts)
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
        # Starts are no argument: `keras.remat` would look for their gradient.
        run = keras.remat(lambda *tensors: read_segment(*tensors, document_starts))
        return run(hidden, *state, *weights)

    def initial_memory(self, batch_size, mem_len=0):
        """Returns the memory before the first segment: zeros.

        Args:
            batch_size: Number of rows B.
            mem_len: 0; `TransformerXL` has other lengths.

        Returns:
            For each layer the hidden state (B, D) in the compute dtype and the cells (B, D)
            float32.

        Raises:
            UserError: If `mem_len` is not 0.
        """
        self.config.check_reading(1, AttentionSpan(mem_len))
        shape = (batch_size, self.config.d_model)
        return tuple(
            (ops.zeros(shape, self.compute_dtype), ops.zeros(shape)) for _ in self.decoder_layers
        )
