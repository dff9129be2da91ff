"""The model with frozen weights and a KV cache: the keys and values of the memory."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import tensorflow as tf
from keras import ops

from txl_tf.config import AttentionSpan, EvalConfig
from txl_tf.config.encodings import ENCODINGS
from txl_tf.layers import count_before, make_attention_mask
from txl_tf.layers.fused.for_xla import matmul_rows
from txl_tf.layers.fused.fused_attention import (
    Heads,
    append_heads,
    arrange_distances,
    sum_values,
    weigh,
)
from txl_tf.layers.memory import clear_rows
from txl_tf.layers.packed_kernel import Multiply, PackedKernel
from txl_tf.models.segment_model import SegmentModel
from txl_tf.models.transformer_xl import TransformerXL

# Called for each layer with its index, heads, products of the distances, mask and weights.
Observer = Callable[[int, Heads, tf.Tensor, tf.Tensor, tf.Tensor], None]
State = TypeVar("State", bound=Any)


class CachedState(NamedTuple):
    """The state carried from one segment to the next: a KV cache and the last hidden state.

    All tensors are zeros before the first segment.

    Args:
        keys: (B, N, M, H) in the compute dtype for each layer. The heads come first, as batched
            matrix products expect them.
        values: (B, N, M, H) for each layer.
        last: (B, D), the hidden state of the last token read, which predicts the next token.
        n_read: (B,) int32, the number of tokens read since the row, or its current document,
            began, capped at M + 1.
    """

    keys: tuple[tf.Tensor, ...]
    values: tuple[tf.Tensor, ...]
    last: tf.Tensor
    n_read: tf.Tensor

    @property
    def filled(self) -> tf.Tensor:
        """(B,) int32, the number of memory entries in use: the last ones of the M.

        The others hold no token of the row's current document. Before the first segment they are
        zeros, which the 2019 release attends to.
        """
        return tf.minimum(self.n_read, self.keys[0].shape[2])


class FrozenModel:
    """Base class of models with frozen weights, which read and score segments.

    A state is a nest of tensors with the fields `last` and `n_read` of `CachedState`. A subclass
    defines `initial_state` and `read` as `CachedModel` does.

    Args:
        model: The model. Call `follow_weights` after its weights have changed.
        span: The attention span.
        tgt_len: The largest number of tokens T in a segment.
        mask_empty_memory: Whether to hide memory entries that hold no token yet. The 2019 release
            attends to them, and its results depend on it.
        temperature: The softmax temperature for scores.
        defer_products: Whether to skip the products that are cached from the weights. The caller
            must then call `follow_weights` before the first read.

    Raises:
        UserError: If the model does not support the span and the segment length, or the softmax
            does not support the temperature.
    """

    initial_state: Callable[..., Any]
    read: Callable[..., tuple[tf.Tensor, Any]]

    def __init__(
        self,
        model: SegmentModel,
        span: AttentionSpan,
        tgt_len: int,
        *,
        mask_empty_memory: bool = False,
        temperature: float = 1.0,
        defer_products: bool = False,
    ):
        model.config.check_reading(tgt_len, span)
        model.config.check_temperature(temperature)
        self.model = model
        self.span = span
        self.tgt_len = tgt_len
        self.mask_empty_memory = mask_empty_memory
        self.temperature = temperature
        self.positions: list[tf.Variable] = []  # filled in place: `without_memory` shares it
        self._sources: list[np.ndarray] = []  # the weights from which they were computed
        if not defer_products:
            self.follow_weights()

    @property
    def max_len_without_memory(self) -> int:
        """A length of texts up to which `without_memory` gives the same results.

        In such a text, each token sees all tokens before it, whether in one segment or in segments
        of `tgt_len`. The length may exceed `tgt_len`.
        """
        return 0

    @property
    def reach(self) -> int:
        """About how many tokens back a layer sees; evaluation warms up its lanes accordingly."""
        return self.span.mem_len

    def follow_weights(self) -> bool:
        """Recomputes what is cached from the weights if they have changed; returns whether."""
        return False

    def without_memory(self) -> Self:
        """Returns the same model with `mem_len=0`."""
        return self

    def score(
        self,
        ids: tf.Tensor,
        targets: tf.Tensor,
        state: State,
        counts: tf.Tensor | None = None,
        document_starts: tf.Tensor | None = None,
        begins: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, State]:
        """Reads a segment and scores the token that follows each of its tokens.

        Takes the arguments of `read` and two more: `targets`, (B, T) int32 in [0, V), the tokens
        that follow `ids`; and `begins`, (B,) bool, true for rows that begin with an empty memory,
        or `None` if none does.

        Returns:
            -log p of each target in nats, (B, T) float32, 0 beyond a row's count; and the new
            state.
        """
        if begins is not None:
            state = clear_rows(state, begins)
        hidden, state = self.read(ids, state, counts, document_starts)
        nats = self.model.nll(hidden, targets, temperature=self.temperature)
        if counts is not None:
            nats = tf.where(tf.range(ops.shape(ids)[1]) < counts[:, None], nats, 0.0)
        return nats, state

    def score_ids(self, ids: tf.Tensor, state: State, counts: tf.Tensor) -> tuple[tf.Tensor, State]:
        """Reads a segment and scores its own tokens, the first given the previous segment.

        The arguments are those of `read`.

        Returns:
            -log p of each of `ids` in nats, (B, T) float32, 0 for the first token of a row, which
            has no context, and beyond the row's count; and the new state.
        """
        hidden, new = self.read(ids, state, counts)
        states = tf.concat([state.last[:, None], hidden], axis=1)[:, :-1]  # T may be 0
        indices = tf.range(ops.shape(ids)[1])
        is_scored = tf.logical_and(indices < counts[:, None], indices + state.n_read[:, None] > 0)
        nats = self.model.nll(states, ids, temperature=self.temperature)
        return tf.where(is_scored, nats, 0.0), new

    def log_probs(self, state: State) -> tf.Tensor:
        """Returns the log-probabilities of the next token in nats, (B, V) float32.

        They are those of the model, at a temperature of 1.
        """
        return self.model.log_probs(state.last[:, None])[:, 0]


class CachedModel(FrozenModel):
    """Reads segments like the model, but keeps a KV cache instead of hidden states.

    The memory reuses what was computed for the previous segments (Dai et al. 2019, section 3.2).
    While the weights are fixed, the keys and values of a hidden state never change, so they are
    cached in its place, as are the products of the positions. The results are those of the model.

    The arguments are those of `FrozenModel`; the memory has `span.mem_len` entries.

    Attributes:
        positions: The products W_{k,R} R of all distances in a segment (terms b and d in section
            3.3), one variable (N, 1 + M + T, W) per layer, because a constant would become part of
            every traced function. The first row is the padding that `shift_padded` needs; no query
            sees it.
    """

    model: TransformerXL

    def follow_weights(self) -> bool:
        """See `FrozenModel`."""
        weights = [np.array(tf.convert_to_tensor(weight)) for weight in self._list_sources()]
        if self.positions and all(map(np.array_equal, weights, self._sources)):
            return False
        self._sources = weights
        positions = self.model.encoding.make_positions(
            self.model, self.span.mem_len + self.tgt_len, clamp_len=self.span.clamp_len
        )
        positions = [
            arrange_distances(layer.attention.project_positions(each))
            for layer, each in zip(self.model.decoder_layers, positions, strict=True)
        ]
        if not self.positions:
            self.positions += [
                tf.Variable(products, trainable=False, name=f"positions_{index}")
                for index, products in enumerate(positions)
            ]
            return True
        for variable, products in zip(self.positions, positions, strict=True):
            variable.assign(products)
        return True

    def _list_sources(self) -> list[Any]:
        """Returns the weights from which the products are computed."""
        model, encoding = self.model, ENCODINGS[self.model.config.encoding]
        tables = [getattr(model, name) for name in encoding.list_weights(model.config)]
        attentions = [layer.attention for layer in model.decoder_layers]
        return tables + [each.r_kernel for each in attentions if each.projects_positions]

    def without_memory(self) -> Self:
        """Returns the same model with `mem_len=0`; it shares `positions`."""
        memoryless = copy.copy(self)
        memoryless.span = AttentionSpan(0, clamp_len=self.span.clamp_len)
        memoryless.mask_empty_memory = False
        return memoryless

    @property
    def max_len_without_memory(self) -> int:
        """See `FrozenModel`."""
        if not self.mask_empty_memory:
            return 0
        mem_len = self.span.mem_len
        return mem_len if self.span.same_length else max(mem_len, self.tgt_len)

    def initial_state(self, batch_size: int | tf.Tensor) -> CachedState:
        """Returns the state of B rows before the first segment."""
        config, dtype = self.model.config, self.model.compute_dtype
        shape = (batch_size, config.n_head, self.span.mem_len, config.d_head)
        empty = tuple(tf.zeros(shape, dtype) for _ in range(config.n_layer))
        last = tf.zeros((batch_size, config.d_model), dtype)
        return CachedState(empty, empty, last, tf.zeros(batch_size, tf.int32))

    def read(
        self,
        ids: tf.Tensor,
        state: CachedState,
        counts: tf.Tensor | None = None,
        document_starts: tf.Tensor | None = None,
        observe: Observer | None = None,
        multiply: Multiply = PackedKernel.multiply,
    ) -> tuple[tf.Tensor, CachedState]:
        """Reads a segment.

        Args:
            ids: (B, t) int32 in [0, V), with t at most `tgt_len`, or `mem_len + tgt_len` of the
                original for a model `without_memory`. B and t may be unknown during tracing.
            state: The value of `initial_state` or of the previous call.
            counts: (B,) int32, the number of tokens in each row; the rest is padding, which
                changes no other token and is not stored. `None` if there is no padding.
            document_starts: (B, t) bool, true where a token begins a document. What precedes a
                document, and empty memory, are hidden from it. `None` if no document begins, or if
                documents are not separated. Not supported together with `counts`.
            observe: Called once for each layer, in order, with its index, `Heads`, products of the
                distances, mask and attention weights (B, N, t, M + t); `None` for no observer.
            multiply: Computes the products with the kernels of a quantized model.

        Returns:
            The hidden states, (B, t, D) in the compute dtype, for the model's `nll` and
            `log_probs`; and the new state.
        """
        model, tgt_len = self.model, ops.shape(ids)[1]
        # 1) What each query sees.
        n_before = count_before(state.n_read, tgt_len, document_starts)  # (B, T)
        is_empty_hidden = self.mask_empty_memory or document_starts is not None
        mask = make_attention_mask(
            tgt_len,
            self.span.mem_len,
            same_length=self.span.same_length,
            counts_self=self.span.counts_self,
            n_before=n_before if is_empty_hidden else None,
        )
        # 2) The layers, each of which attends to its own keys and values.
        hidden = model.encoding.encode_embeddings(model.embedding(ids))
        keys, values = [], []
        for index, layer in enumerate(model.decoder_layers):
            hidden = model.encoding.encode_input(model, index, hidden)
            heads = Heads(
                *append_heads(
                    matmul_rows(hidden, layer.attention.qkv_kernel, multiply),
                    state.keys[index],
                    state.values[index],
                    *model.encoding.get_biases(model, index),
                )
            )
            distance_keys = self._slice_positions(index, tgt_len)
            weights = weigh(heads, distance_keys, mask)
            if observe is not None:
                observe(index, heads, distance_keys, mask, weights)
            attended = sum_values(weights, heads.values)
            change = matmul_rows(attended, layer.attention.o_kernel, multiply)
            hidden = layer.finish(hidden, change, multiply=multiply)
            keys.append(self._keep_memory(heads.keys, counts))
            values.append(self._keep_memory(heads.values, counts))
        # 3) The last state and the number of tokens of each row.
        if counts is None:
            last, n_read = hidden[:, -1], n_before[:, -1] + 1
        else:
            states = tf.concat([state.last[:, None], hidden], axis=1)
            last, n_read = tf.gather(states, counts, axis=1, batch_dims=1), state.n_read + counts
        n_read = tf.minimum(n_read, self.span.mem_len + 1)
        return hidden, CachedState(tuple(keys), tuple(values), last, n_read)

    def _slice_positions(self, index: int, tgt_len: int | tf.Tensor) -> tf.Tensor:
        """Returns a layer's positions for a segment of t tokens, (N, 1 + M + t, W).

        They are the last rows of those for T tokens, except for the first, which no query sees.
        """
        products = self.positions[index].value()
        return products[:, ops.shape(products)[1] - 1 - self.span.mem_len - tgt_len :]

    def _keep_memory(self, states: tf.Tensor, counts: tf.Tensor | None) -> tf.Tensor:
        """Returns the last M states (B, N, M, H) of each row, without its padding."""
        if counts is None:
            return states[:, :, ops.shape(states)[2] - self.span.mem_len :]
        indices = counts[:, None] + tf.range(self.span.mem_len)  # (B, M)
        indices = tf.repeat(indices[:, None], states.shape[1], axis=1)  # (B, N, M)
        return tf.gather(states, indices, axis=2, batch_dims=2)


def make_cached(
    model: TransformerXL, config: EvalConfig, *, mask_empty_memory: bool = False
) -> CachedModel:
    """Returns a cached model with the segment length, span and temperature of a config."""
    return CachedModel(
        model,
        config.span,
        config.tgt_len,
        mask_empty_memory=mask_empty_memory,
        temperature=config.temperature,
    )
