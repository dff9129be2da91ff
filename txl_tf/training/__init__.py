"""Training: optimizer, training step and the loop around them.

Submodules are imported when they are first used.
"""

from typing import Any

from txl_tf.quiet_start import hide_remarks, import_name

_PLACES = {
    "StepResult": "txl_tf.training.step",
    "TrainStep": "txl_tf.training.step",
    "make_optimizer": "txl_tf.training.update_rules",
}

__all__ = [*_PLACES]


def __getattr__(name: str) -> Any:
    hide_remarks()
    return import_name(__name__, _PLACES, name)


def __dir__() -> list[str]:
    return __all__
