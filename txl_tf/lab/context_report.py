"""The report on how much context models use: tables, `context.json` and figures."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from txl_tf.lab.attention_lengths import AttentionLengths
from txl_tf.lab.effective_length import ContextCurve, Length, Relative
from txl_tf.lab.report import format_row, make_figure, write_report

_LINE: dict[str, Any] = {"marker": "o", "markersize": 3}


class ContextReport(NamedTuple):
    """The context lengths of a group of models, by their names."""

    settings: Mapping[str, Any]  # the settings that the results depend on, for `context.json`
    measure: str  # "perplexity", or the name of bits per token
    lengths: list[int]
    curves: Mapping[str, ContextCurve]
    effective: Mapping[str, Length]
    relative: Sequence[Relative]  # for each share
    attention: dict[str, tuple[AttentionLengths, list[float]]]  # with the loss of each length

    def add_attention_lengths(self, name: str, found: AttentionLengths) -> None:
        """Adds the scores of a model by attention length."""
        unit = "perplexity" if self.measure == "perplexity" else "bits_per_token"
        self.attention[name] = found, [getattr(score, unit) for score in found.scores]

    def format_contexts(self) -> Iterator[str]:
        """Yields the rows of the table of contexts."""
        yield self._format_row("c", list(self.curves))
        for index, length in enumerate(self.lengths):
            cells = [
                f"{curve.means[index]:,.4f}"
                f" {curve.excess[index]:+.4f} ± {curve.excess_errors[index]:.4f}"
                for curve in self.curves.values()
            ]
            yield self._format_row(f"{length:,}", cells)
        errors = [f"± {curve.errors[-1]:.4f}" for curve in self.curves.values()]
        yield self._format_row("standard error", errors)
        yield self._format_row("ECL", list(map(str, self.effective.values())))
        for relative in self.relative:
            label = f"RECL, r = {relative.share:g}"
            yield self._format_row(label, list(map(str, relative.lengths)))

    def format_attention_lengths(self) -> Iterator[str]:
        """Yields the rows of the table of attention lengths."""
        yield self._format_row("", ["init", "best", "Attn Len"])
        for name, (found, losses) in self.attention.items():
            values = dict(zip(found.lengths, losses, strict=True))
            initial = f"{values[found.initial]:,.4f} at {found.initial:,}"
            cells = [initial, f"{min(losses):,.4f}", f"{found.best:,}"]
            yield self._format_row(name, cells)

    def _format_row(self, label: str, cells: Sequence[str]) -> str:
        longest = max(map(len, self.curves))
        return format_row(label, cells, label_width=max(16, longest + 2), width=max(28, longest))

    def write(self, out: str) -> None:
        """Writes the figures and `context.json` to a folder."""
        figures = {
            "context.png": draw_context_curves(self.lengths, self.curves, self.measure),
            "gains.png": draw_gains(self.lengths, list(self.curves), self.relative[0]),
        }
        if self.attention:
            figure = draw_attention_lengths(self.attention, self.measure)
            figures["attention_lengths.png"] = figure
        write_report(out, "context.json", self.make_record(), figures)

    def make_record(self) -> dict[str, Any]:
        """Returns the content of `context.json`."""
        return {
            **self.settings,
            "measure": self.measure,
            "contexts": self.lengths,
            "losses": {
                name: {
                    "mean": curve.means.tolist(),
                    "standard_error": curve.errors.tolist(),
                    "standard_error_of_difference_to_last": curve.excess_errors.tolist(),
                }
                for name, curve in self.curves.items()
            },
            "ecl": {name: length._asdict() for name, length in self.effective.items()},
            "recl": [
                {
                    "share": relative.share,
                    "targets": relative.n_positions,
                    "runs": {
                        name: {**length._asdict(), "losses": _list_known(means)}
                        for name, length, means in zip(
                            self.curves, relative.lengths, relative.losses, strict=True
                        )
                    },
                }
                for relative in self.relative
            ],
            "attention_lengths": {
                name: {
                    "lengths": found.lengths,
                    "losses": losses,
                    "initial": found.initial,
                    "best": found.best,
                    "tokens": found.scores[0].tokens,
                }
                for name, (found, losses) in self.attention.items()
            },
        }


def _list_known(means: np.ndarray) -> list[list[float | None]]:
    """Returns a matrix as lists, with `None` for NaN."""
    return [[None if np.isnan(value) else float(value) for value in row] for row in means]


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
    """Draws the loss of each model by its attention length at test time."""
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
    """Draws the gain from a longer context, exp f(c, c) - exp f(c, c'), one panel per model."""
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
    figure = make_figure(7, 4.5)
    axes = figure.add_subplot()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    return figure
