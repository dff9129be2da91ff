"""The figures of the paper's appendix D: attention by distance, by term, and in a text."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from txl_tf.analysis.attention_average import AttentionAverages
from txl_tf.inference.text_attention import Head, HeadAttention

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOP_SHARE = 0.2  # of the tokens that a target sees, marked in figure 6
_LOWEST = 1e-5  # smaller weights have the colour of this one
_UNSEEN = "#dce6f2"  # the colour of tokens that a target does not see
_BAR: dict[str, Any] = {"extend": "min", "extendfrac": 0.03, "aspect": 30}
_MAX_HEADS = 40  # rows with a label each
_MAX_SYMBOLS = 200  # columns with a label each
TITLES = {
    "a": "(a) content",
    "b": "(b) content and position",
    "c": "(c) global content bias",
    "d": "(d) global position bias",
}
_SPACE, _LINE_BREAK = "\u2423", "\u21b5"


def draw_averages(averages: AttentionAverages, *, max_distance: int, title: str) -> "Figure":
    """Draws the mean attention weights, a row for each head and a column for each distance.

    Args:
        averages: The averages.
        max_distance: The largest distance to draw.
        title: The title.
    """
    figure = _make_figure(9, _choose_height(averages.weights))
    axes = figure.subplots()
    image = _draw_heads(axes, averages.weights, averages.tgt_len, max_distance)
    axes.set_title(title)
    figure.colorbar(image, ax=axes, label="mean attention weight", **_BAR)
    return figure


def draw_terms(averages: AttentionAverages, *, max_distance: int, title: str) -> "Figure":
    """Draws each term of the scores alone, through a softmax of its own, like `draw_averages`."""
    figure = _make_figure(13, 1 + 2 * _choose_height(averages.weights))
    panels = figure.subplots(2, 2)
    image: Any = None
    for axes, (name, weights) in zip(panels.flat, averages.terms.items(), strict=True):
        image = _draw_heads(axes, weights, averages.tgt_len, max_distance)
        axes.set_title(TITLES[name])
    figure.suptitle(title)
    figure.colorbar(image, ax=panels, label="mean weight of the term alone", **_BAR)
    return figure


def draw_stretch(
    attention: HeadAttention,
    heads: Sequence[Head],
    symbols: Sequence[str],
    *,
    max_distance: int,
    title: str,
) -> "Figure":
    """Draws what each target of a stretch of text attends to, a panel for each head.

    A row is a target, a column a token before it. Of the tokens that a target sees, the `TOP_SHARE`
    with the largest weights are drawn in red, and the others in grey.

    Args:
        attention: The attention of the heads.
        heads: The heads.
        symbols: The symbols from the first key to the last target, k + 1.
        max_distance: The largest distance to draw.
        title: The title.
    """
    from matplotlib.colors import LogNorm

    n_queries, n_keys = attention.visible.shape
    first_target = n_keys - n_queries + 1
    first = max(first_target - 1 - max_distance, int(attention.visible.any(axis=0).argmax()))
    labels = [_show(symbol) for symbol in symbols]
    width = min(max(8.0, 2.5 + 0.11 * (n_keys - first)), 24.0)
    height = max(3.0, 1.2 + 0.14 * n_queries)
    figure = _make_figure(width, 0.6 + height * len(heads))
    panels = figure.subplots(len(heads), 1, squeeze=False)[:, 0]
    norm = LogNorm(_LOWEST, 1)
    # Columns are counted from the first target.
    left, right = first - first_target, n_keys - first_target
    extent = (left - 0.5, right - 0.5, n_queries - 0.5, -0.5)
    for axes, head, weights in zip(panels, heads, attention.weights, strict=True):
        is_top = mark_top(weights, attention.visible)
        for cmap, is_drawn in (("Greys", attention.visible & ~is_top), ("Reds", is_top)):
            shown = np.ma.array(np.maximum(weights, _LOWEST), mask=~is_drawn)[:, first:]
            image = axes.imshow(
                shown, cmap=cmap, norm=norm, aspect="auto", extent=extent, interpolation="none"
            )
            text = f"top {TOP_SHARE:.0%}" if cmap == "Reds" else "other tokens"
            bar = figure.colorbar(image, ax=axes, pad=0.01, fraction=0.03, label=text, **_BAR)
            if cmap == "Reds":
                bar.ax.set_title("weight", fontsize=8)
        axes.set_facecolor(_UNSEEN)
        axes.set_title(f"head {head}")
        axes.set_ylabel("target")
        axes.set_yticks(range(n_queries), labels[-n_queries:], fontsize=8, parse_math=False)
        if right - left <= _MAX_SYMBOLS:
            rotation = 90 if max(map(len, labels)) > 1 else 0
            axes.set_xticks(
                range(left, right),
                labels[first:-1],
                fontsize=7,
                rotation=rotation,
                parse_math=False,
            )
            axes.set_xlabel("tokens before the targets")
        else:
            axes.set_xlabel("position of the token, counted from the first target")
    figure.suptitle(title)
    return figure


def mark_top(weights: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Returns which keys are among the `TOP_SHARE` with the largest weights, (q, k) bool.

    Args:
        weights: (q, k), the weights of a head.
        visible: (q, k) bool, the keys that each query sees, of which the share is taken, rounded
            up.
    """
    is_top = np.zeros_like(visible)
    for row, seen, marks in zip(weights, visible, is_top, strict=True):
        count = math.ceil(TOP_SHARE * int(seen.sum()))
        order = np.argsort(np.where(seen, -row, np.inf), kind="stable")
        marks[order[:count]] = True
    return is_top


def _make_figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _choose_height(weights: np.ndarray) -> float:
    n_rows = weights.shape[0] * weights.shape[1]
    return min(max(2.5, 1.5 + 0.2 * n_rows), 9.0)


def _draw_heads(axes: "Axes", weights: np.ndarray, tgt_len: int, max_distance: int) -> Any:
    """Draws weights (L, N, distances) and returns the image."""
    from matplotlib.colors import LogNorm

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


def _show(symbol: str) -> str:
    if symbol in ("\n", r"\n"):
        return _LINE_BREAK
    shown = symbol.replace(" ", _SPACE)
    return shown if shown.isprintable() else shown.encode("unicode_escape").decode("ascii")
