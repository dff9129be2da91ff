"""Continues a prompt, one token at a time, and prints the text while it is generated.

python -m txl_tf.generate --run runs/text8 --prompt "once upon a time"
"""

import io
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import chain

from absl import flags

from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.cli.run_flags import (
    check_run,
    check_seeds,
    define_candidate_flags,
    define_draft_flag,
    define_mask_flag,
    define_precision_flag,
    define_run_flags,
    define_seed_flags,
)
from txl_tf.errors import UserError, explain_errors

_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}


def main(argv: list[str] = sys.argv) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(__doc__, define_flags(), generate_text, argv, positional="run")


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define_run_flags(options)
    define_flag(options, "prompt", str, None, "Text to continue. [default: standard input]")
    define_flag(options, "length", int, 300, "Number of tokens to add.", lower_bound=0)
    define_candidate_flags(options)
    top_p_help = (
        "Nucleus sampling: sample from the most likely tokens that together have this probability."
    )
    define_flag(options, "top_p", float, 1.0, top_p_help, upper_bound=1)
    penalty_help = "Values above 1 make tokens that the text already contains less likely."
    define_flag(options, "repetition_penalty", float, 1.0, penalty_help, lower_bound=1)
    define_seed_flags(options, samples=1)
    escapes = r"\n, \t and \\ are a line break, a tab and a backslash."
    ban_help = (
        f"Symbol or character that is never generated. {escapes} [default: the unknown symbol]"
    )
    define_flag(options, "ban", str, None, ban_help, multiple=True)
    stop_help = f"Symbol, or text of any length, at which generation ends. {escapes}"
    define_flag(options, "stop", str, [], stop_help, multiple=True)
    define_draft_flag(options)
    define_mask_flag(options)
    define_precision_flag(options)
    tokenize_help = "Tokenize the prompt as WikiText was, for its word models."
    define_flag(options, "tokenize_wikitext", bool, False, tokenize_help)
    raw_help = "Print words of WikiText as the model writes them, with @-@ and the like."
    define_flag(options, "raw", bool, False, raw_help)
    return options


def generate_text(options: flags.FlagValues) -> None:
    """Prints the prompt and its continuation."""
    if options.top_p <= 0:
        raise flags.Error(f"--top_p must be in (0, 1]. Received: {options.top_p}")
    check_seeds(options)
    bans, stops = (_read_texts(name, options[name].value) for name in ("ban", "stop"))
    check_run(options.run)
    prompt = options.prompt
    if prompt is None:
        prompt = _read_standard_input()
    _check_utf8(prompt)

    import txl_tf
    from txl_tf.data.text.wikitext import (
        check_wikitext,
        is_wikitext,
        stream_wikitext,
        tokenize_wikitext,
    )

    lm = txl_tf.load(options.run, checkpoint=options.checkpoint, precision=options.precision)
    if lm.vocabulary is None:
        raise UserError(f"`{options.run}` has no vocabulary: it cannot encode texts")
    if options.tokenize_wikitext:
        check_wikitext(lm.vocabulary)
        prompt = tokenize_wikitext(prompt)
    with explain_errors("the prompt", UserError):
        # With spaces as the model sees them: a single one between two words.
        normalized = lm.vocabulary.decode(lm.vocabulary.encode(prompt))
    is_readable = is_wikitext(lm.vocabulary.symbols) and not options.raw
    for seed in range(options.seed, options.seed + options.samples):
        pieces = lm.stream(
            prompt,
            max_new_tokens=options.length,
            seed=seed,
            temperature=options.temperature,
            top_k=options.top_k or None,
            top_p=None if options.top_p == 1 else options.top_p,
            repetition_penalty=options.repetition_penalty,
            banned=bans,
            stops=stops or [],
            mask_empty_memory=options.mask_empty_memory,
            draft_len=options.draft_len,
        )
        if options.samples > 1:
            print(f"--- seed {seed}")
        if is_readable:
            _print(stream_wikitext(chain([normalized], pieces)))
        else:
            _print(chain([prompt], pieces))


def _print(pieces: Iterable[str]) -> None:
    """Prints the pieces of a text while they are generated."""
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        print()  # the message begins a new line
        raise
    print()


def _read_texts(name: str, values: Sequence[str] | None) -> list[str] | None:
    r"""Returns the non-empty values of a flag, with their escapes replaced."""

    def unescape(match: re.Match[str]) -> str:
        if match[0] not in _ESCAPES:
            raise flags.Error(
                rf"--{name}: a backslash must be one of \n, \t, \\. Received: {match[0]}"
            )
        return _ESCAPES[match[0]]

    if values is None:
        return None
    return [re.sub(r"\\.?", unescape, value, flags=re.DOTALL) for value in values if value]


def _read_standard_input() -> str:
    if sys.stdin is None:
        raise UserError("--prompt must be given if there is no standard input")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    return sys.stdin.read()


def _check_utf8(prompt: str) -> None:
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        byte = ord(prompt[error.start]) & 0xFF
        offset = len(prompt[: error.start].encode("utf-8"))
        raise UserError(f"the prompt is not UTF-8: byte 0x{byte:02x} at offset {offset}") from error


if __name__ == "__main__":
    sys.exit(main())
