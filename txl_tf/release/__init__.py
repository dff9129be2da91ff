"""Reads models, vocabularies and data of the 2019 release and of Hugging Face transformers.

Submodules are imported when they are first used: `names` needs no TensorFlow.
"""

from typing import Any

from txl_tf.quiet_start import hide_remarks, import_name

_PLACES = {
    "Corpus": "txl_tf.release.corpus",
    "is_transformers_folder": "txl_tf.release.transformers_folder",
    "list_entries": "txl_tf.release.names",
    "load_transformers_model": "txl_tf.release.transformers_folder",
    "load_model": "txl_tf.release.weights",
    "load_vocabulary": "txl_tf.release.corpus",
    "read_corpus": "txl_tf.release.corpus",
    "read_transformers_config": "txl_tf.release.transformers_folder",
    "read_transformers_vocabulary": "txl_tf.release.transformers_folder",
}

__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    hide_remarks()
    return import_name(__name__, _PLACES, name)


def __dir__() -> list[str]:
    return __all__
