"""Speed of inference: tokens per second, beside the peaks of the machine in the same run.

python -m benchmarks.inference --json inference.json --peers peers.txt
python -m benchmarks.inference --compare windows --plot docs/lab/speed.png

"Hidden states" is the memory that training has: each segment computes its keys and values again.
"Cached" keeps them, as evaluation does. "T = ..." reads longer segments, as scoring does with few
texts: with `same_length`, as here, the losses are the same; FLOPs and bytes are counted as for the
shorter. "Texts" is `LanguageModel.score` on many short ones, all that it does with each included.
`--peers` names a file with the speeds of other implementations on this machine, measured in the
same hour; see `benchmarks.works.read_peers`.
"""

import itertools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks.inference_calls import (
    N_TEXTS,
    TEXT_LEN,
    Speed,
    TokenDrawer,
    make_cached_reader,
    make_hidden_reader,
    make_model,
    make_text_scorer,
)
from benchmarks.inference_costs import count_bytes_per_token, count_flops_per_token
from benchmarks.windows import draw_speeds, measure_windows, print_window_line
from benchmarks.works import (
    SHAPES,
    Shape,
    define_peers_flag,
    format_times,
    measure_bandwidth,
    measure_peak,
    read_peers,
    repeat,
)
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.config import AttentionSpan


def _read(name: str, tgt_len: int, mem_len: int, batch_size: int) -> Shape:
    return SHAPES[name]._replace(tgt_len=tgt_len, mem_len=mem_len, batch_size=batch_size)


WORKS = {
    "evaluate-bytes": _read("bytes", 64, 640, 4),
    "evaluate-bytes-large": _read("bytes_large", 80, 2100, 1)._replace(n_token=27),
    "evaluate-words": _read("words", 64, 640, 4),
    "evaluate-words-divided": _read("words_divided", 64, 640, 4),
    "generate-bytes": _read("bytes", 1, 640, 1),
    "generate-bytes-large": _read("bytes_large", 1, 3800, 1),
    "generate-words": _read("words", 1, 640, 1),
    "generate-words-divided": _read("words_divided", 1, 640, 1),
}
CURVE = WORKS["generate-bytes"]
PROMPT_LENS = (1, 1000, 10_000)  # of texts whose next tokens should cost the same
N_DRAWN = 320  # after each of these prompts


def measure_work(shape: Shape, seconds: float) -> list[dict[str, Any]]:
    """Measures a work in each way; returns a record for each, with its method and its speed."""
    from txl_tf.scoring.scorer import join_segments

    model = make_model(shape)
    records = []
    readers = {"hidden states": (make_hidden_reader, shape)}
    if shape.tgt_len > 1:
        span = AttentionSpan(shape.mem_len, same_length=True)
        tgt_len = join_segments(shape.batch_size, shape.tgt_len, span)
        readers["cached"] = make_cached_reader, shape
        if tgt_len != shape.tgt_len:
            readers[f"cached, T = {tgt_len}"] = make_cached_reader, shape._replace(tgt_len=tgt_len)
    for name, (make, read_shape) in readers.items():
        n_tokens = read_shape.batch_size * read_shape.tgt_len
        for jit in ("whole", "chains", "none"):
            durations = repeat(make(model, read_shape, jit=jit), seconds)
            records.append(
                _make_record(shape, name, jit, Speed.from_durations(durations, n_tokens))
            )
    if shape.tgt_len > 1:
        durations = repeat(make_text_scorer(model, shape, jit="auto"), seconds)
        speed = Speed.from_durations(durations, N_TEXTS * TEXT_LEN)
        records.append(_make_record(shape, "texts", "auto", speed))
    else:
        for jit in ("whole", "none"):
            speed = TokenDrawer(model, shape.mem_len, jit=jit == "whole").measure_speed(seconds)
            records.append(_make_record(shape, "token loop", jit, speed))
    return records


def _make_record(shape: Shape, method: str, jit: str, speed: Speed) -> dict[str, Any]:
    return {
        "method": f"{method}, jit {jit}",
        "tokens_per_second": speed._asdict(),
        "flops_per_token": count_flops_per_token(shape, cached=method != "hidden states"),
        "bytes_per_token": count_bytes_per_token(shape),
    }


def add_shares(
    records: list[dict[str, Any]], peak: float, bandwidth: float, peers: dict[str, float]
) -> None:
    """Adds what depends on the machine to the records of a work, once its peaks are known."""
    for record in records:
        speed = record["tokens_per_second"]["median"]
        record["share_of_peak"] = speed * record["flops_per_token"] / peak
        record["share_of_bandwidth"] = speed * record["bytes_per_token"] / bandwidth
        record["times"] = {name: speed / other for name, other in peers.items()}


