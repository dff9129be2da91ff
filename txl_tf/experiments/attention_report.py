"""The report of an analysis of the attention: a table, numbers in two files, and the figures."""

import io
import json
import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from txl_tf.data.text.token_levels import CHARACTER_LEVELS
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.experiments.attention_average import AttentionAverages
from txl_tf.experiments.attention_plots import draw_averages, draw_stretch, draw_terms
from txl_tf.experiments.attention_stretch import Stretch
from txl_tf.experiments.attention_terms import TERMS
from txl_tf.experiments.shown_tokens import name_symbol
from txl_tf.experiments.text_attention import Head
from txl_tf.scoring.text_report import show_symbol

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 120
_SHARES = (0.5, 0.9)


class AttentionReport(NamedTuple):
    """The results of an analysis.

    Args:
        settings: The run and the settings of the analysis, for JSON.
        averages: The averages over a split.
        stretch: Single heads over a stretch of text.
        vocabulary: The vocabulary; `None` if only ids are known.
    """

    settings: dict[str, Any]
    averages: AttentionAverages
    stretch: Stretch
    vocabulary: Vocabulary | None

    def format_table(self) -> Iterator[str]:
        """Yields the lines of a table with a row for each head."""
        beyond = f"beyond {self.averages.tgt_len}"
        names = ("mean distance", *(f"{share:.0%} within" for share in _SHARES), beyond, "empty")
        yield "  ".join(["head".ljust(6), *(f"{name:>13}" for name in names)])
        for row in self.list_heads():
            within = (row[_name_share(share)] for share in _SHARES)
            cells = (f"{row['mean_distance']:.1f}", *(f"{distance:,}" for distance in within))
            cells += (f"{row['beyond_segment']:.1%}", f"{row['empty']:.1%}")
            yield "  ".join([row["head"].ljust(6), *(f"{cell:>13}" for cell in cells)])

    def list_heads(self) -> list[dict[str, Any]]:
        """Returns the figures of each head, for JSON."""
        averages = self.averages
        columns = {
            "mean_distance": averages.mean_distance,
            **{_name_share(share): averages.find_distance(share) for share in _SHARES},
            "beyond_segment": averages.beyond_segment,
            "empty": averages.empty,
        }
        return [
            {"head": str(Head(*index))}
            | {name: column[index].item() for name, column in columns.items()}
            for index in np.ndindex(averages.empty.shape)
        ]

    def write(self, folder: str, *, max_distance: int | None = None) -> list[str]:
        """Writes numbers and figures into a local folder, over those of an earlier analysis.

        Args:
            folder: The folder, made if necessary.
            max_distance: The largest distance in the figures; `None` for all.

        Returns:
            The names of the files.

        Raises:
            OSError: If a file cannot be written.
        """
        files = {
            "attention.json": json.dumps(self._make_record(), indent=2).encode() + b"\n",
            "attention.npz": self._pack_arrays(),
        }
        for name, figure in self._draw(max_distance):
            files[name] = _render(figure)
        os.makedirs(folder, exist_ok=True)
        for name, content in files.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)
        return list(files)

    def _make_record(self) -> dict[str, Any]:
        stretch, attention = self.stretch, self.stretch.attention
        return {
            **self.settings,
            "targets": self.averages.n_targets,
            "heads": self.list_heads(),
            "stretch": {
                "start": stretch.start,
                "length": len(attention.visible),
                "first_key": stretch.first_key,
                "heads": list(map(str, stretch.heads)),
                "symbols": self._list_symbols(),
            },
        }

    def _pack_arrays(self) -> bytes:
        averages, attention = self.averages, self.stretch.attention
        arrays = {
            "weights": averages.weights,
            **{f"term_{name}": averages.terms[name] for name in TERMS},
            "stretch_heads": np.array(self.stretch.heads),
            "stretch_ids": self.stretch.ids,
            "stretch_visible": attention.visible,
            "stretch_weights": attention.weights,
            **{f"stretch_{name}": term for name, term in zip(TERMS, attention.terms, strict=True)},
        }
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()

    def _draw(self, max_distance: int | None) -> Iterator[tuple[str, "Figure"]]:
        averages, stretch, settings = self.averages, self.stretch, self.settings
        limit = averages.weights.shape[-1] - 1 if max_distance is None else max_distance
        over = f"{averages.n_targets:,} targets of {settings['dataset']}, split {settings['split']}"
        note = f"; dotted: {averages.tgt_len}, the segment"
        title = f"Attention by distance, mean over {over}{note}"
        yield "attention-by-distance.png", draw_averages(averages, max_distance=limit, title=title)
        title = f"Terms of the scores, each through a softmax of its own, mean over {over}{note}"
        yield "attention-by-term.png", draw_terms(averages, max_distance=limit, title=title)
        last = stretch.start + len(stretch.attention.visible) - 1
        title = f"Attention of targets {stretch.start:,} to {last:,} of split {settings['split']}"
        yield (
            "attention-of-heads.png",
            draw_stretch(
                stretch.attention,
                stretch.heads,
                [name_symbol(self.vocabulary, token) for token in stretch.ids.tolist()],
                are_characters=self.vocabulary is not None
                and self.vocabulary.level in CHARACTER_LEVELS,
                max_distance=limit,
                title=title,
            ),
        )

    def _list_symbols(self) -> list[str]:
        if self.vocabulary is None:
            return [str(token) for token in self.stretch.ids.tolist()]
        return [show_symbol(self.vocabulary, token) for token in self.stretch.ids.tolist()]


def find_widest_heads(averages: AttentionAverages, count: int = 3) -> list[Head]:
    """Returns the heads with the largest mean distances, the widest first, as figure 6 has them."""
    distances = averages.mean_distance
    order = np.argsort(-distances, axis=None, kind="stable")[:count]
    return [Head(*(int(index) for index in np.unravel_index(i, distances.shape))) for i in order]


def _name_share(share: float) -> str:
    return f"distance_of_{share:.0%}".replace("%", "_percent")


def _render(figure: "Figure") -> bytes:
    """Returns a figure as PNG."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # no font has the characters of every vocabulary
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="png", dpi=_DPI)
    return buffer.getvalue()
