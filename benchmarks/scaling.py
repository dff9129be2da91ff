"""How tokens per second change with the work: measured, and by one law for each kind of work.

python -m benchmarks.scaling --out scaling
python -m benchmarks.scaling --out scaling --axes d_model,tgt_len --plot docs/lab/scaling.png

Each axis changes one number of the byte model of `benchmarks.compare` and leaves the others as they
are. Training, evaluation and generation are measured at each value, in float32, with the `--jit`
that `auto` chooses. The law says that tokens per second are a rate divided by the cost of a token:
for generation the bytes that it reads, otherwise the operations of its matrix products. The rate is
the only number that is fitted, one for each line of the plot. `--out` keeps `scaling.json`; axes
that are not measured again stay in it, and the plot shows all of them.
"""

import dataclasses
import functools
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from benchmarks.compare import DROPOUT, WORKS
from benchmarks.inference_costs import count_bytes_per_token, count_flops_per_token
from benchmarks.tables import print_table
from benchmarks.works import Shape, measure_apart, measure_machine, repeat
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program
from txl_tf.quiet_start import quiet_start

JIT = "whole"  # the choice of `auto` in float32
N_SCORED = 4096  # tokens of the short texts that are scored in one call, at least
BASES = {
    "train": WORKS["train-bytes"].shape,
    "evaluate": WORKS["eval-bytes"].shape,
    "generate": WORKS["generate-bytes"].shape,
    "score": WORKS["eval-bytes"].shape._replace(batch_size=16),  # as `LanguageModel.score`
}
N_DRAWN = 320  # tokens after a prompt


class Axis(NamedTuple):
    """A number of the work that changes.

    Args:
        label: Its name in the plot, with its unit.
        values: Its values for each kind of work.
    """

    label: str
    values: dict[str, tuple[int, ...]]


_ALL = ("train", "evaluate", "generate")
AXES = {
    "d_model": Axis(
        "d_model (d_inner is 4 times as large)", dict.fromkeys(_ALL, (64, 128, 256, 512, 1024))
    ),
    "tgt_len": Axis(
        "segment length T, tokens", dict.fromkeys(_ALL[:2], (8, 32, 64, 128, 256, 512))
    ),
    "mem_len": Axis(
        "memory length M, tokens",
        {
            "train": (32, 128, 512, 1024),
            "evaluate": (40, 160, 640, 2560),
            "generate": (40, 160, 640, 2560, 10_240),
        },
    ),
    "batch_size": Axis("batch size B, texts", dict.fromkeys(_ALL, (1, 2, 4, 8, 16, 32))),
    "n_token": Axis(
        "vocabulary V, no cutoffs", dict.fromkeys(_ALL, (27, 250, 2000, 16_000, 64_000))
    ),
    "cut_n_token": Axis(
        "vocabulary V, cutoffs at V / 10 and V / 2",
        dict.fromkeys(_ALL, (2000, 16_000, 64_000, 256_000)),
    ),
    "text_len": Axis(
        "length of a prompt or of a scored text, tokens",
        {"generate": (1, 10, 100, 1000, 10_000), "score": (10, 30, 100, 300, 1000)},
    ),
}


