"""The report of an analysis of the attention: a table, numbers in two files, and the figures."""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from txl_tf.data.text.token_levels import CHARACTER_LEVELS
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.experiments.attention_average import AttentionAverages
from txl_tf.experiments.attention_plots import draw_by_distance, draw_stretch
from txl_tf.experiments.attention_reader import TERMS
from txl_tf.experiments.report import format_row, write_report
from txl_tf.experiments.shown_tokens import name_symbol
from txl_tf.experiments.text_attention import Head, HeadAttention
from txl_tf.scoring.text_report import show_symbol

_ARRAYS_NAME = "attention.npz"
_TITLES = {
    "a": "(a) content",
    "b": "(b) content and position",
    "c": "(c) global content bias",
    "d": "(d) global position bias",
}


class AttentionReport(NamedTuple):
    """The results of an analysis of the attention over a split."""

    settings: dict[str, Any]  # the run and the settings of the analysis, for JSON
    averages: AttentionAverages
    stretch: HeadAttention
    vocabulary: Vocabulary | None  # `None` if only ids are known

    def format_table(self) -> Iterator[str]:
        """Yields the lines of a table with a row for each head."""
        widths = {"label_width": 6, "width": 13}
        beyond = f"beyond {self.averages.tgt_len}"
        names = ("mean distance", "50% within", "90% within", beyond, "empty")
        yield format_row("head", names, **widths)
        for row in self.list_heads():
            label, *values = row.values()
            rules = (".1f", ",", ",", ".1%", ".1%")
            yield format_row(label, map(format, values, rules), **widths)

    def list_heads(self) -> list[dict[str, Any]]:
        """Returns the numbers of each head, for JSON."""
        averages = self.averages
        columns = {
            "mean_distance": averages.mean_distance,
            "distance_of_50_percent": averages.find_distance(0.5),
            "distance_of_90_percent": averages.find_distance(0.9),
            "beyond_segment": averages.beyond_segment,
            "empty": averages.empty,
        }
        return [
            {"head": str(Head(*index))}
            | {name: column[index].item() for name, column in columns.items()}
            for index in np.ndindex(averages.empty.shape)
        ]

    def write(self, folder: str, *, max_distance: int | None = None) -> list[str]:
        """Writes numbers and figures into a local folder, and returns the names of the files.

        `max_distance` is the largest distance in the figures; `None` for all.
        """
        if max_distance is None:
            max_distance = self.averages.weights.shape[-1] - 1
        figures = dict(self._draw(max_distance))
        names = write_report(folder, "attention.json", self._make_record(), figures)
        np.savez_compressed(os.path.join(folder, _ARRAYS_NAME), **self._list_arrays())
        return [*names, _ARRAYS_NAME]

    def _make_record(self) -> dict[str, Any]:
        stretch, vocabulary = self.stretch, self.vocabulary
        return {
            **self.settings,
            "targets": self.averages.n_targets,
            "heads": self.list_heads(),
            "stretch": {
                "start": stretch.first_target,
                "length": len(stretch.visible),
                "first_key": stretch.first_key,
                "heads": list(map(str, stretch.heads)),
                "symbols": [
                    show_symbol(vocabulary, token) if vocabulary is not None else str(token)
                    for token in stretch.ids.tolist()
                ],
            },
        }

    def _list_arrays(self) -> dict[str, Any]:
        averages, stretch = self.averages, self.stretch
        return {
            "weights": averages.weights,
            **{f"term_{name}": averages.terms[name] for name in TERMS},
            "stretch_heads": np.array(stretch.heads),
            "stretch_ids": stretch.ids,
            "stretch_visible": stretch.visible,
            "stretch_weights": stretch.weights,
            **{f"stretch_{name}": term for name, term in zip(TERMS, stretch.terms, strict=True)},
        }

    def _draw(self, max_distance: int) -> Iterator[tuple[str, Figure]]:
        """Yields the names of the figures and the figures."""
        averages, stretch, split = self.averages, self.stretch, self.settings["split"]
        over = f"{averages.n_targets:,} targets of {self.settings['dataset']}, split {split}"
        note = f"mean over {over}; dotted: {averages.tgt_len}, the segment"
        figure = draw_by_distance(
            {"": averages.weights},
            averages.tgt_len,
            max_distance,
            title=f"Attention by distance, {note}",
            label="mean attention weight",
        )
        yield "attention-by-distance.png", figure
        figure = draw_by_distance(
            {_TITLES[name]: weights for name, weights in averages.terms.items()},
            averages.tgt_len,
            max_distance,
            title=f"Terms of the scores, each through a softmax of its own, {note}",
            label="mean weight of the term alone",
        )
        yield "attention-by-term.png", figure
        first, vocabulary = stretch.first_target, self.vocabulary
        last = first + len(stretch.visible) - 1
        figure = draw_stretch(
            stretch,
            [name_symbol(vocabulary, token) for token in stretch.ids.tolist()],
            max_distance,
            f"Attention of targets {first:,} to {last:,} of split {split}",
            are_characters=vocabulary is not None and vocabulary.level in CHARACTER_LEVELS,
        )
        yield "attention-of-heads.png", figure
