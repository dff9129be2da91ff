"""Presets: named settings of the paper, its authors' code and NVIDIA, and for new corpora."""

import difflib

from txl_tf.config import ModelConfig
from txl_tf.errors import UserError
from txl_tf.presets.preset import Preset
from txl_tf.presets.published import PUBLISHED
from txl_tf.presets.recommended import RECOMMENDED

# A model with the sizes of a preset belongs to it; its vocabulary and projections may differ.
_SIZES = (
    *("model_type", "n_layer", "d_model", "d_embed", "n_head", "d_head", "d_inner", "div_val"),
    *("untie_r", "encoding"),
)

PRESETS: dict[str, Preset] = {**RECOMMENDED, **PUBLISHED}


def get(name: str) -> Preset:
    """Returns a preset.

    Raises:
        UserError: If no preset has this name; the message lists all names.
    """
    if name not in PRESETS:
        nearest = difflib.get_close_matches(str(name), PRESETS, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise UserError(f"Unknown preset {name!r}.{hint} Known: {', '.join(PRESETS)}")
    return PRESETS[name]


def names() -> tuple[str, ...]:
    """Returns the names of all presets."""
    return tuple(PRESETS)


def model(name: str) -> ModelConfig:
    """Returns the model config of a preset.

    >>> model("wt103_base").count_parameters()
    151119838
    """
    return get(name).model


def find(model: ModelConfig, dataset: str | None = None) -> str | None:
    """Returns the name of the preset whose model has the same sizes; `None` if there is none.

    Among presets with equal sizes, it prefers that of the data set, then the closest vocabulary
    size.

    >>> find(model("wt103_large")), find(ModelConfig(n_token=27))
    ('wt103_large', None)
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
