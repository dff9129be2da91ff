"""Settings made before TensorFlow is imported: its messages, and the backend of Keras."""

import contextlib
import importlib
import json
import os
from collections.abc import Mapping
from typing import Any

from txl_tf.errors import UserError


def hide_remarks() -> None:
    """Has TensorFlow's C++ code show errors alone, unless `TF_CPP_MIN_LOG_LEVEL` says otherwise.

    Lines that it writes before it reads the variable remain: a banner, oneDNN and missing GPUs.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def import_name(package: str, places: Mapping[str, str], name: str) -> Any:
    """Returns a name of a package from the module that has it; for its `__getattr__`.

    So modules are imported when they are first used: programs read their flags before TensorFlow.

    Raises:
        AttributeError: If `places` has no such name.
    """
    if name not in places:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(places[name]), name)


def find_backend() -> tuple[str, str]:
    """Returns the backend of Keras, and what names it; reads what Keras reads when it is imported.

    Keras itself cannot be imported if the package of its backend is missing.
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
    """Checks that Keras computes with TensorFlow, or another backend, before either is imported.

    Raises:
        UserError: If it has another backend. The message says which names work with it.
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
