"""Learning a vocabulary from texts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from txl_tf.data.counting import count_symbols
from txl_tf.data.levels import LEVELS_OF_FIELD
from txl_tf.data.subwords import DEFAULT_SYMBOLS, learn_subwords
from txl_tf.data.words import put_into_lower_case
from txl_tf.errors import UserError

# The levels that each option is for.
LEVELS_OF_OPTION: dict[str, tuple[str, ...]] = {
    "special": ("word",),
    "min_count": ("char", "word"),
    "max_symbols": ("char", "word", "subword"),
    "every_byte": ("byte",),
    **LEVELS_OF_FIELD,
}


@dataclass(frozen=True)
class LearningOptions:
    """How a vocabulary is learnt.

    Args:
        special: At level "word", symbols that come first, whether they occur or not.
        min_count: At levels "char" and "word", how often a symbol must occur.
        max_symbols: The most symbols, the special ones and `unknown` included; at level "subword"
            their number, 8,192 unless given.
        space: As in `Vocabulary`; it must not occur in the texts. It becomes a symbol only if
            they hold a space.
        every_byte: At level "byte", also add the bytes that do not occur, last and in byte order,
            so that every text can be encoded.
        unknown: As in `Vocabulary`; it is added behind the special symbols if it does not occur.
        lower_case: As in `Vocabulary`.
        line_start: As in `Vocabulary`; it is one of the special symbols.
        line_end: As in `Vocabulary`; it is one of the special symbols.
    """

    special: tuple[str, ...] = ()
    min_count: int = 1
    max_symbols: int | None = None
    space: str | None = None
    every_byte: bool = False
    unknown: str | None = None
    lower_case: bool = False
    line_start: str | None = None
    line_end: str | None = None


def learn_fields(
    level: str,
    texts: Iterable[bytes],
    options: LearningOptions,
    *,
    n_threads: int = 1,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Learns the arguments of a `Vocabulary` from texts.

    Args:
        level: "byte", "char", "word" or "subword".
        texts: The texts, in order; UTF-8 unless the level is "byte".
        options: How.
        n_threads: How many texts to count at once; the result does not depend on it.
        report: Called with a line on what the user should know.

    Returns:
        The arguments of `Vocabulary` but its level.

    Raises:
        ValueError: If an option is not for this level.
        UserError: If `space` occurs, `max_symbols` leaves no room for the special symbols, or
            subwords cannot be learnt from the texts.
    """
    _check_options(level, options)
    if level == "subword":
        if options.lower_case:
            texts = (put_into_lower_case([text]).numpy()[0] for text in texts)
        learnt = learn_subwords(texts, options.max_symbols or DEFAULT_SYMBOLS)
        if learnt.stride > 1:
            report(f"The subwords were learnt from one of {learnt.stride} lines.")
        return {
            "symbols": learnt.symbols,
            "sentencepiece": learnt.model,
            "lower_case": options.lower_case,
        }
    counts = count_symbols(level, texts, lower_case=options.lower_case, n_threads=n_threads)
    space = options.space
    if space is not None:
        if space in counts:
            raise UserError(f"`space` must not occur in `texts`. Received: space={space!r}")
        counts = {space if symbol == " " else symbol: n for symbol, n in counts.items()}
    symbols = choose_symbols(counts, options)
    if options.every_byte:
        symbols += [byte for byte in map(str, range(256)) if byte not in counts]
    n_left_out = len(counts.keys() - set(symbols))
    if n_left_out:
        report(f"{n_left_out:,} symbols were left out.")
    return {
        "symbols": tuple(symbols),
        "space": space if space in symbols else None,
        "unknown": options.unknown,
        "lower_case": options.lower_case,
        "line_start": options.line_start,
        "line_end": options.line_end,
    }


def choose_symbols(counts: dict[str, int], options: LearningOptions) -> list[str]:
    """Orders symbols and leaves out what is rare.

    Args:
        counts: How often each symbol occurs, in order of first appearance.
        options: `special`, `unknown`, `min_count` and `max_symbols`.

    Returns:
        The special symbols; `unknown`, if it does not occur; then the others by falling count,
        equal ones in order of first appearance.

    Raises:
        UserError: If `max_symbols` leaves no room for the special symbols and `unknown`.
    """
    first = [*options.special, options.line_start, options.line_end]
    if options.unknown is not None and options.unknown not in counts:
        first.append(options.unknown)
    symbols = list(dict.fromkeys(symbol for symbol in first if symbol is not None))
    taken = set(symbols)
    room = len(counts) if options.max_symbols is None else options.max_symbols - len(symbols)
    needed = len({*symbols, options.unknown} - {None})
    if options.max_symbols is not None and options.max_symbols < needed:
        raise UserError(
            f"`max_symbols` must be at least {needed}, the number of special symbols. "
            f"Received: max_symbols={options.max_symbols}"
        )
    ordered = sorted(counts, key=counts.__getitem__, reverse=True)  # a stable sort
    frequent = [
        symbol
        for symbol in ordered
        if symbol not in taken
        and (counts[symbol] >= options.min_count or symbol == options.unknown)
    ]
    kept = frequent[:room]
    if options.unknown in frequent and options.unknown not in kept:
        kept = [*kept[:-1], str(options.unknown)]
    return symbols + kept


def _check_options(level: str, options: LearningOptions) -> None:
    for name, value in vars(options).items():
        levels = LEVELS_OF_OPTION[name]
        if value != getattr(LearningOptions, name) and level not in levels:
            raise ValueError(
                f"`{name}` needs level={' or '.join(map(repr, levels))}. Received: level={level!r}"
            )
    if options.min_count < 1:
        raise ValueError(f"`min_count` must be positive. Received: min_count={options.min_count}")
    if options.max_symbols is not None and options.max_symbols < 1:
        raise UserError(
            f"`max_symbols` must be positive. Received: max_symbols={options.max_symbols}"
        )
