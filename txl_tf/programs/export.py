"""Exports a run for processes without txl_tf: as a SavedModel, or for LiteRT or ONNX.

txl export --run runs/text8 --out exported/text8
txl export --run runs/text8 --out exported/phone --format litert --precision int8
"""

import os
import sys
from typing import Any

from absl import flags

from txl_tf.config import KERNEL_DTYPES, EvalConfig
from txl_tf.programs.cli.config_flags import define_config_flags, override_evaluation
from txl_tf.programs.cli.flags import define_flag, define_second_name
from txl_tf.programs.cli.program import run_program
from txl_tf.programs.cli.run_flags import (
    choose_run,
    define_ema_flag,
    define_mask_flag,
    define_run_flags,
    open_chosen_run,
)

_STEP_PRECISIONS = ("float32", "float16", "int8")
# What each format is, and in which precisions it stores kernels and tables.
_FORMATS = {
    "saved_model": ("a SavedModel", KERNEL_DTYPES),
    "litert": ("a LiteRT model", _STEP_PRECISIONS),
    "onnx": ("an ONNX model", _STEP_PRECISIONS),
}


def main(argv: list[str] = sys.argv) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(__doc__, define_flags(), export_run, argv, positional="run")


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define_run_flags(options)
    out_help = "Folder to write, which must be new or empty."
    define_flag(options, "out", str, None, out_help, required=True, is_path=True)
    texts = "; ".join(f"{name}, {text}" for name, (text, _) in _FORMATS.items())
    format_help = f"What to write: {texts}."
    define_flag(options, "format", str, "saved_model", format_help, choices=tuple(_FORMATS))
    define_ema_flag(options)
    span = ("mem_len", "same_length", "clamp_len")
    tgt_len_default = "that of the run for saved_model, 1 for litert, 1 for onnx"
    define_config_flags(options, EvalConfig, ("tgt_len",), prefix="", otherwise=tgt_len_default)
    define_config_flags(options, EvalConfig, span, prefix="", otherwise="the run's")
    define_mask_flag(options)
    precision_help = (
        "Dtype of the kernels and tables: narrower ones take less space, and not every format has "
        "all. int8 has a scale for each output."
    )
    precisions = tuple(dict.fromkeys((*KERNEL_DTYPES, *_STEP_PRECISIONS)))
    define_flag(options, "precision", str, "float32", precision_help, choices=precisions)
    batch_help = (
        "Number of texts to read at once; more texts need more memory. "
        "[default: 8 for saved_model, 1 for litert, 1 for onnx]"
    )
    define_flag(options, "batch_size", int, None, batch_help, lower_bound=1)
    define_second_name(options, "batch", "batch_size")
    return options


def export_run(options: flags.FlagValues) -> None:
    """Writes a run in a format and prints what was written."""
    text, precisions = _FORMATS[options.format]
    if options.precision not in precisions:
        raise flags.Error(
            f"--precision must be one of {', '.join(precisions)} with "
            f"--format={options.format}. Received: --precision={options.precision}"
        )
    choose_run(options)
    is_saved_model = options.format == "saved_model"
    lm = open_chosen_run(options, precision=options.precision if is_saved_model else "float32")
    lm.evaluation = override_evaluation(lm.evaluation, options)
    names = ("format", "precision", "batch_size", "tgt_len", "mask_empty_memory")
    values: dict[str, Any] = {name: options[name].value for name in names}
    settings = {name: value for name, value in values.items() if value is not None}
    if is_saved_model:
        parts = lm.export(options.out, **settings)
    else:
        from txl_tf.apps.step_files import export_step

        parts = export_step(lm, options.out, **settings)
    print(f"Wrote {options.out}: {text} of step {lm.step:,} with {', '.join(parts)}.")
    if lm.vocabulary is None:
        print("The run has no vocabulary: the model takes ids, not texts.")
    if "README.md" in os.listdir(options.out):
        print(f"{options.out}/README.md lists their inputs and outputs.")
