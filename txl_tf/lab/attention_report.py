"""The report on the attention of a model: a table, numbers, and figures (appendix D)."""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from txl_tf.data import Vocabulary
from txl_tf.lab.attention_average import AttentionAverages
from txl_tf.lab.attention_reader import TERMS
from txl_tf.lab.report import format_row, make_figure, write_report
from txl_tf.lab.shown_tokens import name_symbol
from txl_tf.lab.text_attention import Head, HeadAttention
from txl_tf.scoring.metrics import name_unit
from txl_tf.scoring.text_report import show_symbol

_ARRAYS_NAME = "attention.npz"
_TITLES = {
    "a": "(a) content",
    "b": "(b) content and position",
    "c": "(c) global content bias",
    "d": "(d) global position bias",
}
TOP_SHARE = 0.2  # of the tokens that a target sees, marked in figure 6
_LOWEST = 1e-5  # smaller weights have the color of this one
_UNSEEN = "#dce6f2"  # the color of tokens that a target does not see
_BAR: dict[str, Any] = {"extend": "min", "extendfrac": 0.03, "aspect": 30}
_MAX_LABELS = 40  # of heads
_STRETCH_WIDTH = 10  # inches
_LABEL_GAP = 0.14  # inches between labels of tokens
_LABELS: dict[str, Any] = {"fontsize": 8, "parse_math": False}
_MAX_LABEL = 14  # characters
_SPACE, _LINE_BREAK = "\u2423", "\\n"  # as `name_symbol` shows them


class AttentionReport(NamedTuple):
    """The results of an attention analysis over a split."""

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
            are_characters=vocabulary is not None and name_unit(vocabulary.level) == "bpc",
        )
        yield "attention-of-heads.png", figure


def draw_by_distance(
    panels: Mapping[str, np.ndarray], tgt_len: int, max_distance: int, *, title: str, label: str
) -> Figure:
    """Draws weights (L, N, distances), given by the title of their panel.

    A row is a head, a column a distance. A dotted line marks the segment length.
    """
    n_layer, n_head, n_distances = next(iter(panels.values())).shape
    n_heads, n_shown = n_layer * n_head, min(max_distance + 1, n_distances)
    height = min(max(2.5, 1.5 + 0.2 * n_heads), 9.0)
    n_lines = 1 if len(panels) == 1 else 2
    figure = make_figure(5 + 4 * n_lines, n_lines - 1 + n_lines * height)
    grid = figure.subplots(n_lines, n_lines, squeeze=False)
    for axes, (name, weights) in zip(grid.flat, panels.items(), strict=True):
        image = axes.imshow(
            np.maximum(weights.reshape(n_heads, n_distances)[:, :n_shown], _LOWEST),
            norm=LogNorm(_LOWEST, 1),
            aspect="auto",
            interpolation="none",
            extent=(-0.5, n_shown - 0.5, n_heads - 0.5, -0.5),
        )
        axes.set_title(name)
        axes.set_xlabel("distance")
        rows = range(0, n_heads, 1 + n_heads // _MAX_LABELS)
        axes.set_yticks(rows, [str(Head(*divmod(row, n_head))) for row in rows])
        axes.set_ylabel("layer.head")
        if 0 < tgt_len < n_shown:
            axes.axvline(tgt_len - 0.5, color="white", linestyle=":", linewidth=1)
    figure.suptitle(title)
    figure.colorbar(image, ax=grid, label=label, **_BAR)
    return figure


def draw_stretch(
    stretch: HeadAttention,
    symbols: Sequence[str],
    max_distance: int,
    title: str,
    *,
    are_characters: bool,
) -> Figure:
    """Draws what each target of a stretch of text attends to, one panel per head.

    A row is a target, a column a token before it. Of the tokens that a target sees, the `TOP_SHARE`
    with the largest weights are drawn in red, the others in gray. `symbols` are the names, from
    `name_symbol`, of the tokens from the first key to the last target; characters are labeled in
    words.
    """
    visible = stretch.visible
    n_queries, n_keys = visible.shape
    first_target = n_keys - n_queries + 1
    first = max(first_target - 1 - max_distance, int(visible.any(axis=0).argmax()))
    # Columns are counted from the first target.
    left, right = first - first_target, n_keys - first_target
    row_height = _LABEL_GAP / 2 if are_characters else _LABEL_GAP
    rows = choose_labels(symbols[-n_queries:], are_characters, gap=_LABEL_GAP / row_height)
    column_width = 0.75 * _STRETCH_WIDTH / (right - left)
    columns = choose_labels(symbols[first:-1], are_characters, gap=_LABEL_GAP / column_width)
    height = 1.4 + max(1.5, row_height * n_queries)
    figure = make_figure(_STRETCH_WIDTH, 0.4 + height * len(stretch.heads))
    panels = figure.subplots(len(stretch.heads), 1, squeeze=False)[:, 0]
    images: dict[str, Any] = {}
    for axes, head, weights in zip(panels, stretch.heads, stretch.weights, strict=True):
        is_top = mark_top(weights, visible)
        for cmap, is_drawn in (("Reds", is_top), ("Greys", visible & ~is_top)):
            images[cmap] = axes.imshow(
                np.ma.array(np.maximum(weights, _LOWEST), mask=~is_drawn)[:, first:],
                cmap=cmap,
                norm=LogNorm(_LOWEST, 1),
                aspect="auto",
                extent=(left - 0.5, right - 0.5, n_queries - 0.5, -0.5),
                interpolation="none",
            )
        axes.set_facecolor(_UNSEEN)
        axes.set_title(f"head {head}")
        axes.set_ylabel("target")
        axes.set_yticks(list(rows), rows.values(), **_LABELS)
        places = [left + column for column in columns]
        axes.set_xticks(places, columns.values(), rotation=90, **_LABELS)
        axes.set_xlabel("tokens before the targets")
    for cmap, name in (("Reds", f"top {TOP_SHARE:.0%}"), ("Greys", "other tokens")):
        label = f"weight, {name}"
        figure.colorbar(images[cmap], ax=panels, label=label, pad=0.01, fraction=0.02, **_BAR)
    figure.suptitle(title)
    return figure


def choose_labels(symbols: Sequence[str], are_characters: bool, *, gap: float) -> dict[int, str]:
    """Returns labels of tokens by index, at least `gap` apart; characters are joined into words.

    >>> choose_labels(["a", "n", "\u2423", "o", "x"], True, gap=2)
    {0: 'an', 3: 'ox'}
    """
    breaks = {_SPACE, _LINE_BREAK}
    starts = [
        index
        for index, symbol in enumerate(symbols)
        if not are_characters or index == 0 or {symbol, symbols[index - 1]} & breaks
    ]
    labels: dict[int, str] = {}
    end = 0.0
    for start, stop in itertools.pairwise([*starts, len(symbols)]):
        word = "".join(symbols[start:stop])
        if start >= end and word != _SPACE:
            labels[start] = word if len(word) <= _MAX_LABEL else f"{word[: _MAX_LABEL - 1]}\u2026"
            end = start + gap
    return labels


def mark_top(weights: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Returns whether each key has one of the largest weights in its row, (q, k) bool.

    A share of `TOP_SHARE` of the visible keys of each query is marked, rounded up.
    """
    order = np.argsort(np.where(visible, -weights, np.inf), axis=1, kind="stable")
    places = np.argsort(order, axis=1)  # 0 for the largest weight of the row
    return places < np.ceil(TOP_SHARE * visible.sum(axis=1, keepdims=True))
