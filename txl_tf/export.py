"""Exports a run for processes without txl_tf: a SavedModel, or a file of LiteRT or ONNX.

python -m txl_tf.export --run runs/text8 --out exported/text8
python -m txl_tf.export --run runs/text8 --out exported/phone --format litert --precision int8
"""

import sys

from absl import flags

from txl_tf.cli.config_flags import define_config_flags, override_evaluation
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.cli.run_flags import check_run, define_ema_flag, define_mask_flag, define_run_flags
from txl_tf.config import KERNEL_DTYPES, SAVED_MODEL, STEP_FORMATS, STEP_PRECISIONS, EvalConfig

_OF_STEP = "with --format=litert and onnx"


def main(argv: list[str] = sys.argv) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(__doc__, define_flags(), export_run, argv)


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define_run_flags(options)
    out_help = "Folder to write, which must be new or empty."
    define_flag(options, "out", str, None, out_help, required=True, is_path=True)
    format_help = (
        "What to write: a SavedModel for TensorFlow; or one function of ids and memory, as a file "
        "for LiteRT (phones) or for ONNX runtimes (browsers, other languages)."
    )
    formats = (SAVED_MODEL, *STEP_FORMATS)
    define_flag(options, "format", str, SAVED_MODEL, format_help, choices=formats)
    define_ema_flag(options)
    span = ("mem_len", "same_length", "clamp_len")
    define_config_flags(
        options, EvalConfig, ("tgt_len",), prefix="", otherwise=f"the run's; 1 {_OF_STEP}"
    )
    define_config_flags(options, EvalConfig, span, prefix="", otherwise="the run's")
    define_mask_flag(options)
    precision_help = (
        "Dtype of the kernels and tables: narrower ones take less space. bfloat16 is for "
        "saved_model, float16 for litert and onnx. int8 has a scale for each output."
    )
    precisions = tuple(dict.fromkeys((*KERNEL_DTYPES, *STEP_PRECISIONS)))
    define_flag(options, "precision", str, "float32", precision_help, choices=precisions)
    batch_help = "Number of texts to read at once; more texts need more memory."
    after = f" [default: 8; 1 {_OF_STEP}]"
    define_flag(options, "batch", int, None, batch_help + after, lower_bound=1)
    return options


def export_run(options: flags.FlagValues) -> None:
    """Writes a run in a format and prints what was written."""
    is_step = options.format in STEP_FORMATS
    precisions = STEP_PRECISIONS if is_step else KERNEL_DTYPES
    if options.precision not in precisions:
        raise flags.Error(
            f"--precision must be one of {', '.join(precisions)} with --format={options.format}. "
            f"Received: --precision={options.precision}"
        )
    check_run(options.run)

    from txl_tf.language_model import LanguageModel

    lm = LanguageModel.load(
        options.run,
        checkpoint=options.checkpoint,
        use_ema=options.use_ema,
        precision="float32" if is_step else options.precision,
    )
    lm.evaluation = override_evaluation(lm.evaluation, options)
    names = lm.export(
        options.out,
        format=options.format,
        precision=options.precision if is_step else None,
        batch_size=options.batch,
        tgt_len=options.tgt_len,
        mask_empty_memory=options.mask_empty_memory,
    )
    if is_step:
        print(f"Wrote {options.out}: step {lm.step:,} as {', '.join(names)}.")
        return
    print(f"Wrote {options.out}: a SavedModel of step {lm.step:,} with {', '.join(names)}.")
    if lm.vocabulary is None:
        print("The run has no vocabulary: no signature takes texts.")
    print(f"{options.out}/README.md lists their inputs and outputs.")


if __name__ == "__main__":
    sys.exit(main())
