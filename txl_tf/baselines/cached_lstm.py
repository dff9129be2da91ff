"""The LSTM with frozen weights and the interface of `CachedModel`."""

from typing import NamedTuple, Self

import tensorflow as tf

from txl_tf.baselines.lstm import LSTMModel
from txl_tf.cached_model import SegmentReader, clear_rows
from txl_tf.config import AttentionSpan


class LSTMState(NamedTuple):
    """The state carried from one segment to the next; zeros before the first segment.

    Args:
        memory: For each layer the hidden state (B, D) in the compute dtype and the cells (B, D)
            float32.
        n_read: (B,) int32, the number of tokens read since the row began, capped at 1.
    """

    memory: tuple[tuple[tf.Tensor, tf.Tensor], ...]
    n_read: tf.Tensor

    @property
    def last(self) -> tf.Tensor:
        """(B, D), the hidden state of the last token read, which predicts the next token."""
        return self.memory[-1][0]

    def reset(self, rows: tf.Tensor) -> Self:
        """Returns the state with the given rows, (B,) bool, cleared for a new text."""
        return clear_rows(self, rows)


class CachedLSTM(SegmentReader):
    """Reads segments of any lengths with the results of one pass over the text.

    An LSTM keeps no keys and values, so this only takes account of padding. An empty state is
    that of no token, so `mask_empty_memory` changes nothing.

    Args:
        model: The model.
        span: `AttentionSpan(0)`: an LSTM has no attention.
        tgt_len: The largest number of tokens T in a segment.
        mask_empty_memory: As in `CachedModel`.
        temperature: As in `CachedModel`.
        defer_products: Without effect: an LSTM has no products of positions.

    Raises:
        UserError: If the span is another one, or the softmax cannot have the temperature.
    """

    def __init__(
        self,
        model: LSTMModel,
        span: AttentionSpan,
        tgt_len: int,
        *,
        mask_empty_memory: bool = False,
        temperature: float = 1.0,
        defer_products: bool = False,
    ):
        model.config.check_reading(tgt_len, span)
        super().__init__(
            model, span, tgt_len, mask_empty_memory=mask_empty_memory, temperature=temperature
        )

    @property
    def max_len_without_memory(self) -> int:
        """0: an LSTM always reads with its state."""
        return 0

    @property
    def reach(self) -> int:
        """The segment length, usually that of training, over which gradients reached back."""
        return self.tgt_len

    def follow_weights(self) -> None:
        """Does nothing: no product is cached."""

    def without_memory(self) -> Self:
        """Returns the model itself."""
        return self

    def initial_state(self, batch_size: int | tf.Tensor) -> LSTMState:
        """Returns the state of B rows before the first segment."""
        return LSTMState(self.model.initial_memory(batch_size), tf.zeros(batch_size, tf.int32))

    def read(
        self,
        ids: tf.Tensor,
        state: LSTMState,
        counts: tf.Tensor | None = None,
        document_starts: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, LSTMState]:
        """Reads a segment.

        Args:
            ids: (B, t) int32 in [0, V), with fixed B and t.
            state: The value of `initial_state` or of the previous call.
            counts: (B,) int32, the number of tokens in each row; the rest is padding, which
                changes no other token. `None` if there is no padding.
            document_starts: (B, t) bool, true where a token begins a document: the state is cleared
                before it. `None` if no document begins.

        Returns:
            The hidden states, (B, t, D) in the compute dtype, for the model's `nll` and
            `log_probs`; and the new state.
        """
        hidden, memory = self.model.embedding(ids), []
        for layer, old in zip(self.model.decoder_layers, state.memory, strict=True):
            hidden, new = layer(hidden, old, document_starts, counts)
            memory.append(new)
        n_new = ids.shape[1] if counts is None else counts
        return hidden, LSTMState(tuple(memory), tf.minimum(state.n_read + n_new, 1))
