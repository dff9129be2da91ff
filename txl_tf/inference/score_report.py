"""The scores of texts as a table and as JSON lines, and the bar that is shown meanwhile."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from txl_tf.data.vocabulary import Vocabulary
from txl_tf.inference.text_parts import TextName, TextPart
from txl_tf.inference.text_scores import TextScore, TextTotals
from txl_tf.training.score_bar import Bar

TOTAL = "total"
_COLUMNS = {  # widths and formats
    "tokens": (12, ",d"),
    "nats": (14, ",.2f"),
    "nats/token": (10, ".4f"),
    "bits/token": (10, ".4f"),
    "perplexity": (11, ".5g"),
    "bits/byte": (9, ".4f"),
    "word perplexity": (15, ".5g"),
}


class Table:
    """Rows for people; `TextTotals` of each text and of all.

    Args:
        kind: of the texts: "line", "document" or "file".
    """

    def __init__(self, kind: str):
        self._kind = kind

    def format_head(self) -> str:
        """Returns the names of the columns."""
        names = [f"{name:>{width}}" for name, (width, _) in _COLUMNS.items()]
        return "  ".join([*names, self._kind])

    def format_text(self, name: TextName, score: TextTotals) -> str:
        """Returns the row of a text."""
        number = "" if self._kind == "file" else f":{name.number}"
        return self._format_row(score, f"{name.source}{number}")

    def format_total(self, n_texts: int, total: TextTotals) -> str:
        """Returns the last row."""
        return self._format_row(total, f"{TOTAL} ({self._kind}s: {n_texts:,})")

    def _format_row(self, score: TextTotals, label: str) -> str:
        values = (
            score.tokens,
            score.total_nats,
            score.nats_per_token,
            score.bpc,
            score.perplexity,
            score.bits_per_byte,
            score.word_perplexity,
        )
        cells = [
            f"{'-' if value is None else format(value, rule):>{width}}"
            for value, (width, rule) in zip(values, _COLUMNS.values(), strict=True)
        ]
        return "  ".join([*cells, label])


class JsonLines:
    """An object a line, for scripts: one for each text, and one for all.

    Args:
        kind: of the texts: "line", "document" or "file".
        vocabulary: their symbols.
    """

    def __init__(self, kind: str, vocabulary: Vocabulary):
        self._kind = kind
        self._vocabulary = vocabulary

    def format_head(self) -> None:
        """Returns nothing: an object has its names itself."""

    def format_text(self, name: TextName, score: TextTotals) -> str:
        """Returns the line of a text; that of a `TextScore` with its symbols and their losses."""
        record = {
            "kind": self._kind,
            "source": name.source,
            "number": name.number,
            **_make_record(score),
        }
        if isinstance(score, TextScore):
            n_unscored = len(score.ids) - len(score.nats)
            record["symbols"] = [self._vocabulary.symbols[i] for i in score.ids.tolist()]
            record["nats"] = [None] * n_unscored + score.nats.tolist()
        return json.dumps(record)

    def format_total(self, n_texts: int, total: TextTotals) -> str:
        """Returns the last line."""
        return json.dumps({"kind": TOTAL, "texts": n_texts, **_make_record(total)})


class TextBar(Bar):
    """A bar of the bytes done, with the time left.

    Args:
        total: the bytes of all texts; `None` where they are not known.
    """

    def __init__(self, total: int | None):
        super().__init__("score", total=total, unit="B", unit_scale=True)
        self._taken = [0, 0]  # bytes and ids
        self._n_read = 0

    def watch(self, parts: Iterable[TextPart]) -> Iterator[TextPart]:
        """Yields the parts, and counts them."""
        for part in parts:
            self._taken[0] += part.n_bytes or 0
            self._taken[1] += len(part.ids)
            yield part

    def show(self, n_ids: int) -> None:
        """Shows that so many more ids were read."""
        self._n_read += n_ids
        n_bytes = self._taken[0] * self._n_read // max(self._taken[1], 1)
        self._bar.update(max(n_bytes - self._bar.n, 0))


def _make_record(score: TextTotals) -> dict[str, Any]:
    return {
        "tokens": score.tokens,
        "total_nats": score.total_nats,
        "nats_per_token": score.nats_per_token,
        "bpc": score.bpc,
        "perplexity": score.perplexity,
        "bytes": score.n_bytes,
        "bits_per_byte": score.bits_per_byte,
        "words": score.n_words,
        "word_perplexity": score.word_perplexity,
    }
