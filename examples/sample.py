"""Goes on with a text, token by token, with the memory of all before it.

python examples/sample.py --model_dir runs/demo --prompt "Return the" --length 300
"""

import sys

from absl import flags

from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, not yet read."""
    options = flags.FlagValues()
    define_flag(options, "model_dir", str, None, "Folder of the run.", required=True, is_path=True)
    define_flag(options, "prompt", str, "Return ", "Text to continue.")
    define_flag(options, "length", int, 300, "Number of tokens to add.", lower_bound=1)
    define_flag(
        options, "temperature", float, 0.8, "Values below 1 favour likely tokens.", lower_bound=0
    )
    define_flag(options, "seed", int, 0, "The same seed gives the same text.", lower_bound=0)
    return options


def print_sample(options: flags.FlagValues) -> None:
    """Loads the newest checkpoint of a run and prints a text that begins with the prompt."""
    import txl_tf

    text = txl_tf.load(options.model_dir).generate(
        options.prompt,
        max_new_tokens=options.length,
        temperature=options.temperature,
        seed=options.seed,
    )
    print(options.prompt + text)


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(__doc__, define_flags(), print_sample, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
