"""A recurrent model with frozen weights and the interface of `CachedModel`."""

from typing import NamedTuple

import tensorflow as tf

from txl_tf.models.cached_model import FrozenModel


class RecurrentState(NamedTuple):
    """The state carried from one segment to the next; zeros before the first segment.

    Args:
        memory: The memory of the model.
        last: (B, D), the hidden state of the last token read, which predicts the next token.
        n_read: (B,) int32, the number of tokens read since the row began, capped at 1.
    """

    memory: tuple[tuple[tf.Tensor, tf.Tensor], ...]
    last: tf.Tensor
    n_read: tf.Tensor


class CachedRecurrent(FrozenModel):
    """Reads segments of any length, with the results of a single pass over the text.

    A recurrent model keeps no keys and values, so this class only handles padding. An empty state
    belongs to no token, so `mask_empty_memory` has no effect. The arguments are those of
    `FrozenModel`, with the span `AttentionSpan(0)`.
    """

    @property
    def reach(self) -> int:
        """The segment length, usually that of training: how far back gradients reached."""
        return self.tgt_len

    def initial_state(self, batch_size: int | tf.Tensor) -> RecurrentState:
        """Returns the state of B rows before the first segment."""
        memory = self.model.initial_memory(batch_size)
        last = tf.zeros((batch_size, self.model.config.d_model), self.model.compute_dtype)
        return RecurrentState(memory, last, tf.zeros(batch_size, tf.int32))

    def read(
        self,
        ids: tf.Tensor,
        state: RecurrentState,
        counts: tf.Tensor | None = None,
        document_starts: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, RecurrentState]:
        """Reads a segment; see `CachedModel.read`. B and t must be fixed."""
        hidden, memory = self.model.embedding(ids), []
        for layer, old in zip(self.model.decoder_layers, state.memory, strict=True):
            hidden, new = layer(hidden, old, document_starts, counts)
            memory.append(new)
        if counts is None:
            last, n_new = hidden[:, -1], ids.shape[1]
        else:
            states = tf.concat([state.last[:, None], hidden], axis=1)
            last, n_new = tf.gather(states, counts, axis=1, batch_dims=1), counts
        return hidden, RecurrentState(tuple(memory), last, tf.minimum(state.n_read + n_new, 1))
