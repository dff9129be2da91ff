"""Goes on with a text, token by token, and prints it as it comes.

python -m txl_tf.generate --run runs/text8 --prompt "once upon a time"
"""

import functools
import io
import sys
from itertools import chain

from absl import flags

from txl_tf.errors import UserError
from txl_tf.program import define_flag, run_program

MAX_SEED = 2**63 - 1  # the generator takes int64


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(str(__doc__), define_flags(), generate_text, argv, positional="run")


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, not yet read."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    define("run", str, None, "Folder of the run.", required=True)
    define("prompt", str, None, "Text to go on with. [default: standard input]")
    define("length", int, 300, "Tokens to add.", lower_bound=0)
    define("temperature", float, 0.95, "Below 1: likelier; 0: the likeliest.", lower_bound=0)
    define("top_k", int, 40, "Draw among so many likeliest tokens; 0 for all.", lower_bound=0)
    define("top_p", float, 1.0, "Draw among the likeliest that together have this probability.")
    define("repetition_penalty", float, 1.0, "Above 1: what the text holds comes less.")
    define(
        *("seed", int, 0, "The same seed, the same text."),
        lower_bound=0,
        upper_bound=MAX_SEED,
    )
    define("samples", int, 1, "Texts to make, with seeds from --seed on.", lower_bound=1)
    define(
        "ban", list, None, "Symbols, or characters, that do not come. [default: the unknown one]"
    )
    define("stop", list, [], "Symbols, or characters, that end a text.")
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
    if options.seed + options.samples - 1 > MAX_SEED:
        raise flags.Error(
            f"the last seed, --seed + --samples - 1, must be an integer <= {MAX_SEED}. "
            f"Received: --seed={options.seed} --samples={options.samples}"
        )
    prompt = _read_prompt(options)

    import txl_tf
    from txl_tf.data.wikitext import is_wikitext, stream_wikitext

    lm = txl_tf.load(options.run, checkpoint=options.checkpoint)
    if lm.vocabulary is None:
        raise UserError(f"`{options.run}` has no vocabulary: it knows ids, not text")
    is_readable = is_wikitext(lm.vocabulary.symbols) and not options.raw
    for sample in range(options.samples):
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
        if options.samples > 1:
            print(f"--- seed {options.seed + sample}")
        if is_readable:
            # With spaces as the model sees them: one between two words.
            read = lm.vocabulary.decode(lm.vocabulary.encode(prompt))
            pieces = stream_wikitext(chain([read], pieces))
        else:
            print(prompt, end="", flush=True)
        for piece in pieces:
            print(piece, end="", flush=True)
        print()


def _read_prompt(options: flags.FlagValues) -> str:
    """Returns the prompt that the flags or the standard input give.

    Raises:
        UserError: it is not UTF-8.
    """
    prompt = options.prompt
    if prompt is None:
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
        prompt = sys.stdin.read()
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        byte = ord(prompt[error.start]) & 0xFF
        raise UserError(
            f"the prompt is not UTF-8: byte 0x{byte:02x} at offset "
            f"{len(prompt[: error.start].encode('utf-8'))}"
        ) from error
    return prompt


if __name__ == "__main__":
    sys.exit(main(sys.argv))
