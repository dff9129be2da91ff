"""The flags of dynamic evaluation."""

import functools

from absl import flags

from txl_tf.cli.config_flags import define_config_flags, name_flags, override
from txl_tf.cli.flags import define_flag, reraise_as_flag_error
from txl_tf.config.dynamic import DYNAMIC_RECIPES, DynamicConfig, DynamicRecipe

_PREFIX = "dynamic_"
_OTHERWISE = "that of --dynamic_recipe, or of the rule"


def define_dynamic_flags(options: flags.FlagValues) -> None:
    """Defines the flags of dynamic evaluation."""
    define = functools.partial(define_flag, options)
    text = (
        "Dynamic evaluation: after each segment is scored, the weights make a gradient step on "
        "it. The run is not changed. One lane, unless --lanes is given."
    )
    define("dynamic", bool, False, text)
    text = "Published settings of a dynamic evaluation, with their segment and span."
    define("dynamic_recipe", str, None, text, choices=tuple(DYNAMIC_RECIPES))
    define_config_flags(options, DynamicConfig, prefix=_PREFIX, otherwise=_OTHERWISE)
    text = (
        "Search the learning rate and the decay of --dynamic on the split, by default valid, and "
        "print the flags with the lowest loss."
    )
    define("tune", bool, False, text)


def check_dynamic_flags(options: flags.FlagValues) -> None:
    """Checks that the flags of dynamic evaluation are used together as they can be."""
    names = ["dynamic_recipe", "tune", *name_flags(DynamicConfig, _PREFIX).values()]
    given = [name for name in names if options[name].present and options[name].value is not False]
    if given and not options.dynamic:
        raise flags.Error(f"--{given[0]} needs --dynamic")
    if not options.dynamic:
        return
    if options.stride is not None:
        raise flags.Error("--stride cannot be used with --dynamic, which reads a text once")
    if options.dynamic_recipe and options.preset:
        raise flags.Error("--preset cannot be used with --dynamic_recipe, which has its own span")
    if options.tune and options.json:
        raise flags.Error("--json cannot be used with --tune, which prints its search")
    if options.tune and options.dynamic_learning_rate == 0:
        raise flags.Error("--dynamic_learning_rate must be positive with --tune")


def get_recipe(options: flags.FlagValues) -> DynamicRecipe | None:
    """Returns the recipe that the flags name; `None` if they name none."""
    return DYNAMIC_RECIPES[options.dynamic_recipe] if options.dynamic_recipe else None


def choose_dynamic_config(options: flags.FlagValues) -> DynamicConfig:
    """Returns the settings of dynamic evaluation that the flags choose."""
    recipe = get_recipe(options)
    base = recipe.dynamic if recipe else DynamicConfig(options.dynamic_rule or "rms")
    return reraise_as_flag_error(override, base, options, prefix=_PREFIX)


def format_dynamic_flags(dynamic: DynamicConfig) -> str:
    """Returns the flags that give settings.

    >>> format_dynamic_flags(DynamicConfig("sgd", 0.05, 0.01))
    '--dynamic --dynamic_rule=sgd --dynamic_learning_rate=0.05 --dynamic_decay=0.01'
    """
    names = ["rule", "learning_rate", "decay"]
    names += ["epsilon", "n_batches"] if dynamic.has_statistics else []
    values = {name: getattr(dynamic, name) for name in names}
    texts = {k: f"{v:g}" if isinstance(v, float) else v for k, v in values.items()}
    return " ".join(["--dynamic", *(f"--{_PREFIX}{name}={texts[name]}" for name in names)])
