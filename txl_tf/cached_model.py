"""The model with frozen weights and a KV cache: keys and values of the memory are kept."""

import copy
from typing import NamedTuple, Self

import tensorflow as tf
from keras import ops

from txl_tf.config import AttentionSpan
from txl_tf.layers import (
    compare_documents,
    make_attention_mask,
    make_position_table,
    shift_padded,
)
from txl_tf.model import TransformerXL


class CachedState(NamedTuple):
    """What rows carry from segment to segment: a KV cache, and the last hidden state.

    All are zeros before the first segment.

    Args:
        keys: for each layer (B, N, M, H) in the compute dtype: heads first, as products of
            matrices take them.
        values: for each layer (B, N, M, H).
        last: (B, D), the hidden state of the last token read, which predicts the next.
        n_read: (B,) int32, tokens read since the row began, counted up to M + 1.
    """

    keys: tuple[tf.Tensor, ...]
    values: tuple[tf.Tensor, ...]
    last: tf.Tensor
    n_read: tf.Tensor

    @property
    def filled(self) -> tf.Tensor:
        """How many of the M places hold tokens that were read, (B,) int32: the last ones.

        The others are empty: zeros, which the release attends to.
        """
        return tf.minimum(self.n_read, self.keys[0].shape[2])

    def reset(self, rows: tf.Tensor) -> Self:
        """Returns the state with some rows, (B,) bool, as before the first segment."""

        def clear(state: tf.Tensor) -> tf.Tensor:
            shape = [-1, *[1] * (state.shape.rank - 1)]
            return tf.where(tf.reshape(rows, shape), tf.zeros_like(state), state)

        return tf.nest.map_structure(clear, self)


