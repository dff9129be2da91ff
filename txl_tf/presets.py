"""The recipes by name."""

import difflib

from txl_tf.config import ModelConfig
from txl_tf.errors import UserError
from txl_tf.recipes import PRESETS, Preset

__all__ = ["PRESETS", "Preset", "get", "model", "names"]


def get(name: str) -> Preset:
    """Returns a recipe.

    Raises:
        UserError: no recipe has this name; the message lists those that there are.
    """
    if name not in PRESETS:
        nearest = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise UserError(f"Unknown preset {name!r}.{hint} Known: {', '.join(PRESETS)}")
    return PRESETS[name]


def names() -> tuple[str, ...]:
    """Returns the names of all recipes."""
    return tuple(PRESETS)


def model(name: str) -> ModelConfig:
    """Returns the model of a recipe.

    >>> model("wt103_base").count_parameters()
    151119838
    """
    return get(name).model
