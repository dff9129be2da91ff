"""Compares the speed with other implementations of Transformer-XL, in one run on one machine.

python -m benchmarks.compare
python -m benchmarks.compare --works train-bytes,generate-bytes --rounds 1 --json compare.json
python -m benchmarks.compare --peer 'python -m benchmarks.peers.tensorflow2019 --source DIR'

Each round measures every task ("work") with each `--peer`, and then in each mode of this package
(the precisions; XLA compiles the whole step, the chains of element-wise operations, or nothing), so
that all are measured on the same machine within minutes. The table shows medians over the rounds. A
peer is a command, to which `--seconds` and a work are appended, and which prints a line like the
programs in `benchmarks.peers`; these measure three peers. The `--json` file is written after each
work. If a comparison is interrupted, it prints the table of its measurements so far.

Training is that of `txl train`; works named "alone" have no memory, for comparison with nanoGPT.
Evaluation reads texts longer than the memory, with a cache; generation continues one text.
"""

import shlex
import statistics
import subprocess
import sys
from typing import Any, NamedTuple

from absl import flags

from benchmarks.peers.protocol import Work, parse_peers
from benchmarks.tables import define_json_flag, print_table, write_json
from benchmarks.train_step import measure_training
from benchmarks.works import (
    SHAPES,
    measure_apart,
    measure_drawing,
    measure_machine,
    measure_reading,
)
from txl_tf.config import JIT_MODES, KERNEL_DTYPES
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

PRECISIONS = KERNEL_DTYPES


def _make_work(kind: str, name: str, tgt_len: int, mem_len: int, batch_size: int) -> Work:
    shape = SHAPES[name]._replace(tgt_len=tgt_len, mem_len=mem_len, batch_size=batch_size)
    return Work(kind, shape)


WORKS = {
    "train-bytes": Work("train", SHAPES["bytes"]),
    "train-bytes-alone": Work("train", SHAPES["bytes"]._replace(mem_len=0)),
    "train-bytes-large": Work("train", SHAPES["bytes_large"]),
    "train-bytes-large-alone": Work("train", SHAPES["bytes_large"]._replace(mem_len=0)),
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
    """A mode in which this package performs a work.

    Args:
        precision: The precision of training, or of the kernels in inference; one of `PRECISIONS`.
        jit: What XLA compiles; see `txl_tf.models.compilation`.
    """

    precision: str
    jit: str

    def __str__(self) -> str:
        return f"{self.precision}, jit {self.jit}"

    @property
    def column(self) -> str:
        """The column of the table; it shows the fastest of its modes."""
        return f"{self.precision}, {'not ' if self.jit == 'none' else ''}compiled"


def list_ways(kind: str, precisions: list[str], jits: list[str]) -> list[Way]:
    """Returns the modes in which a kind of work can be performed."""
    if kind == "generate":  # always compiled as a whole
        return [Way(precision, "whole") for precision in precisions]
    usable = [name for name in precisions if kind != "train" or name != "int8"]
    return [Way(precision, jit) for precision in usable for jit in jits]


def measure(work: Work, way: Way, seconds: float) -> float:
    """Returns the tokens per second of a work in a new process."""
    if work.kind == "train":
        settings: dict[str, Any] = way._asdict()
        return measure_training(work.shape, seconds=seconds, **settings).tokens_per_second
    if work.kind == "generate":
        return measure_apart(measure_drawing, work.shape, way.precision, seconds)
    return measure_apart(measure_reading, work.shape, way.precision, way.jit, seconds)


def measure_peer(command: str, work: Work, seconds: float) -> dict[str, float]:
    """Runs the command of a peer on a work; returns the speed that it prints, by its name.

    Raises:
        UserError: If the command cannot be run, or prints neither a speed nor a reason for none.
    """
    arguments = [*shlex.split(command), "--seconds", str(seconds), work.spec]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"`{command}` cannot be run: {error.strerror}") from error
    found = parse_peers(done.stdout).get(work.spec, {})
    if not found and (done.returncode or work.spec not in done.stderr):
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise UserError(f"`{shlex.join(arguments)}` printed no speed: {last}")
    return found


def compare(options: flags.FlagValues) -> None:
    """Measures everything, prints the table, and writes it as JSON if requested.

    An error or Ctrl-C ends the measurements; the table then shows those made so far.

    Raises:
        UserError: If a peer cannot be measured.
    """
    machine = measure_apart(measure_machine)
    speeds: dict[str, dict[str, list[float]]] = {name: {} for name in options.works}
    records: dict[str, Any] = {}
    try:
        for round_index in range(options.rounds):
            for name, found in speeds.items():
                work = WORKS[name]
                for command in options.peer:
                    for peer, speed in measure_peer(command, work, options.seconds).items():
                        found.setdefault(peer, []).append(speed)
                for way in list_ways(work.kind, options.precisions, options.jit):
                    found.setdefault(str(way), []).append(measure(work, way, options.seconds))
                print(f"round {round_index + 1}, {name}: measured", file=sys.stderr)
                records[name] = summarize(work, found)
                write_json(options, {"machine": machine, "works": records})
    finally:
        if records:
            print_speeds(machine, records)


def summarize(work: Work, found: dict[str, list[float]]) -> dict[str, Any]:
    """Returns the record of a work, with medians over the rounds for each mode and each peer."""
    medians = {label: statistics.median(values) for label, values in found.items()}
    ours = {label: speed for label, speed in medians.items() if ", jit " in label}
    peers = {label: speed for label, speed in medians.items() if label not in ours}
    return {"spec": work.spec, "peers": peers, "ours": ours, "rounds": found}


def print_speeds(machine: dict[str, float], records: dict[str, Any]) -> None:
    """Prints the peak speeds of the machine, and the speeds of all works as a table."""
    peaks = {name: peak / 1e9 for name, peak in machine.items()}
    print(
        f"Tokens per second. Matrix products reach {peaks['float32_flops_per_second']:,.0f} "
        f"GFLOP/s in float32 and {peaks['bfloat16_flops_per_second']:,.0f} in bfloat16, a copy "
        f"{peaks['copied_bytes_per_second']:,.1f} GB/s."
    )
    peers = list(dict.fromkeys(peer for record in records.values() for peer in record["peers"]))
    ways = [Way(*way.split(", jit ")) for record in records.values() for way in record["ours"]]
    columns = list(dict.fromkeys(way.column for way in ways))
    rows = [_make_row(WORKS[name], record, peers, columns) for name, record in records.items()]
    header = ["work", *peers, *columns]
    print_table([*header, f"times {peers[0]}"] if peers else header, rows)


def _make_row(
    work: Work, record: dict[str, Any], peers: list[str], columns: list[str]
) -> list[str]:
    """Returns the cells of a work; with peers, the last one has the ratios to the first peer."""
    known = record["peers"]
    cells = [format_speed(known[peer]) if peer in known else "" for peer in peers]
    ours = [(Way(*label.split(", jit ")), speed) for label, speed in record["ours"].items()]
    fastest = []
    for column in columns:
        found = [(speed, way.jit) for way, speed in ours if way.column == column]
        if found:
            speed, jit = max(found)
            fastest.append(speed)
        cells.append(f"{format_speed(speed)} `{jit}`" if found else "")
    if peers:
        reference = known.get(peers[0])
        cells.append(", ".join(f"{speed / reference:.1f}" for speed in fastest if reference))
    return [describe(work), *cells]


def format_speed(speed: float) -> str:
    """Returns tokens per second as text."""
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
    define_json_flag(options)
    return run_program(__doc__, options, compare, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
