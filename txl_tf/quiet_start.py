"""What happens before TensorFlow is imported: settings of its log, checks of the Keras backend."""

import contextlib
import importlib
import json
import os
from collections.abc import Mapping
from typing import Any

from txl_tf.errors import UserError


def hide_remarks() -> None:
    """Makes TensorFlow's C++ code log only errors, unless `TF_CPP_MIN_LOG_LEVEL` is set.

    What it logs before it reads the variable remains: a banner, and lines on oneDNN and GPUs.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def import_name(package: str, places: Mapping[str, str], name: str) -> Any:
    """Returns the value of a package's name from the module that defines it; for `__getattr__`.

    Modules are thus imported on first use: programs read their flags before importing TensorFlow.

    Raises:
        AttributeError: If `places` has no such name.
    """
    if name not in places:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(places[name]), name)


def find_backend() -> tuple[str, str]:
    """Returns the backend of Keras and the source of this setting, as Keras will read it.

    Importing Keras itself would fail if the package of its backend is missing.
    """
    if name := os.environ.get("KERAS_BACKEND"):
        return name, "the environment variable KERAS_BACKEND"
    home = os.path.expanduser("~")
    home = os.path.join(home if os.access(home, os.W_OK) else "/tmp", ".keras")
    path = os.path.join(os.path.expanduser(os.environ.get("KERAS_HOME", home)), "keras.json")
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        content = json.load(file)
        if isinstance(content, dict) and isinstance(content.get("backend"), str):
            return content["backend"], f"`{path}`"
    return "tensorflow", "the default"


def check_backend(*others: str) -> None:
    """Checks that the backend of Keras is TensorFlow or one of `others`, before it is imported.

    Raises:
        UserError: If it is another backend. The message says what can be used with that.
    """
    name, source = find_backend()
    if name not in ("tensorflow", *others):
        works = "presets, configs and data"
        if name == "jax":
            works = f"CausalLM, models, layers, {works}"
        raise UserError(
            f"the backend of Keras must be {' or '.join(['tensorflow', *others])}. "
            f"Received: {name}, from {source}. With {name}, only {works} can be used"
        )
