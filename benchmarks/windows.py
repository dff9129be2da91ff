"""Two ways to see as far back for every token: a window read for each, or a memory.

The paper's table 9 compares them: a model without memory reads the whole window again for each
new token (Al-Rfou et al. 2018), this one reads segments with cached keys and values.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks.inference_calls import Speed, make_cached_reader, make_model, make_window_reader
from benchmarks.works import Shape, repeat

# The paper's ratios, on a GPU and with a model of another size, beside its attention lengths.
PAPER = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
SHAPE = Shape(4, 128, 2, 512, 128, 0, 1, 27)


def measure_windows(
    seconds: float, shape: Shape = SHAPE, lengths: tuple[int, ...] = tuple(PAPER)
) -> Iterator[dict[str, Any]]:
    """Measures both ways at each attention length; yields a record for each length.

    Args:
        seconds: How long to measure each.
        shape: The model, and the segment that is read with memory; its memory is of the length.
        lengths: How far each token looks back.
    """
    model = make_model(shape)
    for length in lengths:
        window = repeat(make_window_reader(model, length, jit="whole"), seconds)
        with_memory = shape._replace(mem_len=length)
        cached = repeat(make_cached_reader(model, with_memory, jit="whole"), seconds)
        speeds = {
            "windows": Speed.from_durations(window, 1),
            "cached": Speed.from_durations(cached, shape.batch_size * shape.tgt_len),
        }
        yield {
            "attention_length": length,
            "tokens_per_second": {name: speed._asdict() for name, speed in speeds.items()},
            "ratio": speeds["cached"].median / speeds["windows"].median,
        }


def print_window_line(record: dict[str, Any]) -> None:
    """Prints the line of an attention length."""
    speeds = record["tokens_per_second"]
    print(
        f"{record['attention_length']:>16,} {speeds['windows']['median']:>15,.2f} "
        f"{speeds['cached']['median']:>14,.0f} {record['ratio']:>8,.0f}",
        flush=True,
    )


def draw_speeds(records: list[dict[str, Any]], target: str) -> None:
    """Draws tokens per second of both ways, and their ratio beside the paper's."""
    from matplotlib.figure import Figure

    lengths = [record["attention_length"] for record in records]
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    speeds, ratios = figure.subplots(1, 2)
    for name, label in (("cached", "memory, cached"), ("windows", "a window for each token")):
        found = [record["tokens_per_second"][name]["median"] for record in records]
        speeds.semilogy(lengths, found, "o-", label=label)
    speeds.set_ylabel("tokens per second")
    ratios.plot(lengths, [record["ratio"] for record in records], "o-", label="here")
    ratios.plot(list(PAPER), list(PAPER.values()), "s--", color="0.6", label="paper, table 9")
    ratios.set_ylabel("times as fast")
    for axes in (speeds, ratios):
        axes.set_xlabel("attention length")
        axes.grid(visible=True, alpha=0.3)
        axes.set_ylim(bottom=0 if axes is ratios else None)
        axes.legend()
    figure.savefig(target, dpi=120)
