"""The flags that read a run in another way than its config: segment, span, lanes."""

import dataclasses

from absl import flags

from txl_tf.cli.config_flags import define_config_flags, override
from txl_tf.cli.flags import reraise_as_flag_error
from txl_tf.config import EvalConfig

_FIELDS = ("tgt_len", "mem_len", "same_length", "clamp_len")


def define_span_flags(options: flags.FlagValues, otherwise: str) -> None:
    """Defines the flags of segment and span.

    Args:
        options: the flags of the program, to which these are added.
        otherwise: says in words what holds where a flag is not given.
    """
    define_config_flags(options, EvalConfig, _FIELDS, prefix="", otherwise=otherwise)


def override_evaluation(config: EvalConfig, options: flags.FlagValues) -> EvalConfig:
    """Returns the config with the values of those flags that were given on the command line.

    The flag of `eval_batch_size` is `--lanes`; the others have the names of their fields.

    Raises:
        flags.Error: If no evaluation can have these values.
    """
    return reraise_as_flag_error(_override, config, options)


def _override(config: EvalConfig, options: flags.FlagValues) -> EvalConfig:
    if "lanes" in options and options["lanes"].present:
        config = dataclasses.replace(config, eval_batch_size=options.lanes)
    return override(config, options, prefix="")
