"""Reads models, vocabularies and data of the 2019 release and of Hugging Face transformers."""

from txl_tf.release.corpus import Corpus, load_vocabulary, read_corpus
from txl_tf.release.hub import is_hub_folder, load_hub_model, read_hub_config, read_hub_vocabulary
from txl_tf.release.weights import list_entries, load_model

__all__ = [
    "Corpus",
    "is_hub_folder",
    "list_entries",
    "load_hub_model",
    "load_model",
    "load_vocabulary",
    "read_corpus",
    "read_hub_config",
    "read_hub_vocabulary",
]
