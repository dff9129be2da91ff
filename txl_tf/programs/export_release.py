"""Exports a run as a checkpoint for the code of the 2019 release.

txl export_release --run runs/wt103 --out exported/wt103
"""

from absl import flags

from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import program
from txl_tf.programs.cli.run_flags import (
    choose_run,
    define_ema_flag,
    define_run_flags,
    open_chosen_run,
)
from txl_tf.runs.folder import read_run_config


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define_run_flags(options)
    out_help = "Folder for model/ and data/."
    define_flag(options, "out", str, None, out_help, required=True, is_path=True)
    define_ema_flag(options)
    return options


@program(__doc__, define_flags, positional="run")
def main(options: flags.FlagValues) -> None:
    """Writes a checkpoint of a run, and its vocabulary, as a folder of the 2019 release."""
    choose_run(options)

    from txl_tf.models.architecture import check_transformer
    from txl_tf.release.weights import export_data, export_model

    check_transformer(read_run_config(options.run).model, "the 2019 release")
    lm = open_chosen_run(options)
    path = export_model(options.out, lm.model, step=lm.step)
    weights = "averaged weights" if lm.is_averaged else "weights"
    print(f"Wrote {path}: the {weights} of {lm.checkpoint}, without the state of the optimizer.")
    if lm.vocabulary is not None:
        export_data(options.out, lm.vocabulary, lm.config, lm.dataset)
        print(f"Wrote {options.out}/data: corpus-info.json and vocabulary.json, but no pickle.")
