"""The state of a generation loop: the KV caches of a batch of texts in ring buffers."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf


class LoopState(NamedTuple):
    """The state of the texts of a batch: a KV cache in ring buffers, and the last hidden state.

    Each ring buffer has R = M + S slots if the loop reads at most S tokens at once. The next token
    overwrites the oldest one, so reading a token moves no other. Rows and heads share one axis and
    the slots of the keys come last, as the matrix products expect them: any other layout would be
    copied for every token.
    """

    keys: tuple[tf.Tensor, ...]  # (B N, H, R) for each layer
    values: tuple[tf.Tensor, ...]  # (B N, R, H) for each layer
    next_slot: tf.Tensor  # () int32, the ring-buffer slot of the next token
    n_passes: tf.Tensor  # () int32, the number of passes over the weights since the prompts
    filled: tf.Tensor  # (B,) int32, the number of the M slots before `next_slot` that hold tokens
    hidden: tf.Tensor  # (B, D), of the last token read, which predicts the next token
    seen: tf.Tensor  # (B, V) bool, whether the text contains each token
    is_done: tf.Tensor  # (B,) bool, whether the text has ended
    # (B, W) int32, the last W tokens, with -1 before the first; W = 0 for loops without look-up.
    history: tf.Tensor

    def take_row(self, row: int) -> "LoopState":
        """Returns the state of one text."""

        def take(tensor: tf.Tensor) -> tf.Tensor:
            size = tensor.shape[0] // self.filled.shape[0] if tensor.shape.rank else 0
            return tensor[row * size : (row + 1) * size] if size else tensor

        return tf.nest.map_structure(take, self)


def join_rows(rows: Sequence[LoopState]) -> LoopState:
    """Returns the joint state of texts, with their ring buffers rotated to the first one's slot."""
    first = rows[0]
    shifts = [first.next_slot - row.next_slot for row in rows]
    rotated = [
        row._replace(
            keys=tuple(tf.roll(keys, shift, axis=2) for keys in row.keys),
            values=tuple(tf.roll(values, shift, axis=1) for values in row.values),
        )
        for row, shift in zip(rows, shifts, strict=True)
    ]

    def join(*tensors: tf.Tensor) -> tf.Tensor:
        return tf.concat(tensors, axis=0) if tensors[0].shape.rank else tensors[0]

    return tf.nest.map_structure(join, *rotated)
