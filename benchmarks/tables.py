"""Tables in Markdown, which benchmarks print and the pages show."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from txl_tf.programs.cli.flags import define_flag


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table, each row as soon as it is known."""
    print(f"\n{_format_header(header)}")
    for row in rows:
        print(format_row(row), flush=True)
    print()


def format_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table, without a line break at the end."""
    return "\n".join([_format_header(header), *map(format_row, rows)])


def _format_header(header: Sequence[str]) -> str:
    return f"{format_row(header)}\n|{'---|' * len(header)}"


def format_row(cells: Sequence[object]) -> str:
    """Returns the line of a row.

    >>> format_row(["demo", 1.5])
    '| demo | 1.5 |'
    """
    return f"| {' | '.join(map(str, cells))} |"


def define_json_flag(options: flags.FlagValues) -> None:
    """Defines the flag that names the file for `write_json`."""
    text = "File for all measurements. [default: none]"
    define_flag(options, "json", str, None, text, is_path=True)


def write_json(options: flags.FlagValues, found: Any) -> None:
    """Writes the measurements to the file of `--json`, if it is given."""
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
