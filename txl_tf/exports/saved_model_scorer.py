"""Scores texts with a SavedModel of `txl export`."""

import json
import os
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf.data.files import exists, join_path
from txl_tf.data.lanes.evaluation_lanes import Segment
from txl_tf.data.text.vocabulary import CHARACTER_LEVELS, Vocabulary
from txl_tf.errors import UserError, explain_errors
from txl_tf.exports.description import FORMAT_VERSION
from txl_tf.runs.hub_download import is_hub_address
from txl_tf.scoring.scorer import TextScorer

# The axis of the rows in each tensor of the memory.
_ROW_AXES = {"keys": 1, "values": 1, "last": 0, "n_read": 0}


def is_saved_model(folder: str) -> bool:
    """Returns whether a folder holds a SavedModel."""
    return not is_hub_address(folder) and exists(join_path(folder, "saved_model.pb"))


class SavedModelScorer(TextScorer):
    """Scores streams of texts, each with a memory of its own, like `Scorer`.

    The signature `step` keeps no state between calls, so threads may share a scorer. Segments,
    span, masking of the empty memory and precision are those of the export.

    Raises:
        UserError: If the SavedModel cannot be read, or takes no texts.
    """

    def __init__(self, folder: str, batch_size: int):
        kinds = (tf.errors.OpError, OSError, ValueError, KeyError, TypeError, RecursionError)
        with explain_errors(f"`{folder}` is not a SavedModel of `txl export`", *kinds):
            info = json.loads(_read(folder, "txl_tf.json"))
            if info["format_version"] != FORMAT_VERSION:
                raise UserError(
                    f"`{folder}` has format version {info['format_version']}; this version of "
                    f"txl_tf reads format version {FORMAT_VERSION}"
                )
            tgt_len = int(info["tgt_len"])
            if info["vocabulary"] is None:
                raise UserError(f"`{folder}` has no vocabulary: it cannot encode texts")
            described = json.loads(_read(folder, os.path.join("assets", "vocabulary.json")))
            self.vocabulary = Vocabulary.from_json(described)
            if self.vocabulary.level not in CHARACTER_LEVELS:
                import tensorflow_text  # noqa: F401  registers operations in the SavedModel
            reader = _SavedModelReader(folder, float(info["temperature"]))
        super().__init__(reader, tgt_len, batch_size=batch_size)


class _SavedModelReader:
    """The reader of a SavedModel, whose signature `step` scores the tokens that it reads."""

    dynamic = None

    def __init__(self, folder: str, temperature: float):
        self._model = tf.saved_model.load(folder)  # its functions need it to stay alive
        self._step = self._model.signatures["step"]
        self._initial_memory = self._model.signatures["initial_memory"]
        self._temperature = temperature

    def begin(self) -> None:
        """Does nothing: the weights never change."""

    def read(self, segment: Segment, state: Any) -> tuple[np.ndarray, Any]:
        """Reads a segment; see `Reader`."""
        assert segment.counts is not None  # streams have them
        if state is None:
            state = self._initial_memory(batch_size=tf.constant(len(segment.ids)))
        elif segment.sources is not None:
            state = {
                name: tf.gather(state[name], segment.sources, axis=axis)
                for name, axis in _ROW_AXES.items()
            }
        width = segment.counts.max()
        found = self._step(
            ids=tf.constant(segment.ids[:, :width]),
            lengths=tf.constant(segment.counts),
            reset=tf.constant(segment.begins),
            **state,
        )
        nats = np.zeros(segment.ids.shape, np.float32)
        nats[:, : width - 1] = found["nats"][:, 1:]
        # The last target of a row is not among its ids; `log_probs` has its probability.
        log_probs = tf.nn.log_softmax(found["log_probs"] / self._temperature).numpy()
        ends = np.maximum(segment.counts - 1, 0)[:, None]
        last = np.take_along_axis(segment.targets, ends, axis=1)
        np.put_along_axis(nats, ends, -np.take_along_axis(log_probs, last, axis=1), axis=1)
        return nats, {name: found[name] for name in _ROW_AXES}


def _read(folder: str, name: str) -> bytes:
    with tf.io.gfile.GFile(join_path(folder, name), "rb") as file:
        return file.read()
