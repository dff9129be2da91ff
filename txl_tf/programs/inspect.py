"""Shows the contents of a data set and verifies every byte of it.

txl inspect data/wt103
"""

import itertools
import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from absl import flags

from txl_tf.data.records.reading import Records, Split, verify_records
from txl_tf.programs.cli.flags import define_flag, refuse_flags
from txl_tf.programs.cli.program import program
from txl_tf.programs.cli.run_flags import DATA_SETS, choose_data_set, open_data_set
from txl_tf.progress import Bar

_N_TOKENS = 2**22  # read at a time
_N_SYMBOLS = 8
_WIDTH = 96


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    text = f"Folder of the records. [default: the only data set under {DATA_SETS}/]"
    define_flag(options, "data_dir", str, None, text, is_path=True)
    define_flag(options, "split", str, None, "Split to show the beginning of. [default: the first]")
    define_flag(options, "lines", int, 5, "Number of lines to show.", lower_bound=0)
    define_flag(options, "verify", bool, True, "Read all tokens and verify all checksums.")
    define_flag(options, "json", bool, False, "Print one JSON object instead of the text.")
    return options


@program(__doc__, define_flags, positional="data_dir")
def main(options: flags.FlagValues) -> None:
    """Prints the contents of the data set."""
    if options.json:
        refuse_flags(options, "split", "lines", reason="with --json")
    if options.data_dir is None:
        options["data_dir"].value = choose_data_set()
    records = open_data_set(options.data_dir)
    sample = records.split(options.split or records.splits[0])
    if options.verify:
        verify_records(options.data_dir)
    splits = {name: measure_split(records, name, count=options.verify) for name in records.splits}
    if options.json:
        print(json.dumps(make_record(records, splits, is_verified=options.verify)))
        return
    print(*describe_records(records), "", sep="\n")
    rows = [{"split": name} | _format(found) for name, found in splits.items()]
    print(*format_table(rows), sep="\n")
    if options.lines:
        print(f"\n{sample.name} begins:")
        for line in decode_lines(records, sample, options.lines):
            print(f"  {line}")
    print()
    if options.verify:
        print("All checksums are correct.")
    else:
        print("Tokens and checksums were not verified (--verify=false).")


def describe_records(records: Records) -> Iterator[str]:
    """Yields lines that describe the data set as a whole."""
    vocabulary = records.vocabulary
    yield f"{records.data_dir}: {records.dataset}"
    arguments = records.made_from.get("arguments", {})
    made = ", ".join(f"{name}={value}" for name, value in arguments.items() if value)
    if made:
        yield from textwrap.wrap(f"made with {made}", _WIDTH, subsequent_indent="  ")
    names = ("space", "unknown", "lower_case", "line_start", "line_end")
    values = {name: getattr(vocabulary, name) for name in names}
    notes = "".join(f", {name}={value!r}" for name, value in values.items() if value)
    yield f"vocabulary: {len(vocabulary):,} {vocabulary.level}s{notes}"
    symbols: Sequence[str | bytes] = vocabulary.symbols
    if vocabulary.level == "byte":
        symbols = [bytes([int(symbol)]) for symbol in vocabulary.symbols]
    head = [repr(symbol) for symbol in symbols[:_N_SYMBOLS]]
    tail = [repr(symbol) for symbol in symbols[_N_SYMBOLS:][-_N_SYMBOLS:]]
    shown = f"symbols: {' '.join(head)} ... {' '.join(tail)}"
    yield from textwrap.wrap(shown, _WIDTH, subsequent_indent="  ")
    if records.cutoffs:
        yield f"cutoffs: {', '.join(f'{cutoff:,}' for cutoff in records.cutoffs)}"


def measure_split(records: Records, name: str, *, count: bool) -> dict[str, float]:
    """Returns the sizes of a split; with `count`, it reads all tokens to count symbols."""
    split = records.split(name)
    found: dict[str, float] = {
        "tokens": len(split),
        "documents": records.n_documents(name),
        "file bytes": records.n_bytes(name),
    }
    if count:
        counts = count_ids(split, len(records.vocabulary))
        found["symbols used"] = int(np.count_nonzero(counts))
        unknown_id = records.vocabulary.unknown_id
        if unknown_id is not None:
            found["unknown"] = float(counts[unknown_id] / max(len(split), 1))
    return found


def make_record(
    records: Records, splits: dict[str, dict[str, float]], *, is_verified: bool
) -> dict[str, Any]:
    """Returns the content of a data set as JSON."""
    vocabulary = records.vocabulary
    return {
        "data_dir": records.data_dir,
        "dataset": records.dataset,
        "made_from": records.made_from,
        "vocabulary": {"level": vocabulary.level, "symbols": len(vocabulary)},
        "cutoffs": list(records.cutoffs),
        "splits": {
            name: {key.replace(" ", "_"): value for key, value in found.items()}
            for name, found in splits.items()
        },
        "verified": is_verified,
    }


def _format(found: dict[str, float]) -> dict[str, str]:
    """Returns the table row of a split."""
    return {key: f"{x:.3%}" if key == "unknown" else f"{x:,}" for key, x in found.items()}


def count_ids(split: Split, n_symbols: int) -> np.ndarray:
    """Returns the number of occurrences of each id in a split, (n_symbols,) int64."""
    counts = np.zeros(n_symbols, np.int64)
    with Bar(split.name, total=len(split), unit_scale=True, leave=False) as bar:
        for start in range(0, len(split), _N_TOKENS):
            ids = split.read(start, min(start + _N_TOKENS, len(split)))
            counts += np.bincount(ids, minlength=n_symbols)
            bar.update(len(ids))
    return counts


def format_table(rows: list[dict[str, str]]) -> Iterator[str]:
    """Yields the lines of a table; the first column is left-aligned, the others right-aligned."""
    names = list(rows[0])
    cells = [names, *(list(row.values()) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *others in cells:
        padded = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *padded])


def decode_lines(records: Records, split: Split, n_lines: int) -> list[str]:
    """Returns the first `n_lines` lines of a split as text; long lines are wrapped."""
    # At level "byte", a character has up to 4 tokens.
    ids = split.read(0, min(len(split), 4 * n_lines * _WIDTH))
    text = records.vocabulary.decode(ids)
    lines = itertools.chain.from_iterable(
        textwrap.wrap(line, _WIDTH - 2, drop_whitespace=False) or [""] for line in text.split("\n")
    )
    return list(itertools.islice(lines, n_lines))
