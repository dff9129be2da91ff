"""Averages the weights of several checkpoints of a run into a new checkpoint.

txl average --run runs/wt103 --last 5
"""

import shlex

from absl import flags

from txl_tf.programs.cli.flags import define_flag, parse_integers
from txl_tf.programs.cli.program import program
from txl_tf.programs.cli.run_flags import choose_run, define_run_flag


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define_run_flag(options)
    define_flag(options, "last", int, 5, "Number of newest checkpoints to average.", lower_bound=2)
    define_flag(
        options, "steps", list, None, "Steps of the checkpoints to average, instead of --last."
    )
    define_flag(options, "overwrite", bool, False, "Replace an existing average.")
    return options


@program(__doc__, define_flags, positional="run")
def main(options: flags.FlagValues) -> None:
    """Averages checkpoints, and prints how to evaluate the result."""
    if options.steps is not None and options["last"].present:
        raise flags.Error("--last and --steps cannot be used together")
    steps = None if options.steps is None else parse_integers("steps", options.steps)

    choose_run(options)

    from txl_tf.runs.folder import knows_data
    from txl_tf.training.averages import choose_checkpoints, save_mean

    model_dir = options.run
    chosen = choose_checkpoints(model_dir, last=options.last, steps=steps)
    listed = ", ".join(str(step) for step, _ in chosen)
    print(f"Averaging the weights of {len(chosen)} checkpoints of {model_dir}: steps {listed}.")
    path, has_averages = save_mean(model_dir, chosen, overwrite=options.overwrite)
    if has_averages:
        print("Their averaged weights (--ema, --average_from) are left out.")
    arguments = [] if knows_data(model_dir) else ["--data_dir=DATA_DIR"]
    arguments += [f"--model_dir={shlex.quote(model_dir)}", f"--eval_ckpt_path={shlex.quote(path)}"]
    print(f"Saved {path}. To evaluate it:")
    print(f"txl train {' '.join(arguments)} --do_train=false --do_eval")
