"""Reads models, vocabularies and data of the 2019 release and of Hugging Face transformers.

Submodules are imported when they are first used: `names` and `reference` need no TensorFlow.
"""

import importlib
from typing import Any

_PLACES = {
    "Corpus": "corpus",
    "is_hub_folder": "hub",
    "list_entries": "names",
    "load_hub_model": "hub",
    "load_model": "weights",
    "load_vocabulary": "corpus",
    "read_corpus": "corpus",
    "read_hub_config": "hub",
    "read_hub_vocabulary": "hub",
}

__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'txl_tf.release' has no attribute {name!r}")
    return getattr(importlib.import_module(f"txl_tf.release.{_PLACES[name]}"), name)
