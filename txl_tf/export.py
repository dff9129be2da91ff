"""Exports a run as a SavedModel, which scores and generates text without txl_tf.

python -m txl_tf.export --run runs/text8 --out exported/text8
"""

import sys

from absl import flags

from txl_tf.cli.config_flags import define_span_flags, override_evaluation
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.cli.run_flags import (
    define_ema_flag,
    define_mask_flag,
    define_precision_flag,
    define_run_flags,
)


def main(argv: list[str] = sys.argv) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(__doc__, define_flags(), export_saved_model, argv)


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define_run_flags(options)
    out_help = "Folder to write, which must be new or empty."
    define_flag(options, "out", str, None, out_help, required=True, is_path=True)
    define_ema_flag(options)
    define_span_flags(options, "the run's")
    define_mask_flag(options)
    define_precision_flag(options)
    batch_help = "Number of texts to read at once; more texts need more memory."
    define_flag(options, "batch", int, 8, batch_help, lower_bound=1)
    return options


def export_saved_model(options: flags.FlagValues) -> None:
    """Writes a SavedModel of a run and prints its signatures.

    Raises:
        flags.Error: If the span flags are invalid.
        UserError: If there is no such run, or the folder is not empty or cannot be written.
    """
    from txl_tf.inference import LanguageModel

    lm = LanguageModel.load(
        options.run,
        checkpoint=options.checkpoint,
        use_ema=options.use_ema,
        precision=options.precision,
    )
    lm.evaluation = override_evaluation(lm.evaluation, options)
    names = lm.export(
        options.out, batch_size=options.batch, mask_empty_memory=options.mask_empty_memory
    )
    print(f"Wrote {options.out}: a SavedModel of step {lm.step:,} with {', '.join(names)}.")
    if lm.vocabulary is None:
        print("The run has no vocabulary: no signature takes texts.")
    print(f"{options.out}/README.md lists their inputs and outputs.")


if __name__ == "__main__":
    sys.exit(main())
