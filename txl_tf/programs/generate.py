"""Continues prompts, one token at a time, and prints the text as it is generated.

txl generate --run runs/text8 --prompt "once upon a time"
txl generate --run runs/text8 --interactive
"""

import functools
import io
import json
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, product
from typing import TYPE_CHECKING, Any

from absl import flags

from txl_tf.data.text.text_files import read_small_text
from txl_tf.errors import UserError, explain_errors
from txl_tf.programs.cli.flags import define_flag, define_second_name
from txl_tf.programs.cli.program import program
from txl_tf.programs.cli.run_flags import (
    check_seeds,
    choose_run,
    define_candidate_flags,
    define_mask_flag,
    define_precision_flag,
    define_run_flags,
    define_seed_flags,
    open_chosen_run,
    warn_of_no_memory,
)

if TYPE_CHECKING:
    from txl_tf.generation.session import Session
    from txl_tf.language_model import LanguageModel

_KEYS = "An empty line continues the text, Ctrl-C stops an answer, Ctrl-D ends the program."
_Spell = Callable[[Iterable[str]], Iterable[str]]
_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    define_run_flags(options)
    define("prompt", str, None, "Text to continue. [default: standard input]", multiple=True)
    text = "File whose text to continue; a dash is standard input."
    define("prompt_file", str, None, text, is_path=True)
    text = f"Continue each line that is typed, with one memory for all of them. {_KEYS}"
    define("interactive", bool, False, text)
    define("no_prompt", bool, False, "Print only the generated text, without the prompt.")
    define("json", bool, False, "Print a line of JSON for each text: prompt, seed and text.")
    define("max_new_tokens", int, 300, "Largest number of tokens to add.", lower_bound=0)
    define_second_name(options, "length", "max_new_tokens")
    define_candidate_flags(options)
    text = "Nucleus sampling: sample from the most likely tokens with this total probability."
    define("top_p", float, 1.0, text)
    text = "Repetition penalty: values above 1 make tokens that the text contains less likely."
    define("repetition_penalty", float, 1.0, text, lower_bound=1)
    define_seed_flags(options, samples=1)
    escapes = r"\n, \t and \\ are a line break, a tab and a backslash."
    text = f"Symbol or character that is never generated. {escapes} [default: the unknown symbol]"
    define("ban", str, None, text, multiple=True)
    text = f"Symbol, or text of any length, at which generation ends. {escapes}"
    define("stop", str, [], text, multiple=True)
    define_mask_flag(options)
    define_precision_flag(options)
    text = "Tokenize the prompt like WikiText, for word models trained on it."
    define("tokenize_wikitext", bool, False, text)
    text = "Print WikiText words as the model generates them, with @-@ and so on, as --json does."
    define("raw", bool, False, text)
    return options


@program(__doc__, define_flags, positional="run")
def main(options: flags.FlagValues) -> None:
    """Prints prompts and their continuations."""
    if not 0 < options.top_p <= 1:
        raise flags.Error(f"--top_p must be in (0, 1]. Received: {options.top_p:g}")
    if options.json and options.no_prompt:
        raise flags.Error("--json and --no_prompt cannot be used together")
    if options.temperature == 0 and options.samples > 1:
        raise flags.Error("--samples needs a --temperature above 0: greedy texts are all equal")
    check_seeds(options)
    _check_interactive(options)
    settings: dict[str, Any] = {
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": None if options.top_p == 1 else options.top_p,
        "repetition_penalty": options.repetition_penalty,
        "banned": _read_texts("ban", options.ban),
        "stops": _read_texts("stop", options.stop),
        "mask_empty_memory": options.mask_empty_memory,
    }
    choose_run(options)
    prompts = [] if options.interactive else _read_prompts(options)

    from txl_tf.data.text.wikitext import (
        check_wikitext,
        is_wikitext,
        stream_wikitext,
        tokenize_wikitext,
    )

    lm = open_chosen_run(options)
    warn_of_no_memory(lm, options.run)
    if lm.vocabulary is None:
        raise UserError(f"`{options.run}` has no vocabulary: it cannot encode texts")
    is_readable = is_wikitext(lm.vocabulary.symbols) and not options.raw
    spell: _Spell = stream_wikitext if is_readable else iter
    if options.interactive:
        _converse(lm, options, settings, spell)
        return
    if options.tokenize_wikitext:
        check_wikitext(lm.vocabulary)
        prompts = list(map(tokenize_wikitext, prompts))
    with explain_errors("the prompt", UserError):
        # With spaces as the model sees them: a single one between two words.
        normalized = [lm.vocabulary.decode(lm.vocabulary.encode(prompt)) for prompt in prompts]
    seeds = range(options.seed, options.seed + options.samples)
    for (index, prompt), seed in product(enumerate(prompts, 1), seeds):
        pieces: Iterable[str] = lm.stream(
            prompt, max_new_tokens=options.max_new_tokens, seed=seed, **settings
        )
        if options.json:
            record = {"prompt": prompt, "seed": seed, "text": "".join(pieces)}
            print(json.dumps(record, ensure_ascii=False))
            continue
        context = normalized[index - 1] if is_readable else prompt
        titles = [f"prompt {index}"] * (len(prompts) > 1) + [f"seed {seed}"] * (len(seeds) > 1)
        if titles:
            print(f"--- {', '.join(titles)}")
        spelled = spell(chain([context], pieces))
        _print(_skip(spelled, context, spell) if options.no_prompt else spelled)


