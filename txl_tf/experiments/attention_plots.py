"""The figures of the paper's appendix D: attention by distance, by term, and in a text."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from txl_tf.experiments.report import make_figure
from txl_tf.experiments.text_attention import Head, HeadAttention

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


def draw_by_distance(
    panels: Mapping[str, np.ndarray], tgt_len: int, max_distance: int, *, title: str, label: str
) -> Figure:
    """Draws weights (L, N, distances), by the title of their panel.

    A row is a head, and a column a distance. A dotted line marks the segment length.
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
    """Draws what each target of a stretch of text attends to, a panel for each head.

    A row is a target, a column a token before it. Of the tokens that a target sees, the `TOP_SHARE`
    with the largest weights are drawn in red, and the others in gray. `symbols` are those from the
    first key to the last target, from `name_symbol`; characters are labeled as words.
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
    """Returns labels of tokens by index, `gap` tokens apart; characters are joined to words.

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
    """Returns whether each key has one of the largest weights of its row, (q, k) bool.

    Of the visible keys of each query, (q, k) bool, `TOP_SHARE` are marked, rounded up.
    """
    order = np.argsort(np.where(visible, -weights, np.inf), axis=1, kind="stable")
    places = np.argsort(order, axis=1)  # 0 for the largest weight of the row
    return places < np.ceil(TOP_SHARE * visible.sum(axis=1, keepdims=True))
