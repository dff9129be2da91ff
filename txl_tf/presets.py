"""The recipes by name."""

import difflib

from txl_tf.config import ModelConfig
from txl_tf.errors import UserError
from txl_tf.recipes import PRESETS, Preset

__all__ = ["PRESETS", "Preset", "find", "get", "model", "names"]

# What makes a model that of a recipe; its vocabulary and its projections may be others.
_SIZES = ("n_layer", "d_model", "d_embed", "n_head", "d_head", "d_inner", "div_val", "untie_r")


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


def find(model: ModelConfig, dataset: str | None = None) -> str | None:
    """Returns the name of the recipe that a model is of.

    >>> find(model("wt103_large")), find(ModelConfig(n_token=27))
    ('wt103_large', None)

    Args:
        model: the model.
        dataset: name of the data set, which decides between recipes of equal models; without one
            that they know, the number of tokens does.

    Returns:
        The name of one that has layers of the same number and sizes; `None` if there is none.
    """

    def rate(name: str) -> tuple[bool, int]:
        is_other = not name.startswith(f"{dataset}_")
        return is_other, abs(PRESETS[name].model.n_token - model.n_token)

    sizes = [getattr(model, size) for size in _SIZES]
    found = [
        name
        for name, preset in PRESETS.items()
        if [getattr(preset.model, size) for size in _SIZES] == sizes
    ]
    return min(found, key=rate, default=None)
