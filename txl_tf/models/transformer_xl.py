"""Transformer-XL: a pure function from ids and memory to hidden states and the new memory."""

import functools

import keras
from keras import ops

from txl_tf.config import TRANSFORMER_XL, AttentionSpan
from txl_tf.config.encodings import ENCODINGS
from txl_tf.errors import UserError
from txl_tf.layers import (
    DecoderLayer,
    count_before,
    make_attention_mask,
    make_encoding,
    update_memory,
)
from txl_tf.models.segment_model import SegmentModel, check_config


@keras.saving.register_keras_serializable(package="txl_tf")
class TransformerXL(SegmentModel):
    """Transformer-XL, a language model that reads a text in segments and carries a memory.

    Paper, section 3: each layer attends to the segment and to the memory, which holds the last M
    inputs of the same layer before the segment. Before the first segment, the memory is zeros,
    which are attended to, as in the 2019 release, or hidden; see `initial_memory`. No gradient
    flows into the memory. The caller carries it from segment to segment. All weights exist after
    construction.

    With `document_starts`, a document does not see what precedes it, and no gradient flows there.
    If `span.same_length`, its hidden states do not depend on where in a segment it begins.

    In the 2019 code: `transformer`, which also returns the loss.

    Args:
        config: The `ModelConfig`.
        seed: Seed of the initial weights and the dropout masks; `None` for a random one.
        remat: Whether to use gradient checkpointing (Chen et al. 2016): the forward pass keeps only
            the inputs of each layer, and the backward pass recomputes the layer with the same
            dropout masks. It takes less memory and more time.

    Call arguments:
        ids: (B, T) int32 in [0, V). Not checked: other values give other embeddings.
        memory: The memory that `initial_memory` or the last call returned.
        span: The `AttentionSpan`; its `mem_len` must be the length of the memory. `None` means
            that every query sees everything before it, without clamping.
        training: Whether to apply dropout.
        document_starts: (B, T) bool, true where a token of `ids` begins a document; `None` if no
            document begins. The memory must have been made with `mask_empty`.
        drops_output: Whether to apply the dropout of the last hidden states in training. If not,
            the caller can use the states without dropout, and apply `output_dropout` itself.

    Returns:
        hidden: (B, T, D) in the compute dtype, for `nll` and `log_probs`.
        memory: The new memory, with the shapes of the old one.

    Raises:
        ValueError: If `span.mem_len` is not the length of the memory, if `document_starts` does
            not have the shape of `ids` or the memory was made without `mask_empty`, or if the shape
            of `ids` is unknown when a function is traced.
        UserError: If `config` is of another `model_type`, `ids` are not integers (B, T), the memory
            has another number of rows, or the position encoding does not support the length of the
            memory or the segment.

    >>> from txl_tf.config import ModelConfig
    >>> config = ModelConfig(n_token=11, n_layer=2, d_model=6, d_embed=6, n_head=2, d_head=3,
    ...                      d_inner=7)
    >>> model, span = TransformerXL(config), AttentionSpan(mem_len=5)
    >>> memory = model.initial_memory(batch_size=2, mem_len=span.mem_len)
    >>> hidden, memory = model(ops.zeros((2, 3), "int32"), memory, span=span)
    >>> model.nll(hidden, ops.ones((2, 3), "int32")).shape == (2, 3)
    True

    References:
        Dai et al. 2019, https://arxiv.org/abs/1901.02860.
        Chen et al. 2016, Training deep nets with sublinear memory cost,
        https://arxiv.org/abs/1604.06174.
    """

    def __init__(self, config, *, seed=None, remat=False, name="transformer_xl", **kwargs):
        if check_config(config).is_recurrent:
            raise UserError(
                f"`model_type` must be {TRANSFORMER_XL}. Received: model_type={config.model_type}"
            )
        super().__init__(config, seed=seed, remat=remat, name=name, **kwargs)

    def _make_layer(self, index):
        config = self.config
        return DecoderLayer(
            n_head=config.n_head,
            d_head=config.d_head,
            d_inner=config.d_inner,
            dropout=config.dropout,
            dropatt=config.dropatt,
            qkv_dropout=config.qkv_dropout,
            is_locked=config.locked_dropout,
            has_empty=config.word_dropout > 0,
            projects_positions=ENCODINGS[config.encoding].projects_positions,
            layer_norm_epsilon=config.layer_norm_epsilon,
            kernel_initializer=self._initializer,
            seed=self.seed_generator,
            name=f"layer_{index}",
            dtype=self.dtype_policy,
        )

    @functools.cached_property
    def encoding(self):
        """The position encoding, an `Encoding`."""
        return make_encoding(self.config)

    @property
    def n_draws(self):
        of_layer = 4 + bool(self.config.qkv_dropout)
        return of_layer * self.config.n_layer + 3 + bool(self.config.word_dropout)

    def build(self, ids_shape):
        super().build(ids_shape)
        for name, shape in ENCODINGS[self.config.encoding].list_weights(self.config).items():
            weight = self.add_weight(name=name, shape=shape, initializer=self._initializer)
            setattr(self, name, weight)

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
        span = _check_span(memory, span)
        tgt_len, mem_len = ids.shape[1], span.mem_len
        self.config.check_reading(tgt_len, span)
        # 1) What each query sees. `filled` is () for a memory whose zeros are attended to.
        n_layer = len(self.decoder_layers)
        old_memory, filled = memory[:n_layer], memory[n_layer:]
        _check_counts(filled, mem_len, document_starts)
        n_before = None
        if document_starts is not None or filled:
            n_read = filled[0] if filled else ops.zeros(ids.shape[0], "int32")
            n_before = count_before(n_read, tgt_len, document_starts)
        mask = make_attention_mask(
            tgt_len,
            mem_len,
            same_length=span.same_length,
            counts_self=span.counts_self,
            n_before=n_before,
        )
        # 2) The embeddings, and the encodings of the distances.
        positions = self.encoding.make_positions(
            self, mem_len + tgt_len, clamp_len=span.clamp_len, training=training
        )
        hidden = self.encoding.encode_embeddings(self.embed(ids, training=training))
        hidden = self.input_dropout(hidden, training=training)
        # 3) The layers, each of which attends to its own memory.
        new_memory = []
        for index, (layer, old) in enumerate(zip(self.decoder_layers, old_memory, strict=True)):
            hidden = self.encoding.encode_input(self, index, hidden)
            new_memory.append(update_memory(old, hidden))
            biases = self.encoding.get_biases(self, index)
            tensors = (hidden, old, positions[index], *biases)
            hidden = self._run_layer(layer, tensors, mask, training)
        hidden = self.output_dropout(hidden, training=training and drops_output)
        if filled:
            new_memory.append(ops.minimum(n_before[:, -1] + 1, mem_len))
        return hidden, tuple(new_memory)

    def _run_layer(self, layer, tensors, mask, training):
        """Returns the output of a layer, with gradient checkpointing if the model has it."""
        if not (training and self.remat):
            return layer(*tensors, mask, training=training)
        seed = self.seed_generator.reserve(layer.n_draws)

        def run(zero, *tensors):
            # The seeds depend on the argument `zero`: if a compiler knew that they are the same in
            # both passes, it would compute the masks once and keep them.
            with self.seed_generator.draw_from(seed + ops.cast(zero, seed.dtype)):
                return layer(*tensors, mask, training=True)

        return keras.remat(run)(ops.zeros((), "float32"), *tensors)

    @property
    def layer_kernels(self):
        """The kernels of attention and feed-forward layers."""
        kernels = []
        for layer in self.decoder_layers:
            network = layer.feed_forward
            kernels += [*layer.attention.kernels, network.inner.kernel, network.outer.kernel]
        return kernels

    @property
    def kernels(self):
        """The kernels and tables: nearly all weights, and those that can be quantized."""
        return [*self.embedding.tables, *self.layer_kernels]

    def initial_memory(self, batch_size, mem_len, mask_empty=False):
        """Returns the memory before the first segment: zeros.

        In the 2019 code: `cache_fn` of `get_cache_fn`.

        Args:
            batch_size: Number of rows B.
            mem_len: Number M of states of each row and layer; 0 for no memory.
            mask_empty: Whether to hide states that hold no token of the row's current document. If
                not, they are attended to, as in the 2019 release.

        Returns:
            A tuple of one tensor (B, M, D) per layer, in the compute dtype. With `mask_empty`, it
            also has (B,) int32, the number of states in use in each row: the last ones.
        """
        shape = (batch_size, mem_len, self.config.d_model)
        states = tuple(ops.zeros(shape, self.compute_dtype) for _ in self.decoder_layers)
        return (*states, ops.zeros(batch_size, "int32")) if mask_empty else states


def check_starts(ids, document_starts):
    """Checks that `document_starts`, if given, has the shape of the ids."""
    if document_starts is not None and tuple(document_starts.shape) != tuple(ids.shape):
        raise ValueError(
            "`document_starts` must have the shape of `ids`. "
            f"Received: {tuple(document_starts.shape)}, ids {tuple(ids.shape)}"
        )


def _check_counts(filled, mem_len, document_starts):
    """Checks that the memory has the counts that `document_starts` needs."""
    if document_starts is not None and mem_len and not filled:
        raise ValueError(
            "`document_starts` needs a memory of initial_memory(..., mask_empty=True), which "
            "counts the tokens of a document. Received: a memory without counts"
        )


def _check_span(memory, span):
    """Checks that the span of a call fits the memory, and returns it."""
    mem_len = memory[0].shape[1]
    if span is None:
        return AttentionSpan(mem_len)
    if not isinstance(span, AttentionSpan):
        raise ValueError(f"`span` must be an AttentionSpan. Received: {span!r}")
    if span.mem_len != mem_len:
        raise ValueError(
            "`span.mem_len` must be the length of the memory. "
            f"Received: span.mem_len={span.mem_len}, a memory of {mem_len}"
        )
    return span
