"""A SavedModel that is served: its signatures, called with arrays, and what describes them."""

import contextlib
import logging
import math
import os
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  the operations of signatures that take texts
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from txl_tf.apps.server.refusals import RefusedError
from txl_tf.data.files import read_json
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError, explain_errors

# Of a model, and of a request that names none, in TensorFlow Serving's API.
VERSION, DEFAULT_SIGNATURE = 1, "serving_default"
MEMORY_NAMES = ("keys", "values", "last", "n_read")


class ServedFolder:
    """A SavedModel, whose weights are loaded once. Any number of threads may call it.

    Args:
        folder: The folder that `txl_tf.export` has written.
        name: The name of the model in requests; `None` for that of the folder.
        max_length: The largest number of tokens that a request may generate.
        max_bytes: The largest memory of a request for empty memories.

    Attributes:
        functions: The signatures by name.
        signature_defs: Their descriptions, protocol buffers, by name.
        vocabulary: The vocabulary; `None` if there is none.
        segment_len: The largest number of tokens of a `step`; `None` if it is not known.

    Raises:
        UserError: If the folder is not a SavedModel.
    """

    def __init__(self, folder: str, name: str | None, *, max_length: int, max_bytes: int):
        self.name = find_name(folder, name)
        self.max_length = max_length
        self._max_bytes = max_bytes
        path = Path(folder)
        fault = f"`{folder}` is not a SavedModel, which `txl_tf.export` writes"
        self.vocabulary = _read_vocabulary(path / "assets" / "vocabulary.json")
        with explain_errors(fault, OSError, ValueError, DecodeError, tf.errors.OpError):
            proto = SavedModel.FromString((path / "saved_model.pb").read_bytes())
            with _hide_warnings():
                self._loaded = tf.saved_model.load(folder)  # functions do not work without it
        self.signature_defs = proto.meta_graphs[0].signature_def
        self.functions: dict[str, Any] = dict(self._loaded.signatures)
        info = path / "txl_tf.json"
        self.segment_len = read_json(str(info))["tgt_len"] if info.exists() else None

    def check_name(self, name: str, version: str | int | None = None) -> None:
        """Checks the name and the version of the model in a request.

        Raises:
            RefusedError: If they are others, status 404.
        """
        if name != self.name or str(version or VERSION) != str(VERSION):
            raise RefusedError(
                HTTPStatus.NOT_FOUND,
                f"the server has version {VERSION} of the model {self.name!r}. "
                f"Received: {name[:200]!r}{f', version {version}'[:99] if version else ''}",
            )

    def get_inputs(self, signature: str) -> dict[str, tf.TensorSpec]:
        """Returns the inputs of a signature by name.

        Raises:
            UserError: If there is no such signature.
        """
        if not isinstance(signature, str) or signature not in self.functions:
            names = ", ".join(sorted(self.functions))
            raise UserError(
                f"`signature_name` must be one of {names}. Received: {str(signature)[:200]!r}"
            )
        return self.functions[signature].structured_input_signature[1]

    def call(self, signature: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Calls a signature.

        Args:
            signature: The name of a signature.
            inputs: All of its inputs by name.

        Returns:
            The outputs by name, arrays; texts are `bytes` in arrays of objects.

        Raises:
            UserError: If the graph refuses the inputs, or they ask for too much.
            RefusedError: If the memory is exhausted, or the graph fails for another reason.
        """
        self._check_size(signature, inputs)
        specs = self.get_inputs(signature)
        tensors = {name: tf.constant(inputs[name], spec.dtype) for name, spec in specs.items()}
        outputs = call_graph(self.functions[signature], tensors)
        return {name: _to_array(output) for name, output in outputs.items()}

    def _check_size(self, signature: str, inputs: dict[str, np.ndarray]) -> None:
        """Refuses the two inputs whose value, not size, decides on memory and time."""
        if signature == "generate_text" and inputs["length"] > self.max_length:
            raise UserError(
                f"`length` must be at most {self.max_length:,}. Received: {inputs['length']}"
            )
        if signature == "initial_memory":
            size = int(inputs["batch_size"]) * self.memory_bytes
            if size > self._max_bytes:
                raise UserError(
                    f"`batch_size` must be at most {self._max_bytes // self.memory_bytes}: a row "
                    f"takes {self.memory_bytes:,} bytes. Received: {inputs['batch_size']}"
                )

    @property
    def has_sessions(self) -> bool:
        """Whether texts can be continued: the model has a vocabulary and signatures for it."""
        return (
            self.vocabulary is not None
            and self.segment_len is not None
            and {"step", "initial_memory"} <= set(self.functions)
        )

    @property
    def memory_bytes(self) -> int:
        """The size of the memory of a text in bytes."""
        outputs = self.functions["initial_memory"].structured_outputs
        # The only size that is not known is the number of texts.
        sizes = ([size or 1 for size in outputs[name].shape] for name in MEMORY_NAMES)
        return sum(4 * math.prod(size) for size in sizes)  # all are float32 or int32


def find_name(folder: str, name: str | None) -> str:
    """Returns the name of a model: the one that was given, or that of its folder."""
    return name or os.path.basename(os.path.abspath(folder))


def call_graph(function: Any, tensors: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Calls a function of a SavedModel.

    Raises:
        UserError: If the graph refuses the tensors.
        RefusedError: If the memory is exhausted, status 503; if it fails otherwise, 500.
    """
    try:
        return function(**tensors)
    except tf.errors.InvalidArgumentError as error:
        raise UserError(explain_graph(str(error))) from error
    except tf.errors.ResourceExhaustedError as error:
        reason = explain_graph(str(error))
        raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, reason) from error
    except tf.errors.OpError as error:
        reason = explain_graph(str(error))
        raise RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, reason) from error


def explain_graph(message: str) -> str:
    r"""Returns the reason in the message of an error of a graph: the line before its node.

    >>> explain_graph("Graph error:\n\nassertion failed: [`a` must be 1] [2]\n\t [[{{node a}}]]")
    '`a` must be 1'
    """
    line = re.search(r"^(.*)\n\s*\[\[", message, re.MULTILINE)
    reason = line[1] if line else " ".join(message.split())
    rule = re.match(r"assertion failed: \[(.*?)[. ]*\](?: \[|$)", reason)
    return rule[1] if rule else reason


@contextlib.contextmanager
def _hide_warnings() -> Iterator[None]:
    """Hides the warnings that a model for inference has no gradients."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _to_array(tensor: tf.Tensor) -> np.ndarray:
    value = tensor.numpy()  # of a single text: `bytes`, whose zeros at the end NumPy would drop
    return np.array(value, object) if tensor.dtype == tf.string else np.asarray(value)


def _read_vocabulary(path: Path) -> Vocabulary | None:
    if not path.exists():
        return None
    with explain_errors(f"`{path}` is not a vocabulary", KeyError, TypeError, ValueError):
        return Vocabulary.from_json(read_json(str(path)))
