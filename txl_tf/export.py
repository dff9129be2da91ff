"""Exports a run as a SavedModel, which scores and generates without txl_tf.

python -m txl_tf.export --run runs/text8 --out exported/text8
"""

import dataclasses
import functools
import sys
from typing import Any

from absl import flags

from txl_tf.errors import UserError
from txl_tf.program import define_flag, run_program

_SPAN_FLAGS = ("tgt_len", "mem_len", "same_length", "clamp_len")


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(str(__doc__), define_flags(), export_run, argv)


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, not yet read."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    of_run = "[default: the run's]"
    define("run", str, None, "Folder of the run.", required=True)
    define("out", str, None, "Folder to make, new or empty.", required=True)
    define("checkpoint", str, None, "Checkpoint to export. [default: the newest]")
    define("use_ema", bool, True, "Take averaged weights where there are any.")
    define("tgt_len", int, None, f"Segment length. {of_run}", lower_bound=1)
    define("mem_len", int, None, f"Memory length; 0 for none. {of_run}", lower_bound=0)
    define("same_length", bool, None, f"Every token sees mem_len + 1 keys. {of_run}")
    define("clamp_len", int, None, f"Longest distance; -1 for no limit. {of_run}")
    define("mask_empty_memory", bool, True, "A text sees nothing before its first token.")
    define("batch", int, 8, "Texts to read at once; more take more memory.", lower_bound=1)
    return options


def export_run(options: flags.FlagValues) -> None:
    """Writes a SavedModel of a run, and says what it holds.

    Raises:
        flags.Error: no model can look as far as the flags say.
        UserError: there is no such run, or the folder holds something or cannot be written.
    """
    from txl_tf.inference import LanguageModel

    lm = LanguageModel.load(
        options.run, checkpoint=options.checkpoint, use_averages=options.use_ema
    )
    given: dict[str, Any] = {
        name: options[name].value for name in _SPAN_FLAGS if options[name].present
    }
    try:
        lm.evaluation = dataclasses.replace(lm.evaluation, **given)
    except UserError as error:
        raise flags.Error(str(error)) from error
    names = lm.export(
        options.out, batch_size=options.batch, mask_empty_memory=options.mask_empty_memory
    )
    print(f"Wrote {options.out}: a SavedModel of step {lm.step:,} with {', '.join(names)}.")
    if lm.vocabulary is None:
        print("The run has no vocabulary: there are no signatures that take texts.")
    print(f"{options.out}/README.md tells what they take and give.")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
