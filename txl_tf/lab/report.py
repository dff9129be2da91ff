"""The common parts of reports: rows of tables, and a folder with numbers and figures."""

import os
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.figure import Figure

from txl_tf.data.files import write_json
from txl_tf.errors import explain_errors

_DPI = 120


def format_row(label: str, cells: Iterable[str], *, label_width: int, width: int) -> str:
    """Returns a row of a table: a label and right-aligned cells, each after two spaces."""
    return "  ".join([f"{label:<{label_width}}", *(f"{cell:>{width}}" for cell in cells)])


def make_figure(width: float, height: float) -> Figure:
    """Returns an empty figure of a size in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def write_report(
    folder: str, name: str, record: dict[str, Any], figures: Mapping[str, Figure]
) -> list[str]:
    """Writes a JSON file and figures, by their names, and returns the names of the files.

    The folder is created if necessary; files of an earlier report are replaced.
    """
    fault = f"the results cannot be written to `{folder}`"
    with explain_errors(fault, OSError), warnings.catch_warnings():
        # No font has the characters of all vocabularies.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        os.makedirs(folder, exist_ok=True)
        write_json(os.path.join(folder, name), record)
        for figure_name, figure in figures.items():
            figure.savefig(os.path.join(folder, figure_name), dpi=_DPI)
    return [name, *figures]
