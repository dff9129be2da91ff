"""Exports a run as a SavedModel, which scores and generates without txl_tf.

python -m txl_tf.export --run runs/text8 --out exported/text8
"""

import sys

from absl import flags

from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.cli.span_flags import define_span_flags, override_evaluation


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(__doc__, define_flags(), export_run, argv)


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, not yet read."""
    options = flags.FlagValues()
    define_flag(options, "run", str, None, "Folder of the run.", required=True, is_path=True)
    define_flag(
        options,
        "out",
        str,
        None,
        "Folder to write, which must be new or empty.",
        required=True,
        is_path=True,
    )
    define_flag(
        options,
        "checkpoint",
        str,
        None,
        "Path of the checkpoint to export. [default: the newest]",
        is_path=True,
    )
    define_flag(options, "use_ema", bool, True, "Use averaged weights if the checkpoint has them.")
    define_span_flags(options, "the run's")
    define_flag(
        options,
        "mask_empty_memory",
        bool,
        True,
        "Hide the empty memory, so that a text sees nothing before its first token.",
    )
    define_flag(
        options,
        "batch",
        int,
        8,
        "Number of texts to read at once; more need more memory.",
        lower_bound=1,
    )
    return options


def export_run(options: flags.FlagValues) -> None:
    """Writes a SavedModel of a run, and says what it holds.

    Raises:
        flags.Error: no model can look as far as the flags say.
        UserError: there is no such run, or the folder holds something or cannot be written.
    """
    from txl_tf.inference import LanguageModel

    lm = LanguageModel.load(options.run, checkpoint=options.checkpoint, use_ema=options.use_ema)
    lm.evaluation = override_evaluation(lm.evaluation, options)
    names = lm.export(
        options.out, batch_size=options.batch, mask_empty_memory=options.mask_empty_memory
    )
    print(f"Wrote {options.out}: a SavedModel of step {lm.step:,} with {', '.join(names)}.")
    if lm.vocabulary is None:
        print("The run has no vocabulary: no signature takes texts.")
    print(f"{options.out}/README.md says what they take and return.")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
