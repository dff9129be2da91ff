"""The state of a generation loop: the KV caches of a batch of texts in ring buffers."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

_N_SHARED = 4  # fields of `LoopState` without an entry for each text


class LoopState(NamedTuple):
    """The state of the texts of a batch: a KV cache in ring buffers, and the last hidden state.

    Each ring buffer has R = M + S slots if the loop reads at most S tokens at once. The next token
    overwrites the oldest one, so reading a token moves no other. Rows and heads share one axis and
    the slots of the keys come last, as the matrix products expect them: any other layout would be
    copied for every token.

    Args:
        keys: (B N, H, R) for each layer.
        values: (B N, R, H) for each layer.
        next_slot: () int32, the ring-buffer slot of the next token.
        n_passes: () int32, the number of passes over the weights since the prompts.
        filled: (B,) int32, the number of the M slots before `next_slot` that hold tokens.
        hidden: (B, D), the hidden state of the last token read, which predicts the next token.
        seen: (B, V) bool, whether the text contains each token.
        is_done: (B,) bool, whether the text has ended.
        history: (B, W) int32, the last W tokens read, with -1 before the first; for loops that look
            them up, else W = 0.
    """

    keys: tuple[tf.Tensor, ...]
    values: tuple[tf.Tensor, ...]
    next_slot: tf.Tensor
    n_passes: tf.Tensor
    filled: tf.Tensor
    hidden: tf.Tensor
    seen: tf.Tensor
    is_done: tf.Tensor
    history: tf.Tensor

    def take_row(self, row: int) -> "LoopState":
        """Returns the state of one text."""
        n_rows = self.filled.shape[0]
        if n_rows == 1:
            return self
        n_heads = self.keys[0].shape[0] // n_rows
        heads = slice(row * n_heads, (row + 1) * n_heads)
        return LoopState(
            tuple(keys[heads] for keys in self.keys),
            tuple(values[heads] for values in self.values),
            self.next_slot,
            self.n_passes,
            *(tensor[row : row + 1] for tensor in self[_N_SHARED:]),
        )


def join_rows(rows: Sequence[LoopState]) -> LoopState:
    """Returns the joint state of texts, with their ring buffers rotated to the first one's slot."""
    if len(rows) == 1:
        return rows[0]
    next_slot = rows[0].next_slot

    def join(rings: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
        rotated = [
            tf.roll(ring, next_slot - row.next_slot, axis)
            for ring, row in zip(rings, rows, strict=True)
        ]
        return tf.concat(rotated, axis=0)

    return LoopState(
        tuple(join(keys, 2) for keys in zip(*(row.keys for row in rows), strict=True)),
        tuple(join(values, 1) for values in zip(*(row.values for row in rows), strict=True)),
        next_slot,
        rows[0].n_passes,
        *(tf.concat(each, axis=0) for each in zip(*(row[_N_SHARED:] for row in rows), strict=True)),
    )
