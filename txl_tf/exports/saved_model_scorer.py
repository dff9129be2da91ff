"""Scores token streams with a SavedModel of `python -m txl_tf.export`."""

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf.data.files import exists, join_path
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError, explain_errors
from txl_tf.exports.hub_folder import is_hub_address
from txl_tf.scoring.token_streams import Piece, StreamQueue, TokenSlot

# The axis of each tensor of the memory that counts the rows.
_ROW_AXES = {"keys": 1, "values": 1, "last": 0, "n_read": 0}


def is_saved_model(folder: str) -> bool:
    """Returns whether a folder holds a SavedModel.

    Raises:
        UserError: If that cannot be determined.
    """
    return not is_hub_address(folder) and exists(join_path(folder, "saved_model.pb"))


class ServedScorer:
    """Scores token streams, each with a memory of its own, like `Scorer`.

    The signature `step` keeps nothing between calls, so threads may share a scorer. Segments, span,
    empty memory and precision are those of the export.

    Args:
        folder: The folder of the SavedModel.
        batch_size: Largest number of streams to read at once.

    Raises:
        UserError: If the SavedModel cannot be read, or takes no texts.
    """

    def __init__(self, folder: str, batch_size: int):
        import tensorflow_text  # noqa: F401  registers operations in the SavedModel

        kinds = (tf.errors.OpError, OSError, ValueError, KeyError, RecursionError)
        with explain_errors(f"`{folder}` is not a SavedModel of txl_tf.export", *kinds):
            info = json.loads(_read(folder, "txl_tf.json"))
            self._tgt_len = int(info["tgt_len"])
            if info["vocabulary"] is None:
                raise UserError(f"`{folder}` has no vocabulary: it cannot encode texts")
            described = json.loads(_read(folder, os.path.join("assets", "vocabulary.json")))
            self.vocabulary = Vocabulary.from_json(described)
            self._model = tf.saved_model.load(folder)  # its functions need it to stay alive
            self._step = self._model.signatures["step"]
            self._initial_memory = self._model.signatures["initial_memory"]
        self._batch_size = batch_size

    def score(
        self, streams: Iterable[Iterable[np.ndarray]], *, in_order: bool = False
    ) -> Iterator[Piece]:
        """Scores streams; see `Scorer.score`."""
        queue = StreamQueue(streams, in_order=in_order)
        active: list[TokenSlot] = []
        memory: dict[str, Any] | None = None
        while True:
            yield from queue.fill(active, self._batch_size)
            if not active:
                return
            nats, memory = self._read(active, memory)
            for row, slot in enumerate(active):
                slot.row = row
                is_fresh = slot.is_fresh
                n_fed = len(self._choose_ids(slot))
                ids = slot.advance(n_fed - is_fresh)
                slot.fill(self._tgt_len)
                yield Piece(slot.stream, ids, nats[row, is_fresh:n_fed], slot.is_done)
            active = [slot for slot in active if not slot.is_done]

    def _choose_ids(self, slot: TokenSlot) -> np.ndarray:
        """Returns the ids of the next segment: all that the model has not read yet."""
        return slot.peek(self._tgt_len) if slot.is_fresh else slot.peek(self._tgt_len + 1)[1:]

    def _read(
        self, slots: list[TokenSlot], memory: dict[str, Any] | None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Returns the losses of the next segment of each slot, (B, n), and the new memory."""
        segments = [self._choose_ids(slot) for slot in slots]
        lengths = np.array([len(segment) for segment in segments], np.int32)
        ids = np.zeros((len(slots), lengths.max()), np.int32)
        for row, segment in enumerate(segments):
            ids[row, : len(segment)] = segment
        rows = [slot.row or 0 for slot in slots]  # a new stream gets any, which is emptied
        if memory is None:
            memory = self._initial_memory(batch_size=tf.constant(len(slots)))
        else:
            memory = {
                name: tf.gather(memory[name], rows, axis=axis) for name, axis in _ROW_AXES.items()
            }
        found = self._step(
            ids=tf.constant(ids),
            lengths=tf.constant(lengths),
            reset=tf.constant([slot.is_fresh for slot in slots]),
            **memory,
        )
        return found["nats"].numpy(), {name: found[name] for name in _ROW_AXES}


def _read(folder: str, name: str) -> bytes:
    with tf.io.gfile.GFile(join_path(folder, name), "rb") as file:
        return file.read()
