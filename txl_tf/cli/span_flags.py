"""The flags by which a run is read otherwise than its config says: segment, span, lanes."""

import dataclasses
import functools

from absl import flags

from txl_tf.cli.config_flags import answer_as_flags, override
from txl_tf.cli.program import define_flag
from txl_tf.config import EvalConfig


def define_span_flags(options: flags.FlagValues, note: str) -> None:
    """Defines the flags of segment and span; `note` says what holds where they are not given."""
    define = functools.partial(define_flag, options)
    define("tgt_len", int, None, f"Segment length. {note}", lower_bound=1)
    define("mem_len", int, None, f"Memory length; 0 for none. {note}", lower_bound=0)
    define("same_length", bool, None, f"Every token sees mem_len + 1 keys. {note}")
    define("clamp_len", int, None, f"Longest distance; -1 for no limit. {note}")


def override_evaluation(config: EvalConfig, options: flags.FlagValues) -> EvalConfig:
    """Returns the config with those of its fields whose flags are there and were given by hand.

    That of `eval_batch_size` is called `lanes`, the others are called as their fields.

    Raises:
        flags.Error: no evaluation can have them.
    """
    return answer_as_flags(_override, config, options)


def _override(config: EvalConfig, options: flags.FlagValues) -> EvalConfig:
    if "lanes" in options and options["lanes"].present:
        config = dataclasses.replace(config, eval_batch_size=options.lanes)
    return override(config, options, prefix="")
