"""Figures of context lengths: curves (figure 4 of the paper) and gains (figure 3)."""

from collections.abc import Mapping, Sequence

import numpy as np

from txl_tf.experiments.attention_lengths import AttentionLengths
from txl_tf.experiments.effective_length import ContextCurve, Relative

_DPI = 130


def draw_context_curves(
    path: str, lengths: Sequence[int], curves: Mapping[str, ContextCurve], measure: str
) -> None:
    """Draws the mean loss by context length.

    The bands are two standard errors of the difference to the longest context.

    Args:
        path: The PNG file.
        lengths: The C context lengths.
        curves: The curve of each model, by its name.
        measure: The unit of the means.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name, curve in curves.items():
        (line,) = axes.plot(lengths, curve.means, marker="o", markersize=3, label=name)
        low, high = (curve.means + sign * 2 * curve.excess_errors for sign in (-1, 1))
        axes.fill_between(lengths, low, high, alpha=0.15, color=line.get_color())
    axes.set_xlabel("context length (tokens); band: two standard errors of the difference")
    axes.set_ylabel(measure)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=_DPI)


def draw_gains(path: str, lengths: Sequence[int], names: Sequence[str], relative: Relative) -> None:
    """Draws what a longer context gains, exp f(c, c) - exp f(c, c'), a panel for each model.

    Args:
        path: The PNG file.
        lengths: The C context lengths.
        names: The name of each model.
        relative: The comparison of the models.
    """
    from matplotlib.figure import Figure

    gains = relative.gains
    figure = Figure(figsize=(1 + 4 * len(names), 4.2), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    step = max(1, len(lengths) // 8)
    places, labels = range(0, len(lengths), step), [f"{length:,}" for length in lengths[::step]]
    for axes, name, gain, length in zip(panels, names, gains, relative.lengths, strict=True):
        image = axes.imshow(gain, origin="lower", vmin=0, vmax=max(np.nanmax(gains), 1e-9))
        axes.set_title(f"{name}: RECL {length}", fontsize="medium")
        axes.set_xticks(places, labels, rotation=90)
        axes.set_yticks(places, labels)
        axes.set_xlabel("longer context c' (tokens)")
    panels[0].set_ylabel("context c (tokens)")
    figure.colorbar(image, ax=panels, label=f"gain in perplexity, r = {relative.share:g}")
    figure.savefig(path, dpi=_DPI)


def draw_attention_lengths(
    path: str, curves: Mapping[str, tuple[AttentionLengths, Sequence[float]]], measure: str
) -> None:
    """Draws the loss by the attention length at test time; a star marks that of training.

    Args:
        path: The PNG file.
        curves: The scores of each model and their values in the unit, by its name.
        measure: The unit of the values.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name, (found, values) in curves.items():
        (line,) = axes.plot(found.lengths, values, marker="o", markersize=3, label=name)
        initial = values[found.lengths.index(found.initial)]
        axes.plot([found.initial], [initial], "*", markersize=13, color=line.get_color())
    axes.set_xlabel("length of memory or window at test time (tokens); star: in training")
    axes.set_ylabel(measure)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=_DPI)