def measure_curve(n_tokens: int) -> dict[str, Any]:
    """Measures what each token of a long text costs, and tokens after prompts of several lengths.

    Returns:
        `tokens` and `ms_per_token`: how many tokens were drawn at the end of each call of the
        loop, and what a token of it took; `last_over_first`: median of the last tenth over that
        of the first; `by_prompt_length`: median milliseconds of a token after prompts.
    """
    drawer = TokenDrawer(make_model(CURVE), CURVE.mem_len, jit=True)
    calls = drawer.measure(1, n_tokens)
    costs = [1e3 * took / count for count, took in calls]
    tenth = max(1, len(costs) // 10)
    by_length = {}
    for length in PROMPT_LENS:
        after = drawer.measure(length, N_DRAWN)
        by_length[str(length)] = statistics.median(1e3 * took / count for count, took in after)
    return {
        "tokens": list(itertools.accumulate(count for count, _ in calls)),
        "ms_per_token": costs,
        "last_over_first": statistics.median(costs[-tenth:]) / statistics.median(costs[:tenth]),
        "by_prompt_length": by_length,
    }


def print_record(record: dict[str, Any], peers: dict[str, float]) -> None:
    """Prints the line of a method."""
    speed = record["tokens_per_second"]
    spread = f"{speed['slowest']:,.1f} to {speed['fastest']:,.1f}"
    print(
        f"  {record['method']:<19} {speed['median']:>10,.1f} {spread:>22} "
        f"{record['flops_per_token'] / 1e6:>7.1f} {record['bytes_per_token'] / 1e6:>7.2f} "
        f"{record['share_of_peak']:>6.1%} {record['share_of_bandwidth']:>9.1%}  "
        f"{format_times(speed['median'], peers)}".rstrip()
    )


def compare_methods(options: flags.FlagValues) -> dict[str, Any]:
    """Measures the works, prints a table, and returns all of it."""
    peers = read_peers(options.peers)
    peak, bandwidth = measure_peak(), measure_bandwidth()
    works = {}
    for name in options.works:
        works[name] = measure_work(WORKS[name], options.seconds)
        print(f"{name}: measured", file=sys.stderr)
    curve = measure_curve(options.curve_tokens) if options.curve_tokens else None
    peak, bandwidth = max(peak, measure_peak()), max(bandwidth, measure_bandwidth())
    print(f"matrix product {peak / 1e9:,.0f} GFLOP/s, copy {bandwidth / 1e9:,.1f} GB/s")
    print(
        f"{'':<21} {'tokens/s':>10} {'slowest to fastest':>22} {'MFLOP':>7} {'MB':>7} "
        f"{'peak':>6} {'bandwidth':>9}  others"
    )
    for name, records in works.items():
        shape = WORKS[name]
        kind = "generate" if shape.tgt_len == 1 else "eval"
        others = peers.get(f"{kind}:{shape.spec}", {})
        add_shares(records, peak, bandwidth, others)
        print(f"{name}: {shape.spec}")
        for record in records:
            print_record(record, others)
    if curve:
        lengths = ", ".join(f"{n}: {ms:.2f}" for n, ms in curve["by_prompt_length"].items())
        print(
            f"token loop, {curve['tokens'][-1]:,} tokens: the last tenth took "
            f"{curve['last_over_first']:.2f} times as long as the first\n"
            f"ms/token by the length of the prompt: {lengths}"
        )
    machine = {"flops_per_second": peak, "copied_bytes_per_second": bandwidth}
    return {"machine": machine, "works": works, "curve": curve}


def compare_windows(options: flags.FlagValues) -> dict[str, Any]:
    """Measures both ways to see far back, prints a table, and draws it if wanted."""
    peak = measure_peak()
    print(f"{'attention length':>16} {'windows, tok/s':>15} {'cached, tok/s':>14} {'ratio':>8}")
    windows = []
    for record in measure_windows(options.seconds):
        windows.append(record)
        print_window_line(record)
    if options.plot:
        draw_speeds(windows, options.plot)
        print(f"Wrote {options.plot}")
    return {"machine": {"flops_per_second": max(peak, measure_peak())}, "windows": windows}


def compare(options: flags.FlagValues) -> None:
    """Measures what `--compare` says, and writes it to a file if wanted."""
    found = {"methods": compare_methods, "windows": compare_windows}[options.compare](options)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"Wrote {options.json}")


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(
        options, "compare", str, "methods", "Comparison to measure.", choices=("methods", "windows")
    )
    define_flag(
        options,
        "works",
        list,
        list(WORKS),
        "Tasks to measure, with --compare=methods.",
        choices=WORKS,
    )
    define_flag(options, "seconds", float, 5.0, "Time to measure each.", lower_bound=0)
    define_flag(
        options, "curve_tokens", int, 10_000, "Number of tokens of the curve.", lower_bound=0
    )
    define_flag(
        options, "json", str, None, "File for all measurements. [default: none]", is_path=True
    )
    define_peers_flag(options)
    define_flag(
        options,
        "plot",
        str,
        None,
        "Picture to write of --compare=windows. [default: none]",
        is_path=True,
    )
    return run_program(__doc__, options, compare, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
