"""The model with frozen weights: keys and values of the memory are kept, not computed again."""

from collections.abc import Sequence
from typing import NamedTuple, Self, TypeVar

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

States = TypeVar("States")


class CachedMemory(NamedTuple):
    """Keys and values of the text before a segment, in the place of the hidden states.

    Args:
        keys: for each layer (B, N, M, H): heads first, as products of matrices take them.
        values: for each layer (B, N, M, H).
        filled: (B,) int32, how many of the M places hold tokens that were read: the last ones.
            The others are empty: zeros, which the release attends to.
    """

    keys: tuple[tf.Tensor, ...]
    values: tuple[tf.Tensor, ...]
    filled: tf.Tensor

    def reset(self, rows: tf.Tensor) -> Self:
        """Returns the memory with some rows, (B,) bool, as before the first segment."""
        return clear_rows(self, rows)


class CachedModel:
    """Reads segments as the model does, with keys and values of the memory kept.

    Paper, section 3.2: what was computed for a segment is used again by the next. The keys and
    values of a hidden state are products with weights that stand still here, so they are kept
    instead of the state; so are the products of the positions. The numbers are the model's own.

    Args:
        model: the model; its weights must not change.
        span: what it sees; the memory holds `span.mem_len` places.
        mask_empty_memory: whether places of the memory that nothing was read into are hidden from
            attention. The release attends to them, and its results depend on it.
    """

    def __init__(
        self, model: TransformerXL, span: AttentionSpan, *, mask_empty_memory: bool = False
    ):
        self.model = model
        self.span = span
        self.mask_empty_memory = mask_empty_memory

    def without_memory(self) -> "CachedModel":
        """Returns what reads texts that see nothing before their first token."""
        return CachedModel(self.model, AttentionSpan(0, clamp_len=self.span.clamp_len))

    def find_longest_alone(self, tgt_len: int) -> int:
        """Returns how long a text may be for `without_memory` to read it as this would.

        Args:
            tgt_len: the most tokens T of a segment.
        """
        if not self.mask_empty_memory:
            return 0
        return min(self.span.mem_len, tgt_len) if self.span.same_length else tgt_len

    def initial_memory(self, batch_size: int | tf.Tensor) -> CachedMemory:
        """Returns the memory before the first segment, for B rows."""
        config = self.model.config
        shape = (batch_size, config.n_head, self.span.mem_len, config.d_head)
        empty = tuple(tf.zeros(shape, self.model.compute_dtype) for _ in range(config.n_layer))
        return CachedMemory(empty, empty, tf.zeros(batch_size, tf.int32))

    def project_positions(self, tgt_len: int) -> tuple[tf.Tensor, ...]:
        """Returns the products W_r R of all distances of a segment, (N, 1 + S, H) for each layer.

        They depend on nothing but the segment's length T, S = M + T: to be computed once. Of the
        first row come the scores that `shift_padded` wants before the others; nothing is seen of
        them.
        """
        table = make_position_table(
            self.span.mem_len + tgt_len, self.model.config.d_model, clamp_len=self.span.clamp_len
        )
        table = tf.cast(table, self.model.compute_dtype)
        table = tf.pad(table, [(1, 0), (0, 0)])
        return tuple(
            tf.transpose(layer.attention.project_positions(table), (1, 0, 2))
            for layer in self.model.decoder_layers
        )

    def read(
        self,
        ids: tf.Tensor,
        memory: CachedMemory,
        positions: Sequence[tf.Tensor],
        counts: tf.Tensor | None = None,
        document_starts: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, CachedMemory]:
        """Reads a segment.

        Args:
            ids: (B, T) int32 in [0, V); B and T may be unknown when a function is traced.
            memory: as `initial_memory` or the last call gave it.
            positions: what `project_positions(T)` returned.
            counts: (B,) int32, how many ids of each row are of its text; the others follow them,
                change nothing that comes before them, and leave nothing in the memory. `None`:
                all are.
            document_starts: (B, T) bool, true where a token begins a document, which sees nothing
                of the one before: zeros, as in an empty memory. `None`: none begins. Not for
                `mask_empty_memory`, nor with `counts`.

        Returns:
            The hidden states, (B, T, D) in the compute dtype, for `nll` and `log_probs`, and the
            new memory.
        """
        model, tgt_len = self.model, ops.shape(ids)[1]
        mask = self._make_mask(tgt_len, memory.filled)
        same_document = None
        if document_starts is not None:
            same_document = compare_documents(document_starts, self.span.mem_len)  # (B, T, S)
        hidden = model.embedding(ids)
        keys, values = [], []
        for index, layer in enumerate(model.decoder_layers):
            content_bias, position_bias = model.get_biases(index)
            attention = layer.attention
            query, new_keys, new_values = attention.project(hidden, hidden[:, :0])
            all_keys = tf.concat([memory.keys[index], _swap(new_keys)], axis=2)  # (B, N, S, H)
            all_values = tf.concat([memory.values[index], _swap(new_values)], axis=2)
            # `RelativeAttention` scores by einsums, which would bring all keys and values into
            # this order for each segment.
            content = _swap(attention.add_bias(query, content_bias))
            content = tf.matmul(content, all_keys, transpose_b=True)  # (B, N, T, S)
            content = _clear_others(content, same_document)
            # An einsum: of a product of (B, 1, T, H) with (1, S, H), as one head would have it,
            # TensorFlow's broadcast on CPUs is wrong for some sizes.
            position = attention.add_bias(query, position_bias)
            position = shift_padded(tf.einsum("btnh,nsh->bnts", position, positions[index]))
            weights = tf.cast(attention.weigh(content, position, mask), all_values.dtype)
            weights = _clear_others(weights, same_document)
            attended = attention.join_heads(_swap(tf.matmul(weights, all_values)))
            hidden = layer.transform(hidden, attended)
            keys.append(self._keep_last(all_keys, counts, same_document))
            values.append(self._keep_last(all_values, counts, same_document))
        read = tgt_len if counts is None else counts
        filled = tf.minimum(memory.filled + read, self.span.mem_len)
        return hidden, CachedMemory(tuple(keys), tuple(values), filled)

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


def clear_rows(states: States, rows: tf.Tensor) -> States:
    """Returns states (B, ...), nested as they are, with zeros in some rows, (B,) bool."""

    def clear(state: tf.Tensor) -> tf.Tensor:
        shape = [-1, *[1] * (state.shape.rank - 1)]
        return tf.where(tf.reshape(rows, shape), tf.zeros_like(state), state)

    return tf.nest.map_structure(clear, states)


def take_nearest(positions: Sequence[tf.Tensor], n_keys: int | tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Returns what `project_positions` gives for so few keys S; those of a longer segment hold it.

    Only the first row is another one, of which nothing is seen.
    """
    return tuple(products[:, ops.shape(products)[1] - 1 - n_keys :] for products in positions)


def _clear_others(scores: tf.Tensor, same_document: tf.Tensor | None) -> tf.Tensor:
    """Returns scores (B, N, T, S) with zeros where a key is of another document."""
    if same_document is None:
        return scores
    return tf.where(same_document[:, None], scores, tf.zeros((), scores.dtype))


def _swap(states: tf.Tensor) -> tf.Tensor:
    """Returns states (B, T, N, H) as (B, N, T, H), or the other way round."""
    return tf.transpose(states, (0, 2, 1, 3))
