"""Speed beside other implementations of Transformer-XL, in one run on one machine.

python -m benchmarks.compare
python -m benchmarks.compare --works train-bytes,generate-bytes --rounds 1 --json compare.json
python -m benchmarks.compare --peer 'peer/bin/python measure.py 2019 --source tf'
python -m benchmarks.compare --peers peers.txt

Each round measures every work with each `--peer`, and then in each way that this package has (the
precisions; XLA compiles the whole, the chains of element-wise operations, or nothing), so that all
of them see the same machine in the same minutes. The table has medians over the rounds. A peer
is a command, to which a work and `--seconds` are appended; it prints a line such as
"2019 train:6,256,8,1024,128,128,8,27: median 2,427.9", in which a work is its kind, a colon, and
layers, d_model, heads, d_inner, T, M, B, V, with cutoffs and div_val behind another colon.
`--peers` names a file with such lines. The file of --json is written after each work, so that an
interrupted comparison, which prints the table of its measurements, loses only the work in progress.

The second table has the limits of the machine: the tokens per second at which matrix products reach
their peak, or the bytes that must be read the speed of a copy, whichever is lower. "Alone" is the
share of the limit that the matrix products of the work reach in their own shapes, without all else.
"""

import json
import os
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from benchmarks.products import measure_products
from benchmarks.tables import define_json_flag, print_table
from benchmarks.works import (
    SHAPES,
    Shape,
    define_peers_flag,
    measure_apart,
    measure_machine,
    parse_peers,
    read_peers,
    repeat,
)
from txl_tf.config import JIT_MODES, KERNEL_DTYPES, AttentionSpan
from txl_tf.data.temporary_folders import work_aside
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program
from txl_tf.quiet_start import quiet_start

PRECISIONS = KERNEL_DTYPES
DROPOUT = 0.1


class Work(NamedTuple):
    """A task whose speed is compared.

    Args:
        kind: "train", "eval" or "generate".
        shape: The model and the batch.
    """

    kind: str
    shape: Shape

    @property
    def spec(self) -> str:
        """The name of the work in the lines of the peers."""
        return f"{self.kind}:{self.shape.spec}"


def _make_work(kind: str, name: str, tgt_len: int, mem_len: int, batch_size: int) -> Work:
    shape = SHAPES[name]._replace(tgt_len=tgt_len, mem_len=mem_len, batch_size=batch_size)
    return Work(kind, shape)


WORKS = {
    "train-bytes": Work("train", SHAPES["bytes"]),
    "train-bytes-large": Work("train", SHAPES["bytes_large"]),
    "train-words": Work("train", SHAPES["words"]),
    "train-words-divided": Work("train", SHAPES["words_divided"]),
    "eval-bytes": _make_work("eval", "bytes", 64, 640, 4),
    "eval-bytes-large": Work(
        "eval", SHAPES["bytes_large"]._replace(tgt_len=80, mem_len=2100, batch_size=1, n_token=27)
    ),
    "eval-words": _make_work("eval", "words", 64, 640, 4),
    "eval-wt103": _make_work("eval", "wt103_base", 64, 640, 1),
    "generate-bytes": _make_work("generate", "bytes", 1, 640, 1),
    "generate-bytes-large": _make_work("generate", "bytes_large", 1, 3800, 1),
    "generate-wt103": _make_work("generate", "wt103_base", 1, 640, 1),
}


class Way(NamedTuple):
    """A way in which this package does a work.

    Args:
        precision: One of `PRECISIONS`: of training, or of the kernels in inference.
        jit: What XLA compiles; see `txl_tf.models.compilation`.
    """

    precision: str
    jit: str

    def __str__(self) -> str:
        return f"{self.precision}, jit {self.jit}"


def measure(work: Work, way: Way, seconds: float) -> float:
    """Returns the tokens per second of a work; called in a new process."""
    if work.kind == "train":
        from benchmarks.train_step import measure as measure_training

        figures = measure_training(
            work.shape,
            "uniform",
            1,
            dropout=DROPOUT,
            jit=way.jit,
            precision=way.precision,
            seconds=seconds,
        )
        return work.shape.batch_size * work.shape.tgt_len / figures.step_seconds
    with quiet_start():
        import tensorflow  # noqa: F401
    from benchmarks.inference_calls import TokenDrawer, make_cached_reader, make_model

    shape = work.shape
    model = make_model(shape, way.precision)
    if work.kind == "generate":
        drawer = TokenDrawer(model, shape.mem_len, jit=way.jit in ("auto", "whole"))
        return drawer.measure_speed(seconds).median
    shape = _join_segments(shape)
    durations = repeat(make_cached_reader(model, shape, jit=way.jit), seconds)
    return shape.batch_size * shape.tgt_len / statistics.median(durations)


def _join_segments(shape: Shape) -> Shape:
    """Returns a shape with the segments that evaluation reads at once."""
    from txl_tf.scoring.scorer import join_segments  # imports TensorFlow

    span = AttentionSpan(shape.mem_len, same_length=True)
    return shape._replace(tgt_len=join_segments(shape.batch_size, shape.tgt_len, span))


