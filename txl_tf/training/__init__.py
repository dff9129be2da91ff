"""Training: optimizer, training step and the loop around them.

Modules are imported on first use, because programs read their flags before they import tensorflow.
"""

import importlib
from typing import Any

_PLACES = {
    "Regularization": "txl_tf.training.step",
    "StepOptions": "txl_tf.training.step",
    "StepResult": "txl_tf.training.step",
    "make_optimizer": "txl_tf.training.update_rules",
    "train_step": "txl_tf.training.step",
}

__all__ = [*_PLACES]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'txl_tf.training' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
