"""Arrays that are kept beside a run, so that they need not be computed again."""

import hashlib
import json
import os
import sys
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from txl_tf.data.files import is_remote
from txl_tf.errors import UserError
from txl_tf.segment_model import SegmentModel

_SETTINGS_NAME = "settings.json"


class ArrayStore:
    """A folder with arrays that need not be computed again.

    The arrays are found by `settings`, all that they depend on but their name: any difference leads
    to another subfolder, which holds the settings as JSON. Without a folder nothing is kept.
    """

    def __init__(self, folder: str | None, settings: dict[str, Any]):
        self._settings = json.dumps(settings, sort_keys=True, indent=1)
        key = hashlib.sha256(self._settings.encode()).hexdigest()[:16]
        self._folder = None if folder is None else os.path.join(folder, key)

    def load(self, name: str) -> dict[str, np.ndarray] | None:
        """Returns the arrays of a name; `None` if there are none, or the file is damaged."""
        path = self._get_path(name)
        if path is None or not os.path.exists(path):
            return None
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            return None  # damaged: they are computed again

    def save(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Stores arrays under a name, completely or not at all."""
        path = self._get_path(name)
        if path is None or self._folder is None:
            return
        try:
            os.makedirs(self._folder, exist_ok=True)
            with open(os.path.join(self._folder, _SETTINGS_NAME), "w", encoding="utf-8") as file:
                file.write(self._settings + "\n")
            with open(path + ".writing", "wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
            os.replace(path + ".writing", path)
        except OSError as error:
            raise UserError(f"`{path}` cannot be written: {error.strerror}") from error

    def _get_path(self, name: str) -> str | None:
        return self._folder and os.path.join(self._folder, f"{name}.npz")


def find_folder(run: str, name: str) -> str | None:
    """Returns the folder in a run for what is kept; `None`, with a line, if it is not writable."""
    if is_remote(run) or not os.access(run, os.W_OK):
        print(f"Nothing is kept in {run}/{name}: it cannot be written.", file=sys.stderr)
        return None
    return os.path.join(run, name)


def hash_weights(model: SegmentModel) -> str:
    """Returns a hash of a model's weights."""
    return hash_arrays(weight.numpy() for weight in model.weights)


def hash_arrays(arrays: Iterable[np.ndarray]) -> str:
    """Returns a hash of the contents of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
