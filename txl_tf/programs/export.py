"""Exports a run for processes without txl_tf: as a SavedModel, or for LiteRT or ONNX.

txl export --run runs/text8 --out exported/text8
txl export --run runs/text8 --out exported/phone --format litert --precision int8
"""

import os
import sys

from absl import flags

from txl_tf.config import EvalConfig
from txl_tf.exports.formats import FORMATS
from txl_tf.programs.cli.config_flags import define_config_flags, override_evaluation
from txl_tf.programs.cli.flags import define_flag, define_second_name
from txl_tf.programs.cli.program import run_program
from txl_tf.programs.cli.run_flags import (
    choose_run,
    define_ema_flag,
    define_mask_flag,
    define_run_flags,
)


def main(argv: list[str] = sys.argv) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(__doc__, define_flags(), export_run, argv, positional="run")


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define_run_flags(options)
    out_help = "Folder to write, which must be new or empty."
    define_flag(options, "out", str, None, out_help, required=True, is_path=True)
    formats = tuple(FORMATS)
    format_help = "What to write: " + "; ".join(f"{n}, {FORMATS[n].text}" for n in formats) + "."
    define_flag(options, "format", str, formats[0], format_help, choices=formats)
    define_ema_flag(options)
    span = ("mem_len", "same_length", "clamp_len")
    define_config_flags(
        options, EvalConfig, ("tgt_len",), prefix="", otherwise=_list_defaults("tgt_len")
    )
    define_config_flags(options, EvalConfig, span, prefix="", otherwise="the run's")
    define_mask_flag(options)
    precision_help = (
        "Dtype of the kernels and tables: narrower ones take less space, and not every format has "
        "all. int8 has a scale for each output."
    )
    precisions = dict.fromkeys(name for kind in FORMATS.values() for name in kind.precisions)
    define_flag(options, "precision", str, "float32", precision_help, choices=tuple(precisions))
    batch_help = "Number of texts to read at once; more texts need more memory."
    batch_help += f" [default: {_list_defaults('batch_size')}]"
    define_flag(options, "batch_size", int, None, batch_help, lower_bound=1)
    define_second_name(options, "batch", "batch_size")
    return options


def _list_defaults(name: str) -> str:
    """Returns the default of a setting in each format."""
    defaults = ((kind, getattr(FORMATS[kind], name)) for kind in FORMATS)
    return ", ".join(f"{value or 'that of the run'} for {kind}" for kind, value in defaults)


def export_run(options: flags.FlagValues) -> None:
    """Writes a run in a format and prints what was written."""
    kind = FORMATS[options.format]
    if options.precision not in kind.precisions:
        raise flags.Error(
            f"--precision must be one of {', '.join(kind.precisions)} with "
            f"--format={options.format}. Received: --precision={options.precision}"
        )
    choose_run(options)

    from txl_tf.language_model import LanguageModel

    lm = LanguageModel.load(
        options.run,
        checkpoint=options.checkpoint,
        use_ema=options.use_ema,
        precision="float32" if kind.rounds_weights else options.precision,
    )
    lm.evaluation = override_evaluation(lm.evaluation, options)
    names = lm.export(
        options.out,
        format=options.format,
        precision=options.precision,
        batch_size=options.batch_size,
        tgt_len=options.tgt_len,
        mask_empty_memory=options.mask_empty_memory,
    )
    print(f"Wrote {options.out}: {kind.text} of step {lm.step:,} with {', '.join(names)}.")
    if lm.vocabulary is None:
        print("The run has no vocabulary: the model takes ids, not texts.")
    if "README.md" in os.listdir(options.out):
        print(f"{options.out}/README.md lists their inputs and outputs.")
