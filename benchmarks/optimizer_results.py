"""What the comparison of optimizers measured: curves, the table, its record and its picture."""

import itertools
import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from benchmarks.tables import print_table

REFERENCE = "adam-cosine"  # whose last loss the others are timed to, unless it is missing


class Run(NamedTuple):
    """What was measured of a run.

    Args:
        flags: All its flags that decide a number.
        curve: The steps of the evaluations, and the bits per byte at each.
        tokens_per_second: The median speed of its training steps.
    """

    flags: list[str]
    curve: list[tuple[int, float]]
    tokens_per_second: float

    @property
    def bits(self) -> float:
        """The bits per byte at the end; infinite if the run ended before."""
        return self.curve[-1][1] if self.curve else math.inf


class Found(NamedTuple):
    """What was measured of a setting.

    Args:
        tuned: The bits per byte of each learning rate of the grid; empty for a recipe.
        rate: The best of them, or that of the recipe.
        runs: The runs with that rate, by seed.
    """

    tuned: dict[float, float]
    rate: float
    runs: dict[str, Run]

    @property
    def bits(self) -> list[float]:
        """The bits per byte of each seed."""
        return [run.bits for run in self.runs.values()]

    @property
    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """The steps of the evaluations, and the bits per byte at each: the mean of the seeds.

        Empty if the run of a seed ended before.
        """
        curves = [np.array(run.curve) for run in self.runs.values()]
        if not all(map(len, curves)):
            return np.zeros(0), np.zeros(0)
        return curves[0][:, 0], np.mean([curve[:, 1] for curve in curves], axis=0)


def find_step(curve: tuple[np.ndarray, np.ndarray], bits: float) -> float | None:
    """Returns the first step at which a curve reaches a loss, by linear interpolation.

    Args:
        curve: Steps, and the loss at each.
        bits: The loss.

    Returns:
        The step; `None` if the curve does not reach it.
    """
    steps, losses = curve
    reached = np.flatnonzero(losses <= bits)
    if not reached.size:
        return None
    last = int(reached[0])
    if last == 0:
        return float(steps[0])
    share = (losses[last - 1] - bits) / (losses[last - 1] - losses[last])
    return float(steps[last - 1] + share * (steps[last] - steps[last - 1]))


def make_record(found: Mapping[str, Found]) -> dict[str, Any]:
    """Returns what was measured, for the JSON file."""
    return {
        "settings": {
            name: {
                "flags": [
                    text
                    for text in next(iter(each.runs.values())).flags
                    if not text.startswith("--seed=")
                ],
                "tuned": {f"{rate:.3g}": bits for rate, bits in each.tuned.items()},
                "rate": each.rate,
                "bits": dict(zip(each.runs, each.bits, strict=True)),
                "curve": [array.tolist() for array in each.curve],
                "step_of_the_last_loss_of_adam": _time(found, name),
            }
            for name, each in found.items()
        },
    }


def _time(found: Mapping[str, Found], name: str) -> float | None:
    """Returns the step at which a setting reaches the last loss of the reference."""
    losses = found[find_reference(found)].curve[1]
    return find_step(found[name].curve, float(losses[-1])) if losses.size else None


def find_reference(found: Mapping[str, Found]) -> str:
    """Returns the setting to whose last loss the others are timed; the last one without Adam."""
    return REFERENCE if REFERENCE in found else list(found)[-1]


def print_settings(found: Mapping[str, Found]) -> None:
    """Prints a table of the settings, the best first."""
    header = (
        *("setting", "learning rate", "bits per byte", "range"),
        *(f"step with the last loss of {find_reference(found)}", "tokens/s"),
    )
    rows = []
    for name, each in sorted(found.items(), key=lambda item: statistics.mean(item[1].bits)):
        step = _time(found, name)
        speed = statistics.median(run.tokens_per_second for run in each.runs.values())
        cells = [
            *(name, f"{each.rate:.3g}", f"{statistics.mean(each.bits):.4f}"),
            f"{min(each.bits):.4f} to {max(each.bits):.4f}",
            *("never" if step is None else f"{step:,.0f}", f"{speed:,.0f}"),
        ]
        rows.append(cells)
    print_table(header, rows)


def draw(found: Mapping[str, Found], target: str) -> None:
    """Draws the curves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    styles = itertools.cycle(["-", "--", ":"])
    for (name, each), style in zip(found.items(), styles, strict=False):
        axes.plot(*each.curve, linestyle=style, label=f"{name}, {each.rate:.3g}")
    axes.set_xlabel("step")
    axes.set_ylabel("validation loss, bits per byte")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(target, dpi=120)