def _check_interactive(options: flags.FlagValues) -> None:
    """Checks that no other prompt flag is given with --interactive."""
    others = ("prompt", "prompt_file", "json", "no_prompt", "samples", "tokenize_wikitext")
    given = [name for name in others if options[name].value != options[name].default]
    if options.interactive and given:
        raise flags.Error(f"--{given[0]} cannot be used with --interactive")


def _converse(
    lm: "LanguageModel", options: flags.FlagValues, settings: dict[str, Any], spell: _Spell
) -> None:
    """Continues each line that is typed, in one session, until the input ends."""
    assert lm.vocabulary is not None  # the caller has checked it
    session = None
    _accept_all_bytes()
    if sys.stdin.isatty() and not options.quiet:
        print(_KEYS, file=sys.stderr)
    while (line := _read_line()) is not None:
        try:
            _check_utf8(line)
            if session is None:
                session = lm.start([line], seed=options.seed, **settings)
            elif line:
                session.read(line)
        except UserError as error:  # such as a character that the model does not know
            print(error, file=sys.stderr)
            continue
        context = lm.vocabulary.decode(session.ids[0])
        answer = spell(chain([context], _stream_answer(session, options.max_new_tokens)))
        _print(_skip(answer, context, spell))


def _skip(pieces: Iterable[str], context: str, spell: _Spell) -> Iterator[str]:
    """Yields a spelled text without the context before it, on which its spelling depends."""
    n_left = len("".join(spell([context])))
    for piece in pieces:
        yield piece[n_left:]
        n_left = max(n_left - len(piece), 0)


def _stream_answer(session: "Session", max_new_tokens: int) -> Iterator[str]:
    """Yields the pieces of an answer, up to Ctrl-C."""
    with _note_interrupt() as interrupts:
        for piece in session.stream(max_new_tokens):
            yield piece
            if interrupts:
                break


def _read_line() -> str | None:
    """Returns a line of the standard input; `None` at its end."""
    while True:
        try:
            return input("> " if sys.stdin.isatty() else "")
        except KeyboardInterrupt:
            print("\nCtrl-D ends the program.")
        except EOFError:
            if sys.stdin.isatty():
                print()  # the shell begins a new line
            return None


@contextmanager
def _note_interrupt() -> Iterator[list[int]]:
    """Yields a list to which Ctrl-C adds an entry, instead of ending the program."""
    interrupts: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, previous)


def _print(pieces: Iterable[str]) -> None:
    """Prints the pieces of a text as they are generated."""
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        print()  # the message begins a new line
        raise
    print()


def _read_prompts(options: flags.FlagValues) -> list[str]:
    """Returns the prompts from the flags or the standard input."""
    if options.prompt and options.prompt_file:
        raise flags.Error("--prompt and --prompt_file cannot be used together")
    if options.prompt is not None:
        prompts = list(options.prompt)
    elif options.prompt_file not in (None, "-"):
        text = read_small_text(options.prompt_file)
        prompts = [text.replace("\r\n", "\n").replace("\r", "\n")]
    else:
        prompts = [_read_standard_input(is_wanted=options.prompt_file == "-")]
    for prompt in prompts:
        _check_utf8(prompt)
    return prompts


def _check_utf8(prompt: str) -> None:
    """Refuses a prompt that was read from bytes that are not UTF-8."""
    with explain_errors("the prompt is not UTF-8", UnicodeDecodeError):
        prompt.encode("utf-8", errors="surrogateescape").decode("utf-8")


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


def _read_standard_input(*, is_wanted: bool) -> str:
    if sys.stdin is None or (sys.stdin.isatty() and not is_wanted):
        raise UserError("--prompt, --prompt_file or --interactive must be given")
    _accept_all_bytes()
    return sys.stdin.read()


def _accept_all_bytes() -> None:
    """Lets the standard input read bytes that are not UTF-8; they are rejected later."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape")
