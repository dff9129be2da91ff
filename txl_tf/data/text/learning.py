"""Learning a vocabulary from texts: counting their symbols and selecting some of them."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from txl_tf.data.parallel import map_ordered
from txl_tf.data.text.characters import read_codes
from txl_tf.data.text.subwords import DEFAULT_SYMBOLS, learn_subwords
from txl_tf.data.text.words import convert_to_lower_case, split_words
from txl_tf.errors import UserError

# The levels at which each optional field of a `Vocabulary` is allowed.
LEVELS_OF_FIELD = {
    "space": ("char",),
    "unknown": ("char", "word"),
    "lower_case": ("word", "subword"),
    "line_start": ("word",),
    "line_end": ("word",),
    "sentencepiece": ("subword",),
}
# The levels at which each option of `LearningOptions` is allowed.
LEVELS_OF_OPTION: dict[str, tuple[str, ...]] = {
    "special": ("word",),
    "min_count": ("char", "word"),
    "max_symbols": ("char", "word", "subword"),
    **LEVELS_OF_FIELD,
}


@dataclass(frozen=True)
class LearningOptions:
    """Options for learning a vocabulary; `LEVELS_OF_OPTION` lists the levels of each option."""

    special: tuple[str, ...] = ()  # symbols that come first, whether they occur or not
    min_count: int = 1  # how often a symbol must occur
    # The largest size of the vocabulary; at level "subword" the exact one, 8,192 by default.
    max_symbols: int | None = None
    # As in `Vocabulary`; must not occur, and becomes a symbol only if the texts contain a space.
    space: str | None = None
    unknown: str | None = None  # as in `Vocabulary`; follows the special symbols if it is absent
    lower_case: bool = False
    line_start: str | None = None  # a special symbol, as is `line_end`
    line_end: str | None = None


def learn_fields(
    level: str,
    texts: Iterable[bytes],
    options: LearningOptions,
    *,
    n_threads: int = 1,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Returns the arguments of a `Vocabulary`, except its level, learned from ordered texts.

    The number of threads does not affect the result. `report` is called with lines for the user.
    """
    _check_options(level, options)
    if level == "subword":
        if options.lower_case:
            texts = (convert_to_lower_case([text]).numpy()[0] for text in texts)
        n_symbols = options.max_symbols or DEFAULT_SYMBOLS
        symbols, model = learn_subwords(texts, n_symbols, report)
        lower_case = options.lower_case
        return {"symbols": symbols, "sentencepiece": model, "lower_case": lower_case}
    counts = count_symbols(level, texts, lower_case=options.lower_case, n_threads=n_threads)
    return choose_fields(counts, options, report=report)


def choose_fields(
    counts: dict[str, int],
    options: LearningOptions,
    *,
    n_symbols: int | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Chooses the arguments of a `Vocabulary` for counted symbols, in order of first appearance.

    `n_symbols` is the number of all counted symbols, if `select_candidates` removed some.
    """
    n_counted = len(counts) if n_symbols is None else n_symbols
    space = options.space
    if space is not None:
        if space in counts:
            raise UserError(f"`space` must not occur in `texts`. Received: space={space!r}")
        counts = {space if symbol == " " else symbol: n for symbol, n in counts.items()}
    symbols = choose_symbols(counts, options)
    n_left_out = n_counted - len(counts.keys() & set(symbols))
    if n_left_out:
        report(f"Symbols left out of the vocabulary: {n_left_out:,}")
    return {
        "symbols": tuple(symbols),
        "space": space if space in symbols else None,
        "unknown": options.unknown,
        "lower_case": options.lower_case,
        "line_start": options.line_start,
        "line_end": options.line_end,
    }


def select_candidates(
    counts: dict[str, tuple[int, tuple[int, int]]], options: LearningOptions
) -> dict[str, tuple[int, tuple[int, int]]]:
    """Leaves out symbols that `choose_fields` would not choose, whatever other groups contain.

    Only the candidates of all groups must then be compared. `counts` holds, for each symbol, the
    number of occurrences and the place of the first one.
    """
    named = (options.unknown, options.line_start, options.line_end, options.space, " ")
    special = {name for name in (*options.special, *named) if name is not None and name in counts}
    frequent = [
        symbol
        for symbol, (count, _) in counts.items()
        if count >= options.min_count and symbol not in special
    ]
    if options.max_symbols is not None and len(counts) > options.max_symbols:
        frequent.sort(key=lambda name: (-counts[name][0], counts[name][1]))
        del frequent[options.max_symbols :]
    return {symbol: counts[symbol] for symbol in (*special, *frequent)}


def choose_symbols(counts: dict[str, int], options: LearningOptions) -> list[str]:
    """Orders counted symbols, and leaves out rare ones.

    The special symbols come first; then `unknown`, if it does not occur; then the others by
    descending count, those with equal counts in order of first appearance.

    In the 2019 code: `build_vocab`, with `add_special` and `add_symbol`.
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


def count_symbols(
    level: str, texts: Iterable[bytes], *, lower_case: bool = False, n_threads: int = 1
) -> dict[str, int]:
    """Counts the bytes, characters or words of texts, in order of first appearance.

    In the 2019 code: `count_file` and `count_sents`.
    """
    if level == "word":
        return _count_words(texts, lower_case=lower_case, n_threads=n_threads)
    return _count_codes(texts, is_bytes=level == "byte", n_threads=n_threads)


def _count_codes(texts: Iterable[bytes], *, is_bytes: bool, n_threads: int) -> dict[str, int]:
    totals = np.zeros(256 if is_bytes else 0x110000, np.int64)
    order: list[int] = []

    def count(text: bytes) -> tuple[np.ndarray, np.ndarray]:
        codes = read_codes(text, is_bytes=is_bytes)
        return codes, np.bincount(codes)

    for codes, counts in map_ordered(count, texts, n_threads):
        is_new = (counts > 0) & (totals[: len(counts)] == 0)
        if is_new.any():
            order += dict.fromkeys(codes[is_new[codes]].tolist())  # by first appearance
        totals[: len(counts)] += counts
    return {str(code) if is_bytes else chr(code): int(totals[code]) for code in order}


def _count_words(texts: Iterable[bytes], *, lower_case: bool, n_threads: int) -> dict[str, int]:
    import tensorflow as tf

    def count(text: bytes) -> dict[bytes, int]:
        words = split_words(tf.constant([text]), lower_case=lower_case).flat_values
        unique, _, counts = tf.unique_with_counts(words)  # by first appearance
        return dict(zip(unique.numpy().tolist(), counts.numpy().tolist(), strict=True))

    totals: Counter[bytes] = Counter()
    for counts in map_ordered(count, texts, n_threads):
        totals.update(counts)
    return {word.decode("utf-8"): n for word, n in totals.items()}


def _check_options(level: str, options: LearningOptions) -> None:
    for name, value in vars(options).items():
        levels = LEVELS_OF_OPTION[name]
        if value != getattr(LearningOptions, name) and level not in levels:
            raise ValueError(
                f"`{name}` needs level={' or '.join(map(repr, levels))}. Received: level={level!r}"
            )
    if isinstance(options.special, str):
        raise UserError(f"`special` must be a list of symbols. Received: {options.special!r}")
    if options.min_count < 1:
        raise ValueError(f"`min_count` must be positive. Received: min_count={options.min_count}")
    if options.max_symbols is not None and options.max_symbols < 1:
        raise UserError(
            f"`max_symbols` must be positive. Received: max_symbols={options.max_symbols}"
        )
