"""Continues a text, token by token, and prints it as it comes.

python -m txl_tf.generate --run runs/text8 --prompt "once upon a time"
"""

import functools
import io
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from absl import flags

from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.errors import UserError

if TYPE_CHECKING:
    from txl_tf.inference.text_reader import TextReader

MAX_SEED = 2**63 - 1  # the generator takes int64
_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(__doc__, define_flags(), generate_text, argv, positional="run")


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, not yet read."""
    options = flags.FlagValues()
    define_flag(options, "run", str, None, "Folder of the run.", required=True, is_path=True)
    define_flag(options, "prompt", str, None, "Text to continue. [default: standard input]")
    define_flag(options, "length", int, 300, "Number of tokens to add.", lower_bound=0)
    define_flag(
        options,
        "temperature",
        float,
        0.95,
        "Values below 1 favour likely tokens; 0 always takes the likeliest.",
        lower_bound=0,
    )
    define_flag(
        options,
        "top_k",
        int,
        40,
        "Sample from this many of the likeliest tokens; 0 for all.",
        lower_bound=0,
    )
    define_flag(
        options,
        "top_p",
        float,
        1.0,
        "Nucleus sampling: sample from the likeliest tokens that together have this probability.",
        upper_bound=1,
    )
    define_flag(
        options,
        "repetition_penalty",
        float,
        1.0,
        "Values above 1 make tokens that the text already holds less likely.",
        lower_bound=1,
    )
    define_flag(
        options,
        "seed",
        int,
        0,
        "Seed of the random numbers; the same seed gives the same text.",
        lower_bound=0,
        upper_bound=MAX_SEED,
    )
    define_flag(
        options,
        "samples",
        int,
        1,
        "Number of texts, with ascending seeds from --seed.",
        lower_bound=1,
    )
    escapes = r"\n, \t and \\ are a line break, a tab and a backslash."
    define_flag(
        options,
        "ban",
        str,
        None,
        f"Symbol or character that is never generated. {escapes} [default: the unknown symbol]",
        multiple=True,
    )
    define_flag(
        options,
        "stop",
        str,
        [],
        f"Symbol, or text of any length, at which generation ends. {escapes}",
        multiple=True,
    )
    define_flag(
        options,
        "mask_empty_memory",
        bool,
        True,
        "Hide the empty memory, so that a text sees nothing before its first token.",
    )
    define_flag(
        options,
        "raw",
        bool,
        False,
        "Print words of WikiText as the model writes them, with @-@ and the like.",
    )
    define_flag(
        options,
        "checkpoint",
        str,
        None,
        "Path of the checkpoint to use. [default: the newest]",
        is_path=True,
    )
    return options


def generate_text(options: flags.FlagValues) -> None:
    """Prints the prompt and what the model adds to it.

    Raises:
        flags.Error: a flag is out of its range.
        UserError: there is no such run, or the prompt is empty or holds an unknown symbol.
    """
    _check_flags(options)
    bans, stops = (_read_texts(name, options[name].value) for name in ("ban", "stop"))
    prompt = _read_prompt(options)

    import txl_tf
    from txl_tf.data.wikitext import is_wikitext, stream_wikitext
    from txl_tf.inference.text_reader import TextReader

    lm = txl_tf.load(options.run, checkpoint=options.checkpoint)
    if lm.vocabulary is None:
        raise UserError(f"`{options.run}` has no vocabulary: it knows ids, not text")
    try:
        # With spaces as the model sees them: one between two words.
        read = lm.vocabulary.decode(lm.vocabulary.encode(prompt))
    except UserError as error:
        raise UserError(f"the prompt: {error}") from error
    reader = TextReader(lm.vocabulary, lm.config.n_token)
    draw = functools.partial(
        lm.stream,
        prompt,
        max_new_tokens=options.length,
        temperature=options.temperature,
        top_k=options.top_k or None,
        top_p=None if options.top_p == 1 else options.top_p,
        repetition_penalty=options.repetition_penalty,
        banned=None if bans is None else _split_lists("ban", bans, reader.find_ids, reader),
        stops=_split_lists("stop", stops or [], reader.make_stops, reader),
        mask_empty_memory=options.mask_empty_memory,
    )
    is_readable = is_wikitext(lm.vocabulary.symbols) and not options.raw
    for seed in range(options.seed, options.seed + options.samples):
        pieces = draw(seed=seed)
        if options.samples > 1:
            print(f"--- seed {seed}")
        _print(stream_wikitext(chain([read], pieces)) if is_readable else chain([prompt], pieces))


def _print(pieces: Iterable[str]) -> None:
    """Prints the pieces of a text as they come."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal writes all characters
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        print()  # the line that says so begins a new one
        raise
    print()


def _check_flags(options: flags.FlagValues) -> None:
    """Checks what can be known without the run.

    Raises:
        flags.Error: a value is out of its range.
    """
    if options.top_p <= 0:
        raise flags.Error(f"--top_p must be in (0, 1]. Received: {options.top_p}")
    if options.seed + options.samples - 1 > MAX_SEED:
        raise flags.Error(
            f"the last seed, --seed + --samples - 1, must be an integer <= {MAX_SEED}. "
            f"Received: --seed={options.seed} --samples={options.samples}"
        )


def _read_texts(name: str, values: Sequence[str] | None) -> list[str] | None:
    r"""Returns the texts that a flag was given, with their escapes read; empty ones are none.

    Raises:
        flags.Error: a backslash is followed by something else than n, t or a backslash.
    """

    def read(match: re.Match[str]) -> str:
        if match[0] not in _ESCAPES:
            raise flags.Error(
                rf"--{name}: a backslash must be one of \n, \t, \\. Received: {match[0]}"
            )
        return _ESCAPES[match[0]]

    if values is None:
        return None
    return [re.sub(r"\\.?", read, value, flags=re.DOTALL) for value in values if value]


def _split_lists(
    name: str, values: Sequence[str], read: Callable[[Sequence[str]], object], reader: "TextReader"
) -> list[str]:
    """Returns the values of a flag; those that can only be lists of symbols are split at commas.

    Lists were once the only way to give several. Where a value can be a list and one text, it is
    one text, and a line says so.

    Args:
        name: the flag.
        values: what it was given.
        read: fails on what the flag does not take.
        reader: knows the symbols.
    """
    found: list[str] = []
    for value in values:
        parts = value.split(",")
        if len(parts) == 1 or not _is_read(reader.find_ids, parts):
            found.append(value)
        elif _is_read(read, [value]):
            found.append(value)
            print(
                f"generate: --{name} {value!r} is one text, with its comma; "
                f"for several give --{name} several times",
                file=sys.stderr,
            )
        else:
            found += parts
    return found


def _is_read(read: Callable[[Sequence[str]], object], values: Sequence[str]) -> bool:
    try:
        read(values)
    except UserError:
        return False
    return True


def _read_prompt(options: flags.FlagValues) -> str:
    """Returns the prompt that the flags or the standard input give.

    Raises:
        UserError: it is not UTF-8.
    """
    prompt = options.prompt
    if prompt is None:
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
        elif sys.stdin is None:
            raise UserError("--prompt must be given where there is no standard input")
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
