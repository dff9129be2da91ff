"""The 2019 release: reading what it wrote."""

from txl_tf.release.checkpoint import load_model

__all__ = ["load_model"]