def measure_alone(work: Work, precision: str, seconds: float) -> float:
    """Returns the tokens per second of the matrix products of a work; called in a new process."""
    if work.kind == "train":
        return measure_products(work.shape, precision, seconds, trains=True)
    with quiet_start():
        shape = _join_segments(work.shape)
    return measure_products(shape, precision, seconds, trains=False)


def measure_peer(command: str, work: Work, seconds: float) -> dict[str, float]:
    """Runs the command of a peer on a work; returns the speed that it prints, by its name.

    Raises:
        UserError: If the command fails or prints no speed.
    """
    arguments = [*shlex.split(command), "--seconds", str(seconds), work.spec]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"`{command}` cannot be run: {error.strerror}") from error
    found = parse_peers(done.stdout).get(work.spec)
    if not found:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise UserError(f"`{shlex.join(arguments)}` printed no speed: {last}")
    return found


def compare(options: flags.FlagValues) -> None:
    """Measures everything, prints the table, and writes it as JSON if wanted.

    An error or Ctrl-C ends the measurements; the table then has those before it.

    Raises:
        UserError: If a peer cannot be measured or the file of the peers cannot be read.
    """
    known = read_peers(options.peers)
    ways = {
        name: [
            Way(precision, jit)
            for precision in options.precisions
            for jit in options.jit
            if _is_way(WORKS[name].kind, precision, jit)
        ]
        for name in options.works
    }
    machine = measure_apart(measure_machine)
    alone = {
        name: {
            precision: measure_apart(measure_alone, WORKS[name], precision, options.seconds)
            for precision in options.precisions
            if WORKS[name].kind != "generate" and precision != "int8"
        }
        for name in options.works
    }
    speeds: dict[str, dict[str, list[float]]] = {name: {} for name in options.works}
    try:
        for round_index in range(options.rounds):
            for name in options.works:
                work, found = WORKS[name], speeds[name]
                for command in options.peer:
                    for peer, speed in measure_peer(command, work, options.seconds).items():
                        found.setdefault(peer, []).append(speed)
                for way in ways[name]:
                    speed = measure_apart(measure, work, way, options.seconds)
                    found.setdefault(str(way), []).append(speed)
                print(f"round {round_index + 1}, {name}: measured", file=sys.stderr)
                if options.json:
                    records = summarize(speeds, ways, known, alone)
                    write_records(options.json, machine, records)
        after = measure_apart(measure_machine)
        machine = {name: max(peak, after[name]) for name, peak in machine.items()}
    finally:
        if records := summarize(speeds, ways, known, alone):
            print_speeds(machine, records)
            if options.json:
                write_records(options.json, machine, records)
                print(f"Wrote {options.json}")


def _is_way(kind: str, precision: str, jit: str) -> bool:
    """Returns whether a kind of work can be done in a way."""
    if kind == "train":
        return precision != "int8"
    return kind != "generate" or jit != "chains"  # one token at a time has no chains


def summarize(
    speeds: dict[str, dict[str, list[float]]],
    ways: dict[str, list[Way]],
    known: dict[str, dict[str, float]],
    alone: dict[str, dict[str, float]],
) -> dict[str, Any]:
    """Returns the records of the works that have been measured, with medians over the rounds.

    Args:
        speeds: For each work, the speeds of each way and each peer, one for each round.
        ways: The ways of this package for each work.
        known: Speeds of peers that were measured before, by the specs of the works.
        alone: For each work, the speed of its matrix products alone by their precision.
    """
    records = {}
    for name, found in speeds.items():
        if not found:
            continue
        spec = WORKS[name].spec
        medians = {label: statistics.median(values) for label, values in found.items()}
        ours = {str(way): medians.pop(str(way)) for way in ways[name] if str(way) in medians}
        peers = known.get(spec, {}) | medians
        records[name] = {
            "spec": spec,
            "peers": peers,
            "ours": ours,
            "alone": alone[name],
            "rounds": found,
        }
    return records


def write_records(path: str, machine: dict[str, float], records: dict[str, Any]) -> None:
    """Writes the JSON file aside and moves it into place, so that it is always complete."""
    text = json.dumps({"machine": machine, "works": records}, indent=1)
    file = Path(path)
    with work_aside(file.parent, f".{file.name}.writing-") as aside:
        (aside / file.name).write_text(text + "\n", encoding="utf-8")
        os.replace(aside / file.name, file)


