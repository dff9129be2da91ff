"""The recipes by name."""

import difflib
from typing import Any

from txl_tf.config import ModelConfig
from txl_tf.errors import UserError
from txl_tf.recipes import PRESETS, Preset

__all__ = ["PRESETS", "Preset", "find", "get", "model", "names"]


# What differs with the corpus or the training, in models of one shape.
_SHAPELESS = {
    *("n_token", "cutoffs", "dropout", "dropatt"),
    *("init", "init_std", "proj_init_std", "init_range"),
}


def find(model: ModelConfig, dataset: str) -> str | None:
    """Returns the name of the recipe that a model is of, or `None`.

    Args:
        model: the model; vocabulary, dropout and initialisation may be others than the recipe's.
        dataset: name of its data set, which decides between recipes of one shape; the first
            of these if none is for it.

    >>> find(get("text8_base").model, "text8")
    'text8_base'
    """
    shape = _get_shape(model)
    found = [name for name, preset in PRESETS.items() if _get_shape(preset.model) == shape]
    return next((name for name in found if name.startswith(f"{dataset}_")), next(iter(found), None))


def _get_shape(model: ModelConfig) -> dict[str, Any]:
    return {name: value for name, value in model.to_json().items() if name not in _SHAPELESS}


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
