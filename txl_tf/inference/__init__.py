"""Using a trained model: scoring and generating text."""

from txl_tf.inference.language_model import LanguageModel, load
from txl_tf.inference.vocabulary_extension import extend_vocabulary

__all__ = ["LanguageModel", "extend_vocabulary", "load"]