def print_speeds(machine: dict[str, float], records: dict[str, Any]) -> None:
    """Prints the peaks of the machine, and the speeds of all works as a table.

    Of the values of `--jit` it shows the fastest of each precision.
    """
    peaks = {name: peak / 1e9 for name, peak in machine.items()}
    print(
        f"Tokens per second. Matrix products reach {peaks['float32_flops_per_second']:,.0f} "
        f"GFLOP/s in float32 and {peaks['bfloat16_flops_per_second']:,.0f} in bfloat16, a copy "
        f"{peaks['copied_bytes_per_second']:,.1f} GB/s."
    )
    peers = list(dict.fromkeys(peer for record in records.values() for peer in record["peers"]))
    ways = [Way(*way.split(", jit ")) for record in records.values() for way in record["ours"]]
    precisions = list(dict.fromkeys(way.precision for way in ways))
    rows = [_make_row(WORKS[name], record, peers, precisions) for name, record in records.items()]
    header = ["work", *peers, *precisions]
    print_table([*header, f"times {peers[0]}"] if peers else header, rows)
    print("Limits of this machine, what sets them, and the share that is reached:")
    rows = [
        _make_limits(WORKS[name], record, precisions, machine) for name, record in records.items()
    ]
    print_table(["work", *precisions], rows)


def estimate_limit(work: Work, precision: str, machine: dict[str, float]) -> tuple[float, str]:
    """Returns the largest tokens per second of a work, and what sets it: products or memory."""
    with quiet_start():  # the costs of a model need TensorFlow, and only here
        from benchmarks.inference_costs import count_bytes_per_token, count_flops_per_token
        from benchmarks.train_step import count_flops
    kind = "bfloat16" if precision == "bfloat16" else "float32"
    peak = machine[f"{kind}_flops_per_second"]
    if work.kind == "train":
        n_tokens = work.shape.batch_size * work.shape.tgt_len
        return peak * n_tokens / count_flops(work.shape, "uniform", 1), "products"
    products = peak / count_flops_per_token(work.shape)
    memory = machine["copied_bytes_per_second"] / count_bytes_per_token(work.shape, precision)
    return min((products, "products"), (memory, "memory"))


def _make_limits(
    work: Work, record: dict[str, Any], precisions: list[str], machine: dict[str, float]
) -> list[str]:
    """Returns the cells of a work in the table of limits."""
    cells = []
    for precision in precisions:
        _, speed = _find_fastest(record, precision)
        limit, cause = estimate_limit(work, precision, machine)
        if alone := record["alone"].get(precision):
            cause += f"; alone {alone / limit:.0%}"
        cells.append(f"{speed / limit:.0%} of {format_speed(limit)} ({cause})" if speed else "")
    return [describe(work), *cells]


def _find_fastest(record: dict[str, Any], precision: str) -> tuple[str, float]:
    """Returns the fastest value of `--jit` in a precision, and its speed; 0 without any."""
    speeds = {jit: record["ours"].get(str(Way(precision, jit)), 0.0) for jit in JIT_MODES}
    return max(speeds.items(), key=lambda item: item[1])


def _make_row(
    work: Work, record: dict[str, Any], peers: list[str], precisions: list[str]
) -> list[str]:
    """Returns the cells of a work; with peers, the last one has the times of the first peer."""
    known = record["peers"]
    cells = [format_speed(known[peer]) if peer in known else "" for peer in peers]
    fastest = []
    for precision in precisions:
        jit, speed = _find_fastest(record, precision)
        if speed:
            fastest.append(speed)
        cells.append(f"{format_speed(speed)} `{jit}`" if speed else "")
    if peers:
        reference = known.get(peers[0])
        cells.append(", ".join(f"{speed / reference:.1f}" for speed in fastest if reference))
    return [describe(work), *cells]


def format_speed(speed: float) -> str:
    """Returns tokens per second as a text."""
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.1f}"


def describe(work: Work) -> str:
    """Returns what a work does, in words.

    >>> describe(WORKS["train-words"])
    'train 6 layers of 256, T 128, M 128, B 8, 20,000 symbols in 3 bins'
    """
    shape = work.shape
    lengths = f"T {shape.tgt_len}, M {shape.mem_len:,}, B {shape.batch_size}"
    bins = f" in {len(shape.cutoffs) + 1} bins" if shape.cutoffs else ""
    kind = {"eval": "evaluate"}.get(work.kind, work.kind)
    size = f"{shape.n_layer} layers of {shape.d_model}"
    return f"{kind} {size}, {lengths}, {shape.n_token:,} symbols{bins}"


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "works", list, list(WORKS), "Works to measure.", choices=WORKS)
    define_flag(
        options, "precisions", list, list(PRECISIONS), "Precisions to measure.", choices=PRECISIONS
    )
    text = "What XLA compiles; each is measured."
    define_flag(options, "jit", list, ["whole", "chains", "none"], text, choices=JIT_MODES)
    define_flag(options, "seconds", float, 10.0, "Time to measure each.", lower_bound=0)
    define_flag(options, "rounds", int, 3, "Number of rounds.", lower_bound=1)
    text = "Command that measures another implementation."
    define_flag(options, "peer", str, [], text, multiple=True)
    define_peers_flag(options)
    define_json_flag(options)
    return run_program(__doc__, options, compare, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