def make_shape(work: str, axis: str, value: int) -> Shape:
    """Returns the shape of a kind of work at a value of an axis."""
    base = BASES[work]
    if axis == "d_model":
        return base._replace(d_model=value, d_inner=4 * value)
    if axis == "cut_n_token":
        return base._replace(n_token=value, cutoffs=(value // 10, value // 2))
    if axis == "text_len":
        return base
    changed: dict[str, Any] = {axis: value}
    return base._replace(**changed)


def count_cost(work: str, shape: Shape, text_len: int | None = None) -> float:
    """Returns the cost of a token that the law divides by.

    Args:
        work: The kind of work.
        shape: Its shape.
        text_len: The length of the scored texts.

    Returns:
        The bytes that are read for generation, and otherwise the operations of matrix products.
    """
    if work == "train":
        from benchmarks.train_step import count_flops

        return count_flops(shape, "uniform", 1) / (shape.batch_size * shape.tgt_len)
    if work == "evaluate":
        return count_flops_per_token(shape)
    if work == "generate":
        return count_bytes_per_token(shape)
    assert text_len is not None
    return _count_scoring_flops(shape, text_len)


def _count_scoring_flops(shape: Shape, text_len: int) -> float:
    """Returns the operations per token of short texts that are read in padded segments."""
    n_inputs, tgt_len = text_len - 1, shape.tgt_len
    # A segment that holds the whole text is read without memory. It has 8, 32, T, 2 T, ... tokens.
    sizes = itertools.chain((8, 32), (tgt_len << k for k in itertools.count()))
    whole = next(size for size in sizes if size >= n_inputs)
    flops = count_flops_per_token(shape._replace(tgt_len=whole, mem_len=0)) * whole
    if whole > tgt_len:  # several segments with memory, unless that is more work
        several = count_flops_per_token(shape) * -(-n_inputs // tgt_len) * tgt_len
        flops = min(flops, several) if whole <= shape.mem_len else several
    return flops / text_len


def measure_series(work: str, axis: str, values: tuple[int, ...], seconds: float) -> list[float]:
    """Returns the tokens per second of a kind of work at each value; called in a new process."""
    with quiet_start():
        import tensorflow  # noqa: F401
    shapes = [make_shape(work, axis, value) for value in values]
    if work == "train":
        return [_measure_training(shape, seconds) for shape in shapes]
    if work == "evaluate":
        return [_measure_evaluation(shape, seconds) for shape in shapes]
    if work == "score":
        pairs = zip(shapes, values, strict=True)
        return [_measure_scoring(shape, text_len, seconds) for shape, text_len in pairs]
    if axis == "text_len":
        (shape, *_) = shapes
        return _measure_prompts(shape, values)
    return [_measure_generation(shape, seconds) for shape in shapes]


def _measure_training(shape: Shape, seconds: float) -> float:
    from benchmarks.train_step import make_lanes
    from txl_tf.training.strategy import make_gpu_strategy
    from txl_tf.training.trainer import Trainer
    from txl_tf.training.workers import Workers

    model, training = shape.make_configs(DROPOUT)
    strategy = make_gpu_strategy(num_gpus=0, cpu_replicas=1)
    trainer = Trainer(Workers(strategy), model, dataclasses.replace(training, jit=JIT))
    with tempfile.TemporaryDirectory() as folder:
        segments = make_lanes(shape, "uniform", folder).read(0)
    durations = repeat(lambda: trainer.run(segments), seconds)
    return shape.batch_size * shape.tgt_len / statistics.median(durations)


def _measure_evaluation(shape: Shape, seconds: float) -> float:
    from benchmarks.inference_calls import make_cached_reader, make_model

    durations = repeat(make_cached_reader(make_model(shape), shape, jit=JIT), seconds)
    return shape.batch_size * shape.tgt_len / statistics.median(durations)


def _measure_generation(shape: Shape, seconds: float) -> float:
    from benchmarks.inference_calls import TokenDrawer, make_model

    drawer = TokenDrawer(make_model(shape), shape.mem_len, jit=True, n_texts=shape.batch_size)
    return shape.batch_size * drawer.measure_speed(seconds).median


def _measure_prompts(shape: Shape, prompt_lens: Sequence[int]) -> list[float]:
    """Returns the speed of drawing tokens after prompts of these lengths."""
    from benchmarks.inference_calls import TokenDrawer, make_model

    drawer = TokenDrawer(make_model(shape), shape.mem_len, jit=True)
    calls = [drawer.measure(length, N_DRAWN) for length in prompt_lens]
    return [statistics.median(count / took for count, took in found) for found in calls]


def _measure_scoring(shape: Shape, text_len: int, seconds: float) -> float:
    from benchmarks.inference_calls import make_model, make_text_scorer

    n_texts = max(shape.batch_size, N_SCORED // text_len)
    score = make_text_scorer(make_model(shape), shape, jit=JIT, n_texts=n_texts, text_len=text_len)
    return n_texts * text_len / statistics.median(repeat(score, seconds))


def measure_axis(name: str, works: list[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Measures an axis; yields a record for each kind of work that has the axis."""
    for work, values in AXES[name].values.items():
        if work not in works:
            continue
        speeds = measure_apart(measure_series, work, name, values, seconds)
        costs = [
            count_cost(work, make_shape(work, name, value), value if work == "score" else None)
            for value in values
        ]
        yield {
            "work": work,
            "values": list(values),
            "tokens_per_second": speeds,
            "cost_per_token": costs,
            "unit": "bytes" if work == "generate" else "FLOP",
            "rate": fit_rate(speeds, costs),
        }


def fit_rate(speeds: list[float], costs: list[float]) -> float:
    """Returns the cost per second for which the law fits the larger half of the values.

    Works with small numbers also wait for things that no cost counts, so the fit leaves them out.

    >>> fit_rate([100.0, 60.0, 30.0, 10.0], [1.0, 5.0, 10.0, 30.0])
    300.0
    """
    half = len(speeds) // 2
    return statistics.median(s * c for s, c in zip(speeds[half:], costs[half:], strict=True))


def make_row(axis: str, series: dict[str, Any]) -> tuple[str, ...]:
    """Returns the cells of a line of the plot: its rate, and its points as shares of the law."""
    points = zip(series["tokens_per_second"], series["cost_per_token"], strict=True)
    shares = [speed * cost / series["rate"] for speed, cost in points]
    return (
        axis,
        series["work"],
        f"{series['rate'] / 1e9:,.0f} G{series['unit']}/s",
        f"{min(series['values']):,} to {max(series['values']):,}",
        " ".join(f"{share:.2f}" for share in shares),
    )


def draw(axes: dict[str, Any], target: str) -> None:
    """Draws a panel for each axis: the measured points, and the law as a line."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    n_rows = len(axes) // 2 + 1
    figure = Figure(figsize=(8.5, 2.7 * n_rows), layout="constrained")
    panels = figure.subplots(n_rows, 2, squeeze=False).ravel()
    colors = {work: f"C{index}" for index, work in enumerate(BASES)}
    for panel, (name, found) in zip(panels, axes.items(), strict=False):
        for series in found["series"]:
            values, color = series["values"], colors[series["work"]]
            law = [series["rate"] / cost for cost in series["cost_per_token"]]
            panel.loglog(values, law, "-", color=color, linewidth=1)
            panel.loglog(values, series["tokens_per_second"], "o", color=color, markersize=4)
        ticks = max((series["values"] for series in found["series"]), key=len)
        panel.set_xticks(ticks, labels=[f"{value:,}" for value in ticks])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        panel.yaxis.set_minor_locator(NullLocator())
        panel.set_xlabel(AXES[name].label)
        panel.set_ylabel("tokens/s")
        panel.grid(visible=True, alpha=0.3)
    for panel in panels[len(axes) :]:
        panel.set_axis_off()
    marks = [Line2D([], [], color=color, marker="o", linestyle="") for color in colors.values()]
    marks.append(Line2D([], [], color="0.4", linewidth=1))
    panels[-1].legend(marks, [*colors, "the law: rate / cost of a token"], loc="center")
    figure.savefig(target, dpi=100)


def measure_axes(options: flags.FlagValues, path: Path) -> Iterator[tuple[str, ...]]:
    """Measures the axes, writes them to the file, and yields a row for each line."""
    known = _read(path)
    for name in options.axes:
        machine = measure_apart(measure_machine)
        series = known.get(name, {}).get("series", [])
        for measured in measure_axis(name, options.works, options.seconds):
            yield make_row(name, measured)
            series = [old for old in series if old["work"] != measured["work"]] + [measured]
        known[name] = {"machine": machine, "series": series}
        path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def compare(options: flags.FlagValues) -> None:
    """Measures the axes, prints them, and writes the file and the plot."""
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "scaling.json"
    header = ("axis", "work", "rate of the law", "values", "measured, as shares of the law")
    print_table(header, measure_axes(options, path))
    known = _read(path)
    plot = options.plot or str(folder / "scaling.png")
    draw({name: known[name] for name in AXES if name in known}, plot)


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    define("out", str, None, "Folder for scaling.json.", required=True, is_path=True)
    define("axes", list, list(AXES), "Axes to measure.", choices=AXES)
    define("works", list, list(BASES), "Kinds of work to measure.", choices=BASES)
    define("seconds", float, 1.0, "Time to measure each value.", lower_bound=0)
    text = "Picture to write. [default: scaling.png in --out]"
    define("plot", str, None, text, is_path=True)
    return run_program(__doc__, options, compare, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
