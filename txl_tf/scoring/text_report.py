"""The report of text scores, as a table or as JSON lines."""

import json
import math
from typing import Any

from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.scoring.metrics import (
    format_unknown,
    make_bits_record,
    make_unknown_record,
    name_bits,
)
from txl_tf.scoring.text_chunks import TextName
from txl_tf.scoring.text_scores import TextScore, TextTotals

TOTAL = "total"
_WIDTHS = {
    "tokens": 12,
    "unknown": 20,
    "nats": 14,
    "nats/token": 10,
    "bpc": 10,
    "bits/token": 10,
    "perplexity": 11,
    "bits/byte": 9,
    "word perplexity": 15,
}
_LEFT_OUT = "- unknown"  # instead of a result that texts with unknown tokens do not have


class Table:
    """A table with a row for each text ("line", "document" or "file") and one for the total."""

    def __init__(self, unit: str, vocabulary: Vocabulary):
        self._unit = unit
        bits = "bpc" if name_bits(vocabulary.level) == "bpc" else "bits/token"
        unknown = ("unknown",) if vocabulary.unknown is not None else ()
        rest = ("nats", "nats/token", bits, "perplexity", "bits/byte", "word perplexity")
        self._columns = ("tokens", *unknown, *rest)

    def format_head(self) -> str:
        """Returns the row of column names."""
        return "  ".join([*(f"{name:>{_WIDTHS[name]}}" for name in self._columns), self._unit])

    def format_text(self, name: TextName, score: TextTotals) -> str:
        """Returns the row of a text."""
        number = "" if self._unit == "file" else f":{name.number}"
        return self._format_row(score, f"{name.source}{number}")

    def format_total(self, n_texts: int, total: TextTotals) -> str:
        """Returns the row of the total."""
        return self._format_row(total, f"{TOTAL} ({self._unit}s: {n_texts:,})")

    def _format_row(self, score: TextTotals, label: str) -> str:
        none = _LEFT_OUT if score.n_unknown else "-"
        values = {
            "tokens": f"{score.tokens:,}",
            "unknown": format_unknown(score),
            "nats": f"{score.total_nats:,.2f}",
            "nats/token": _format(score.nats_per_token, ".4f", "-"),
            "bpc": _format(score.bpc, ".4f", none),
            "bits/token": _format(score.bits_per_token, ".4f", "-"),
            "perplexity": _format(score.perplexity, ".5g", "-"),
            "bits/byte": _format(score.bits_per_byte, ".4f", none),
            "word perplexity": _format(score.word_perplexity, ".5g", "-"),
        }
        return "  ".join([*(f"{values[name]:>{_WIDTHS[name]}}" for name in self._columns), label])


class JsonLines:
    """JSON lines with an object for each text and one for the total."""

    def __init__(self, unit: str, vocabulary: Vocabulary):
        self._unit = unit
        self._vocabulary = vocabulary

    def format_text(self, name: TextName, score: TextTotals) -> str:
        """Returns the line of a text; a `TextScore` adds its symbols and their losses."""
        record = {
            "kind": self._unit,
            "source": name.source,
            "number": name.number,
            **_make_record(score),
        }
        if isinstance(score, TextScore):
            n_unscored = len(score.ids) - len(score.nats)
            record["symbols"] = [show_symbol(self._vocabulary, i) for i in score.ids.tolist()]
            record["nats"] = [None] * n_unscored + score.nats.tolist()
        return json.dumps(record)

    def format_total(self, n_texts: int, total: TextTotals) -> str:
        """Returns the line of the total."""
        return json.dumps({"kind": TOTAL, "texts": n_texts, **_make_record(total)})


def show_symbol(vocabulary: Vocabulary, symbol_id: int) -> str:
    r"""Returns a symbol in readable form.

    A byte is shown as its ASCII character or as an escape of Python: the symbol "10" is shown as
    "\n", and "200" as "\xc8". Symbols of other levels are unchanged.
    """
    symbol = vocabulary.symbols[symbol_id]
    if vocabulary.level != "byte":
        return symbol
    character = chr(int(symbol))
    if character.isascii() and character.isprintable():
        return character
    return ascii(character)[1:-1]


def _format(value: float | None, rule: str, none: str) -> str:
    return none if value is None or _is_nan(value) else format(value, rule)


def _make_record(score: TextTotals) -> dict[str, Any]:
    record = {
        "tokens": score.tokens,
        **make_unknown_record(score),
        "total_nats": score.total_nats,
        "nats_per_token": score.nats_per_token,
        **make_bits_record(score),
        "perplexity": score.perplexity,
        "bytes": score.n_bytes,
        "bits_per_byte": score.bits_per_byte,
        "words": score.n_words,
        "word_perplexity": score.word_perplexity,
    }
    return replace_nans(record)


def replace_nans(record: dict[str, Any]) -> dict[str, Any]:
    """Returns the measures of a text for JSON, which has no NaN."""
    return {name: None if _is_nan(value) else value for name, value in record.items()}


def _is_nan(value: float | None) -> bool:
    """Returns whether a mean is over no token."""
    return value is not None and math.isnan(value)
