"""Goes on with a text, token by token, and prints it as it comes.

python -m txl_tf.generate --run runs/text8 --prompt "once upon a time"
"""

import sys
from itertools import chain

from absl import flags

from txl_tf.errors import UserError
from txl_tf.program import define_flag, run_program


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(str(__doc__), define_flags(), generate_text, argv, positional="run")


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, not yet read."""
    options = flags.FlagValues()

    def define(name: str, kind: type, default: object, text: str, **rules: object) -> None:
        define_flag(options, name, kind, default, text, **rules)

    define("run", str, None, "Folder of the run.", required=True)
    define("prompt", str, None, "Text to go on with. [default: standard input]")
    define("length", int, 300, "Tokens to add.", lower_bound=0)
    define("temperature", float, 0.95, "Below 1: likelier; 0: the likeliest.", lower_bound=0)
    define("top_k", int, 40, "Draw among so many likeliest tokens; 0 for all.", lower_bound=0)
    define("top_p", float, 1.0, "Draw among the likeliest that together have this probability.")
    define("repetition_penalty", float, 1.0, "Above 1: what the text holds comes less.")
    define("seed", int, 0, "The same seed, the same text.", lower_bound=0)
    define("samples", int, 1, "Texts to make, with seeds from --seed on.", lower_bound=1)
    define("ban", list, None, "Symbols that do not come. [default: the unknown one]")
    define("stop", list, [], "Symbols that end a text.")
    define("mask_empty_memory", bool, True, "Hide places of the memory that hold nothing yet.")
    define("raw", bool, False, "Print words of WikiText as the model writes them, @-@ and all.")
    define("checkpoint", str, None, "Path of the checkpoint. [default: the newest]")
    return options


def generate_text(options: flags.FlagValues) -> None:
    """Prints the prompt and what the model adds to it.

    Raises:
        flags.Error: a flag is out of its range.
        UserError: there is no such run, or the prompt is empty or holds an unknown symbol.
    """
    if not 0 < options.top_p <= 1:
        raise flags.Error(f"--top_p must be in (0, 1]. Received: {options.top_p}")
    if options.repetition_penalty < 1:
        raise flags.Error(
            f"--repetition_penalty must be 1 or more. Received: {options.repetition_penalty}"
        )
    prompt = sys.stdin.read() if options.prompt is None else options.prompt

    import txl_tf
    from txl_tf.data.wikitext import is_wikitext, stream_wikitext

    lm = txl_tf.load(options.run, checkpoint=options.checkpoint)
    if lm.vocabulary is None:
        raise UserError(f"`{options.run}` has no vocabulary: it knows ids, not text")
    is_readable = is_wikitext(lm.vocabulary.symbols) and not options.raw
    for sample in range(options.samples):
        if options.samples > 1:
            print(f"--- seed {options.seed + sample}")
        pieces = lm.stream(
            prompt,
            max_new_tokens=options.length,
            seed=options.seed + sample,
            temperature=options.temperature,
            top_k=options.top_k or None,
            top_p=None if options.top_p == 1 else options.top_p,
            repetition_penalty=options.repetition_penalty,
            banned=options.ban,
            stops=options.stop,
            mask_empty_memory=options.mask_empty_memory,
        )
        whole = chain([prompt], pieces)
        for piece in stream_wikitext(whole) if is_readable else whole:
            print(piece, end="", flush=True)
        print()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
