"""Using a trained model: scoring and generating text."""

from txl_tf.inference.language_model import LanguageModel, load

__all__ = ["LanguageModel", "load"]
