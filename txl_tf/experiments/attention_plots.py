"""The figures of the paper's appendix D: attention by distance, by term, and in a text."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from txl_tf.experiments.attention_average import AttentionAverages
from txl_tf.experiments.report import make_figure
from txl_tf.experiments.text_attention import Head, HeadAttention

TOP_SHARE = 0.2  # of the tokens that a target sees, marked in figure 6
_LOWEST = 1e-5  # smaller weights have the color of this one
_UNSEEN = "#dce6f2"  # the color of tokens that a target does not see
_BAR: dict[str, Any] = {"extend": "min", "extendfrac": 0.03, "aspect": 30}
_MAX_HEADS = 40  # rows with a label each
_MAX_SYMBOLS = 200  # columns that are labeled with tokens
_STRETCH_WIDTH = 10  # inches
_LABEL_GAP = 0.14  # inches between labels of tokens
_LABELS: dict[str, Any] = {"fontsize": 8, "parse_math": False}
_MAX_LABEL = 14  # characters
TITLES = {
    "a": "(a) content",
    "b": "(b) content and position",
    "c": "(c) global content bias",
    "d": "(d) global position bias",
}
_SPACE, _LINE_BREAK = "\u2423", "\\n"  # as `name_symbol` shows them


def draw_averages(averages: AttentionAverages, max_distance: int, title: str) -> Figure:
    """Draws the mean attention weights, a row for each head and a column for each distance."""
    figure = make_figure(9, _choose_height(averages))
    axes = figure.subplots()
    image = _draw_heads(axes, averages.weights, averages.tgt_len, max_distance)
    axes.set_title(title)
    figure.colorbar(image, ax=axes, label="mean attention weight", **_BAR)
    return figure


def draw_terms(averages: AttentionAverages, max_distance: int, title: str) -> Figure:
    """Draws each term of the scores alone, through a softmax of its own, like `draw_averages`."""
    figure = make_figure(13, 1 + 2 * _choose_height(averages))
    panels = figure.subplots(2, 2)
    for axes, (name, weights) in zip(panels.flat, averages.terms.items(), strict=True):
        image = _draw_heads(axes, weights, averages.tgt_len, max_distance)
        axes.set_title(TITLES[name])
    figure.suptitle(title)
    figure.colorbar(image, ax=panels, label="mean weight of the term alone", **_BAR)
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
    with the largest weights are drawn in red, and the others in gray.

    Args:
        stretch: The attention of the heads.
        symbols: The symbols from the first key to the last target, k + 1, from `name_symbol`.
        max_distance: The largest distance to draw.
        title: The title.
        are_characters: Whether the tokens are bytes or characters, which are labeled as words.
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
        axes.set_xlabel("position of the token, counted from the first target")
        if right - left <= _MAX_SYMBOLS:
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
    """Returns whether each of the visible keys has one of the largest weights of its row.

    Args:
        weights: (q, k), the weights of a head.
        visible: (q, k) bool, the keys that each query sees. `TOP_SHARE` of them are marked, rounded
            up.

    Returns:
        (q, k) bool.
    """
    is_top = np.zeros_like(visible)
    for row, seen, marks in zip(weights, visible, is_top, strict=True):
        count = math.ceil(TOP_SHARE * int(seen.sum()))
        order = np.argsort(np.where(seen, -row, np.inf), kind="stable")
        marks[order[:count]] = True
    return is_top


def _choose_height(averages: AttentionAverages) -> float:
    """Returns the height in inches of a panel with a row for each head."""
    n_layer, n_head, _ = averages.weights.shape
    return min(max(2.5, 1.5 + 0.2 * n_layer * n_head), 9.0)


def _draw_heads(axes: Axes, weights: np.ndarray, tgt_len: int, max_distance: int) -> Any:
    """Draws weights (L, N, distances) and returns the image."""
    n_layer, n_head, _ = weights.shape
    shown = weights.reshape(n_layer * n_head, -1)[:, : max_distance + 1]
    image = axes.imshow(
        np.maximum(shown, _LOWEST),
        norm=LogNorm(_LOWEST, 1),
        aspect="auto",
        interpolation="none",
        extent=(-0.5, shown.shape[1] - 0.5, len(shown) - 0.5, -0.5),
    )
    if len(shown) <= _MAX_HEADS:
        labels = [str(Head(*divmod(row, n_head))) for row in range(len(shown))]
        axes.set_yticks(range(len(shown)), labels)
        axes.set_ylabel("layer.head")
    else:
        axes.set_yticks(np.arange(n_layer) * n_head - 0.5, map(str, range(n_layer)))
        axes.set_ylabel(f"layer ({n_head} heads each)")
    if 0 < tgt_len < shown.shape[1]:
        axes.axvline(tgt_len - 0.5, color="white", linestyle=":", linewidth=1)
    axes.set_xlabel("distance")
    return image
