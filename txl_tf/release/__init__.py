"""The 2019 release: reading what it wrote."""

from txl_tf.release.checkpoint import load_model
from txl_tf.release.corpus import Corpus, load_vocabulary, read_corpus

__all__ = ["Corpus", "load_model", "load_vocabulary", "read_corpus"]