class CachedModel:
    """Reads segments as the model does, with keys and values of the memory kept.

    Paper, section 3.2: what was computed for a segment is used again by the next. The keys and
    values of a hidden state are products with weights that stand still here, so they are kept
    instead of the state; so are the products of the positions. The numbers are the model's own.

    Args:
        model: the model. Call `follow_weights` once its weights have changed.
        span: what it sees; the memory holds `span.mem_len` places.
        tgt_len: the most tokens T of a segment.
        mask_empty_memory: whether places of the memory that nothing was read into are hidden from
            attention. The release attends to them, and its results depend on it.

    Attributes:
        positions: the products W_{k,R} R of all distances of a segment (equation b and d of
            section 3.3), a variable (N, 1 + M + T, H) for each layer, since a constant would
            become part of each function that reads it. Their first row holds the scores that
            `shift_padded` wants before the others; nothing is seen of it.
    """

    def __init__(
        self,
        model: TransformerXL,
        span: AttentionSpan,
        tgt_len: int,
        *,
        mask_empty_memory: bool = False,
    ):
        self.model = model
        self.span = span
        self.tgt_len = tgt_len
        self.mask_empty_memory = mask_empty_memory
        self.positions = [
            tf.Variable(products, trainable=False, name=f"positions_{index}")
            for index, products in enumerate(self._project_positions())
        ]

    def follow_weights(self) -> None:
        """Computes anew what is kept of the weights."""
        for variable, products in zip(self.positions, self._project_positions(), strict=True):
            variable.assign(products)

    def _project_positions(self) -> list[tf.Tensor]:
        n_keys = self.span.mem_len + self.tgt_len
        table = make_position_table(
            n_keys, self.model.config.d_model, clamp_len=self.span.clamp_len
        )
        table = tf.pad(tf.cast(table, self.model.compute_dtype), [(1, 0), (0, 0)])
        return [
            tf.transpose(layer.attention.project_positions(table), (1, 0, 2))
            for layer in self.model.decoder_layers
        ]

    def without_memory(self) -> "CachedModel":
        """Returns the same model with `mem_len=0`; it shares the positions."""
        alone = copy.copy(self)
        alone.span = AttentionSpan(0, clamp_len=self.span.clamp_len)
        alone.mask_empty_memory = False
        return alone

    @property
    def longest_alone(self) -> int:
        """The longest text that `without_memory` reads as this does; 0 if it reads none so."""
        if not self.mask_empty_memory:
            return 0
        return min(self.span.mem_len, self.tgt_len) if self.span.same_length else self.tgt_len

    def initial_state(self, batch_size: int | tf.Tensor) -> CachedState:
        """Returns the state before the first segment, for B rows."""
        config, dtype = self.model.config, self.model.compute_dtype
        shape = (batch_size, config.n_head, self.span.mem_len, config.d_head)
        empty = tuple(tf.zeros(shape, dtype) for _ in range(config.n_layer))
        last = tf.zeros((batch_size, config.d_model), dtype)
        return CachedState(empty, empty, last, tf.zeros(batch_size, tf.int32))

    def score(
        self,
        ids: tf.Tensor,
        targets: tf.Tensor,
        state: CachedState,
        counts: tf.Tensor | None = None,
        document_starts: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, CachedState]:
        """Reads a segment and scores the token after each of its tokens.

        Args:
            ids: as `read`.
            targets: (B, T) int32 in [0, V), `ids` one to the right in the text.
            state: as `read`.
            counts: as `read`; targets behind a row's count are not scored.
            document_starts: as `read`.

        Returns:
            -log p of each target in nats, (B, T) float32, 0 where it does not count; and the new
            state.
        """
        hidden, state = self.read(ids, state, counts, document_starts)
        nats = self.model.nll(hidden, targets)
        if counts is not None:
            nats = tf.where(tf.range(ops.shape(ids)[1]) < counts[:, None], nats, 0.0)
        return nats, state

    def score_read(
        self, ids: tf.Tensor, state: CachedState, counts: tf.Tensor
    ) -> tuple[tf.Tensor, CachedState]:
        """Reads a segment and scores its own tokens, the first by the token read before.

        Args:
            ids: as `read`.
            state: as `read`.
            counts: as `read`.

        Returns:
            -log p of each of `ids` in nats, (B, T) float32: 0 for a row's very first token, which
            has nothing before it, and behind its count; and the new state.
        """
        hidden, new = self.read(ids, state, counts)
        states = tf.concat([state.last[:, None], hidden], axis=1)[:, :-1]  # T may be 0
        places = tf.range(ops.shape(ids)[1])
        is_scored = tf.logical_and(places < counts[:, None], places + state.n_read[:, None] > 0)
        return tf.where(is_scored, self.model.nll(states, ids), 0.0), new

    def log_probs(self, state: CachedState) -> tf.Tensor:
        """Returns log p of every token after the last one read, (B, V) float32."""
        return self.model.log_probs(state.last[:, None])[:, 0]

    def read(
        self,
        ids: tf.Tensor,
        state: CachedState,
        counts: tf.Tensor | None = None,
        document_starts: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, CachedState]:
        """Reads a segment.

        Args:
            ids: (B, t) int32 in [0, V), t at most `tgt_len`; B and t may be unknown when a function
                is traced.
            state: as `initial_state` or the last call returned it.
            counts: (B,) int32, how many ids of each row are of its text; the others follow them,
                change nothing that comes before them, and leave nothing in the memory. `None`:
                all are.
            document_starts: (B, t) bool, true where a token begins a document, which sees nothing
                of the one before: zeros, as in an empty memory. `None`: none begins. Not for
                `mask_empty_memory`, nor with `counts`.

        Returns:
            The hidden states, (B, t, D) in the compute dtype, for `nll` and `log_probs` of the
            model, and the new state.
        """
        model, tgt_len = self.model, ops.shape(ids)[1]
        mask = self._make_mask(tgt_len, state.filled)
        same_document = None
        if document_starts is not None:
            same_document = compare_documents(document_starts, self.span.mem_len)  # (B, T, S)
        hidden = model.embedding(ids)
        keys, values = [], []
        for index, layer in enumerate(model.decoder_layers):
            content_bias, position_bias = model.get_biases(index)
            attention = layer.attention
            query, new_keys, new_values = attention.project(hidden, hidden[:, :0])
            all_keys = tf.concat([state.keys[index], _swap(new_keys)], axis=2)  # (B, N, S, H)
            all_values = tf.concat([state.values[index], _swap(new_values)], axis=2)
            # `RelativeAttention` scores by einsums, which would bring all keys and values into
            # this order for each segment.
            content = _swap(attention.add_bias(query, content_bias))
            content = tf.matmul(content, all_keys, transpose_b=True)  # (B, N, T, S)
            content = _clear_others(content, same_document)
            # An einsum: of a product of (B, 1, T, H) with (1, S, H), as one head would have it,
            # TensorFlow's broadcast on CPUs is wrong for some sizes.
            position = attention.add_bias(query, position_bias)
            near = self._take_nearest(index, tgt_len)
            position = shift_padded(tf.einsum("btnh,nsh->bnts", position, near))
            weights = tf.cast(
                attention.compute_attention_weights(content, position, mask), all_values.dtype
            )
            weights = _clear_others(weights, same_document)
            attended = attention.join_heads(_swap(tf.matmul(weights, all_values)))
            hidden = layer.apply_feed_forward(hidden, attended)
            keys.append(self._keep_last(all_keys, counts, same_document))
            values.append(self._keep_last(all_values, counts, same_document))
        if counts is None:
            last, n_read = hidden[:, -1], state.n_read + tgt_len
        else:
            states = tf.concat([state.last[:, None], hidden], axis=1)
            last, n_read = tf.gather(states, counts, axis=1, batch_dims=1), state.n_read + counts
        n_read = tf.minimum(n_read, self.span.mem_len + 1)
        return hidden, CachedState(tuple(keys), tuple(values), last, n_read)

    def _take_nearest(self, index: int, tgt_len: int | tf.Tensor) -> tf.Tensor:
        """Returns the positions of a layer for a segment of t tokens, (N, 1 + M + t, H).

        Those of a longer segment hold them, but for the first row, of which nothing is seen.
        """
        products = self.positions[index].value()
        return products[:, ops.shape(products)[1] - 1 - self.span.mem_len - tgt_len :]

    def _make_mask(self, tgt_len: int | tf.Tensor, filled: tf.Tensor) -> tf.Tensor:
        """Returns which keys each query sees: (T, S) bool, or (B, 1, T, S) if rows differ."""
        span = self.span
        mask = make_attention_mask(
            tgt_len, span.mem_len, same_length=span.same_length, counts_self=span.counts_self
        )
        if not self.mask_empty_memory:
            return mask
        is_filled = tf.range(span.mem_len + tgt_len) >= span.mem_len - filled[:, None]  # (B, S)
        return tf.logical_and(mask, is_filled[:, None, None])

    def _keep_last(
        self, states: tf.Tensor, counts: tf.Tensor | None, same_document: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns the last M of the states (B, N, S, H) up to the end of each row's text."""
        n_gone = ops.shape(states)[2] - self.span.mem_len
        if same_document is not None:  # as zeros, which is what no state is projected to
            is_kept = same_document[:, None, -1, n_gone:, None]
            return tf.where(is_kept, states[:, :, n_gone:], tf.zeros((), states.dtype))
        if counts is None:
            return states[:, :, n_gone:]
        places = counts[:, None] + tf.range(self.span.mem_len)  # (B, M)
        places = tf.repeat(places[:, None], states.shape[1], axis=1)  # (B, N, M)
        return tf.gather(states, places, axis=2, batch_dims=2)


def _clear_others(scores: tf.Tensor, same_document: tf.Tensor | None) -> tf.Tensor:
    """Returns scores (B, N, T, S) with zeros where a key is of another document."""
    if same_document is None:
        return scores
    return tf.where(same_document[:, None], scores, tf.zeros((), scores.dtype))


def _swap(states: tf.Tensor) -> tf.Tensor:
    """Returns states (B, T, N, H) as (B, N, T, H), or the other way round."""
    return tf.transpose(states, (0, 2, 1, 3))
