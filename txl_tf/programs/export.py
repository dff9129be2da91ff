"""Exports a run for use without txl_tf: as a SavedModel, or for LiteRT or ONNX.

txl export --run runs/text8 --out exported/text8
txl export --run runs/text8 --out exported/phone --format litert --precision int8
"""

import os
from typing import Any

from absl import flags

from txl_tf.config import EvalConfig
from txl_tf.exports.formats import FORMATS
from txl_tf.programs.cli.config_flags import define_config_flags, override_evaluation
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import program
from txl_tf.programs.cli.run_flags import (
    choose_run,
    define_ema_flag,
    define_mask_flag,
    define_run_flags,
    open_chosen_run,
)


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define_run_flags(options)
    out_help = "Folder to write; it must be new or empty."
    define_flag(options, "out", str, None, out_help, required=True, is_path=True)
    texts = "; ".join(f"{name}, {each.text}" for name, each in FORMATS.items())
    format_help = f"What to write: {texts}."
    define_flag(options, "format", str, "saved_model", format_help, choices=tuple(FORMATS))
    define_ema_flag(options)
    span = ("mem_len", "same_length", "clamp_len")
    tgt_len_default = ", ".join(
        f"{each.tgt_len or 'that of the run'} for {name}" for name, each in FORMATS.items()
    )
    define_config_flags(options, EvalConfig, ("tgt_len",), prefix="", otherwise=tgt_len_default)
    define_config_flags(options, EvalConfig, span, prefix="", otherwise="the run's")
    define_mask_flag(options)
    precision_help = (
        "Dtype of the kernels and tables. Narrower ones take less space; not every format supports "
        "all of them. int8 has one scale per output."
    )
    precisions = tuple(dict.fromkeys(name for each in FORMATS.values() for name in each.precisions))
    define_flag(options, "precision", str, "float32", precision_help, choices=precisions)
    defaults = ", ".join(f"{each.batch_size} for {name}" for name, each in FORMATS.items())
    batch_help = (
        f"Number of texts to read at once; more texts need more memory. [default: {defaults}]"
    )
    define_flag(options, "batch_size", int, None, batch_help, lower_bound=1)
    return options


@program(__doc__, define_flags, positional="run")
def main(options: flags.FlagValues) -> None:
    """Writes a run in a format, and prints what was written."""
    found = FORMATS[options.format]
    if options.precision not in found.precisions:
        raise flags.Error(
            f"--precision must be one of {', '.join(found.precisions)} with "
            f"--format={options.format}. Received: --precision={options.precision}"
        )
    choose_run(options)
    lm = open_chosen_run(options, precision=options.precision if found.is_quantized else "float32")
    lm.evaluation = override_evaluation(lm.evaluation, options)
    names = ("format", "precision", "batch_size", "tgt_len", "mask_empty_memory")
    settings: dict[str, Any] = {name: options[name].value for name in names}
    parts = lm.export(options.out, **settings)
    print(f"Wrote {options.out}: {found.text} of step {lm.step:,} with {', '.join(parts)}.")
    if lm.vocabulary is None:
        print("The run has no vocabulary: the model takes ids, not texts.")
    if "README.md" in os.listdir(options.out):
        print(f"{options.out}/README.md lists their inputs and outputs.")
