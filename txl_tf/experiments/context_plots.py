"""The figures of context lengths: curves (figure 4 of the paper) and gains (figure 3)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from txl_tf.experiments.attention_lengths import AttentionLengths
from txl_tf.experiments.effective_length import ContextCurve, Relative
from txl_tf.experiments.report import make_figure

_LINE: dict[str, Any] = {"marker": "o", "markersize": 3}


def draw_context_curves(
    lengths: Sequence[int], curves: Mapping[str, ContextCurve], measure: str
) -> Figure:
    """Draws the mean loss of each model by context length."""
    label = "context length (tokens); band: two standard errors of the difference"
    figure = _make_axes(label, measure)
    axes = figure.gca()
    for name, curve in curves.items():
        (line,) = axes.plot(lengths, curve.means, label=name, **_LINE)
        low, high = (curve.means + sign * 2 * curve.excess_errors for sign in (-1, 1))
        axes.fill_between(lengths, low, high, alpha=0.15, color=line.get_color())
    axes.legend()
    return figure


def draw_attention_lengths(
    found: Mapping[str, tuple[AttentionLengths, Sequence[float]]], measure: str
) -> Figure:
    """Draws the loss of each model by the attention length at test time."""
    label = "length of memory or window at test time (tokens); star: in training"
    figure = _make_axes(label, measure)
    axes = figure.gca()
    for name, ((lengths, _, initial), losses) in found.items():
        (line,) = axes.plot(lengths, losses, label=name, **_LINE)
        height = losses[lengths.index(initial)]
        axes.plot([initial], [height], "*", markersize=13, color=line.get_color())
    axes.legend()
    return figure


def draw_gains(lengths: Sequence[int], names: Sequence[str], relative: Relative) -> Figure:
    """Draws the gain of a longer context, exp f(c, c) - exp f(c, c'), a panel for each model."""
    figure = make_figure(1 + 4 * len(names), 4.2)
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    step = max(1, len(lengths) // 8)
    places, labels = range(0, len(lengths), step), [f"{length:,}" for length in lengths[::step]]
    gains = relative.gains
    largest = max(np.nanmax(gains), 1e-9)
    for axes, name, gain, length in zip(panels, names, gains, relative.lengths, strict=True):
        image = axes.imshow(gain, origin="lower", vmin=0, vmax=largest)
        axes.set_title(f"{name}: RECL {length}", fontsize="medium")
        axes.set_xticks(places, labels, rotation=90)
        axes.set_yticks(places, labels)
        axes.set_xlabel("longer context c' (tokens)")
    panels[0].set_ylabel("context c (tokens)")
    figure.colorbar(image, ax=panels, label=f"gain in perplexity, r = {relative.share:g}")
    return figure


def _make_axes(x_label: str, y_label: str) -> Figure:
    """Returns a figure with labeled axes and a grid."""
    figure = make_figure(7, 4.5)
    axes = figure.add_subplot()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    return figure
