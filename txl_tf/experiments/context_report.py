"""The report of how far models look: tables, `context.json` and figures."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from txl_tf.experiments.attention_lengths import AttentionLengths
from txl_tf.experiments.context_plots import (
    draw_attention_lengths,
    draw_context_curves,
    draw_gains,
)
from txl_tf.experiments.effective_length import (
    compare_models,
    find_effective_length,
    summarize_losses,
)
from txl_tf.experiments.report import format_row, write_report

_PERPLEXITY = "perplexity"


class ContextReport:
    """The context lengths of a group of models.

    Args:
        settings: The settings that the results depend on, for `context.json`.
        losses: (C, n) the losses of each model in nats, by its name.
        lengths: The C context lengths.
        measure: The unit of the results: "perplexity", or bits per token by whatever name.
        shares: The shares r of the targets that count for the RECL.
        threshold: The least relative gain of the RECL.
        ecl_threshold: The least relative gain of the ECL.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        losses: Mapping[str, np.ndarray],
        lengths: Sequence[int],
        *,
        measure: str,
        shares: Sequence[float],
        threshold: float,
        ecl_threshold: float,
    ):
        self._settings = settings
        self._lengths = list(lengths)
        self._measure = measure
        self._curves = {
            name: summarize_losses(values, as_perplexity=measure == _PERPLEXITY)
            for name, values in losses.items()
        }
        self._effective = {
            name: find_effective_length(values, lengths, ecl_threshold)
            for name, values in losses.items()
        }
        self._relative = [
            compare_models(list(losses.values()), lengths, share, threshold) for share in shares
        ]
        self._attention: dict[str, AttentionLengths] = {}
        self._attention_values: dict[str, list[float]] = {}

    def add_attention_lengths(self, name: str, found: AttentionLengths) -> None:
        """Adds the scores of a model by attention length."""
        unit = "perplexity" if self._measure == _PERPLEXITY else "bits_per_token"
        self._attention[name] = found
        self._attention_values[name] = [getattr(score, unit) for score in found.scores]

    def format_contexts(self) -> Iterator[str]:
        """Yields the rows of the table of contexts."""
        yield self._format_row("c", list(self._curves))
        for index, length in enumerate(self._lengths):
            cells = [
                f"{curve.means[index]:,.4f}"
                f" {curve.excess[index]:+.4f} ± {curve.excess_errors[index]:.4f}"
                for curve in self._curves.values()
            ]
            yield self._format_row(f"{length:,}", cells)
        errors = [f"± {curve.errors[-1]:.4f}" for curve in self._curves.values()]
        yield self._format_row("standard error", errors)
        yield self._format_row("ECL", list(map(str, self._effective.values())))
        for relative in self._relative:
            label = f"RECL, r = {relative.share:g}"
            yield self._format_row(label, list(map(str, relative.lengths)))

    def format_attention_lengths(self) -> Iterator[str]:
        """Yields the rows of the table of attention lengths."""
        yield self._format_row("", ["init", "best", "Attn Len"])
        for name, found in self._attention.items():
            values = dict(zip(found.lengths, self._attention_values[name], strict=True))
            initial = f"{values[found.initial]:,.4f} at {found.initial:,}"
            cells = [initial, f"{values[found.best]:,.4f}", f"{found.best:,}"]
            yield self._format_row(name, cells)

    def _format_row(self, label: str, cells: Sequence[str]) -> str:
        longest = max(map(len, self._curves))
        return format_row(label, cells, label_width=max(16, longest + 2), width=max(28, longest))

    def write(self, out: str) -> None:
        """Writes the figures and `context.json` to a folder.

        Raises:
            UserError: If they cannot be written.
        """
        names = list(self._curves)
        figures = {
            "context.png": draw_context_curves(self._lengths, self._curves, self._measure),
            "gains.png": draw_gains(self._lengths, names, self._relative[0]),
        }
        if self._attention:
            figures["attention_lengths.png"] = draw_attention_lengths(
                self._attention, self._attention_values, self._measure
            )
        write_report(out, "context.json", self._make_record(), figures)

    def _make_record(self) -> dict[str, Any]:
        """Returns the content of `context.json`."""
        return {
            **self._settings,
            "measure": self._measure,
            "contexts": self._lengths,
            "losses": {
                name: {
                    "mean": curve.means.tolist(),
                    "standard_error": curve.errors.tolist(),
                    "standard_error_of_difference_to_last": curve.excess_errors.tolist(),
                }
                for name, curve in self._curves.items()
            },
            "ecl": {name: length._asdict() for name, length in self._effective.items()},
            "recl": [
                {
                    "share": relative.share,
                    "targets": relative.n_positions,
                    "runs": {
                        name: {**length._asdict(), "losses": _list_known(means)}
                        for name, length, means in zip(
                            self._curves, relative.lengths, relative.losses, strict=True
                        )
                    },
                }
                for relative in self._relative
            ],
            "attention_lengths": {
                name: {
                    "lengths": found.lengths,
                    "losses": self._attention_values[name],
                    "initial": found.initial,
                    "best": found.best,
                    "tokens": found.scores[0].tokens,
                }
                for name, found in self._attention.items()
            },
        }


def _list_known(means: np.ndarray) -> list[list[float | None]]:
    """Returns a matrix as lists, with `None` for NaN."""
    return [[None if np.isnan(value) else float(value) for value in row] for row in means]
