"""The report of text scores, as a table or as JSON lines."""

import json
from typing import Any

from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.scoring.metrics import name_unit
from txl_tf.scoring.text_chunks import TextName
from txl_tf.scoring.text_scores import TextScore, TextTotals

TOTAL = "total"
# For each column: its name, width, number format and name in JSON.
_COLUMNS = {
    "tokens": (12, ",", "tokens"),
    "unknown": (20, "", "unknown"),
    "nats": (14, ",.2f", "total_nats"),
    "nats/token": (10, ".4f", "nats_per_token"),
    "bpc": (10, ".4f", "bpc"),
    "bits/token": (10, ".4f", "bits_per_token"),
    "perplexity": (11, ".5g", "perplexity"),
    "bits/byte": (9, ".4f", "bits_per_byte"),
    "word perplexity": (15, ".5g", "word_perplexity"),
}
_LEFT_OUT = ("bpc", "bits/byte")  # undefined for texts with unknown tokens


class Table:
    """A table with a row for each text ("line", "document" or "file") and one for the total."""

    def __init__(self, unit: str, vocabulary: Vocabulary):
        self._unit = unit
        bits = "bpc" if name_unit(vocabulary.level) == "bpc" else "bits/token"
        unknown = ("unknown",) if vocabulary.unknown is not None else ()
        rest = ("nats", "nats/token", bits, "perplexity", "bits/byte", "word perplexity")
        self._columns = ("tokens", *unknown, *rest)

    def format_head(self) -> str:
        """Returns the row of column names."""
        return "  ".join([*(f"{name:>{_COLUMNS[name][0]}}" for name in self._columns), self._unit])

    def format_text(self, name: TextName, score: TextTotals) -> str:
        """Returns the row of a text."""
        number = "" if self._unit == "file" else f":{name.number}"
        return self._format_row(score, f"{name.source}{number}")

    def format_total(self, n_texts: int, total: TextTotals) -> str:
        """Returns the row of the total."""
        return self._format_row(total, f"{TOTAL} ({self._unit}s: {n_texts:,})")

    def _format_row(self, score: TextTotals, label: str) -> str:
        measures = score.to_json() | {"unknown": score.describe_unknown()}
        cells = []
        for name in self._columns:
            width, rule, key = _COLUMNS[name]
            none = "- unknown" if score.n_unknown and name in _LEFT_OUT else "-"
            value = measures[key]
            cells.append(f"{none if value is None else format(value, rule):>{width}}")
        return "  ".join([*cells, label])


class JsonLines:
    """JSON lines with an object for each text and one for the total."""

    def __init__(self, unit: str, vocabulary: Vocabulary):
        self._unit = unit
        self._vocabulary = vocabulary

    def format_text(self, name: TextName, score: TextTotals) -> str:
        """Returns the line of a text; a `TextScore` adds its symbols and their losses."""
        record: dict[str, Any] = {
            "kind": self._unit,
            "source": name.source,
            "number": name.number,
            **score.to_json(),
        }
        if isinstance(score, TextScore):
            n_unscored = len(score.ids) - len(score.nats)
            record["symbols"] = [show_symbol(self._vocabulary, i) for i in score.ids.tolist()]
            record["nats"] = [None] * n_unscored + score.nats.tolist()
        return json.dumps(record)

    def format_total(self, n_texts: int, total: TextTotals) -> str:
        """Returns the line of the total."""
        return json.dumps({"kind": TOTAL, "texts": n_texts, **total.to_json()})


def show_symbol(vocabulary: Vocabulary, symbol_id: int) -> str:
    r"""Returns a symbol in readable form.

    A byte is shown as its ASCII character or as a Python escape: the symbol "10" is shown as "\n",
    and "200" as "\xc8". Symbols of other levels are unchanged.
    """
    symbol = vocabulary.symbols[symbol_id]
    if vocabulary.level != "byte":
        return symbol
    character = chr(int(symbol))
    if character.isascii() and character.isprintable():
        return character
    return ascii(character)[1:-1]
