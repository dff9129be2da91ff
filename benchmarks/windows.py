"""Speed of evaluation with sliding windows and with memory, at equal attention lengths.

python -m benchmarks.windows --plot docs/lab/speed.png

Table 9 of the paper compares them: a model without memory reads the whole window again for each
new token (Al-Rfou et al. 2018); this one reads segments with cached keys and values. The last line
compares the last tokens of a long text with the first: with memory, they take equally long.
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import flags

from benchmarks.peers.protocol import Shape, repeat
from benchmarks.tables import define_json_flag, print_table, write_json
from benchmarks.works import SHAPES, make_language_model, measure_apart, measure_reading
from txl_tf.config import AttentionSpan
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

# The paper's ratios by attention length, on a GPU and with a model of another size.
PAPER = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
SHAPE = Shape(4, 128, 2, 512, 128, 0, 1, 27)
DRAWN = SHAPES["bytes"]._replace(tgt_len=64, mem_len=640, batch_size=1)


def measure_window(shape: Shape, window: int, seconds: float) -> float:
    """Returns the tokens per second if each token is predicted by reading a whole window."""
    model = make_language_model(shape).model
    import tensorflow as tf

    ids = tf.zeros((1, window), tf.int32)

    @tf.function(jit_compile=True, autograph=False)
    def read() -> Any:
        hidden, _ = model(ids, model.initial_memory(1, 0), span=AttentionSpan(0))
        return model.nll(hidden[:, -1:], ids[:, -1:])

    return 1 / repeat(lambda: read().numpy(), seconds)


def measure_growth(shape: Shape, n_tokens: int) -> float:
    """Returns how many times longer drawing the last tokens of a text takes than the first."""
    session = make_language_model(shape).start([np.zeros(1, np.int32)])
    session.draw(n_tokens)
    return session.speeds.first / session.speeds.last


def measure_lengths(seconds: float) -> Iterator[dict[str, Any]]:
    """Measures both methods at each attention length of the paper; yields a record for each."""
    for length in PAPER:
        with_memory = SHAPE._replace(mem_len=length)
        speeds = {
            "windows": measure_apart(measure_window, SHAPE, length, seconds),
            "cached": measure_apart(measure_reading, with_memory, "float32", "whole", seconds),
        }
        ratio = speeds["cached"] / speeds["windows"]
        yield {"attention_length": length, "tokens_per_second": speeds, "ratio": ratio}


def draw_speeds(records: list[dict[str, Any]], target: str) -> None:
    """Draws the tokens per second of both methods, and their ratio next to the paper's."""
    from matplotlib.figure import Figure

    lengths = [record["attention_length"] for record in records]
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    speeds, ratios = figure.subplots(1, 2)
    for name, label in (("cached", "memory, cached"), ("windows", "a window for each token")):
        found = [record["tokens_per_second"][name] for record in records]
        speeds.semilogy(lengths, found, "o-", label=label)
    speeds.set_ylabel("tokens per second")
    ratios.plot(lengths, [record["ratio"] for record in records], "o-", label="here")
    ratios.plot(list(PAPER), list(PAPER.values()), "s--", color="0.6", label="paper, table 9")
    ratios.set_ylabel("times as fast")
    ratios.set_ylim(bottom=0)
    for axes in (speeds, ratios):
        axes.set_xlabel("attention length")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(target, dpi=120)


def compare(options: flags.FlagValues) -> None:
    """Measures both methods, prints a table, and draws it if requested."""
    records = list(measure_lengths(options.seconds))
    header = ("attention length", "windows, tokens/s", "memory, tokens/s", "ratio", "paper")
    rows = (
        (
            f"{record['attention_length']:,}",
            f"{record['tokens_per_second']['windows']:,.1f}",
            f"{record['tokens_per_second']['cached']:,.0f}",
            f"{record['ratio']:,.0f}",
            f"{PAPER[record['attention_length']]:,}",
        )
        for record in records
    )
    print_table(header, rows)
    growth = measure_apart(measure_growth, DRAWN, options.tokens)
    print(
        f"In a generation of {options.tokens:,} tokens (6 layers of 256, memory 640) the last "
        f"ones took {growth:.2f} times as long as the first."
    )
    if options.plot:
        draw_speeds(records, options.plot)
    write_json(options, {"windows": records, "last_over_first": growth})


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "seconds", float, 5.0, "Time to measure each.", lower_bound=0)
    text = "Length of the text whose first and last tokens are compared."
    define_flag(options, "tokens", int, 10_000, text, lower_bound=64)
    define_flag(options, "plot", str, None, "Picture to write. [default: none]", is_path=True)
    define_json_flag(options)
    return run_program(__doc__, options, compare, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
