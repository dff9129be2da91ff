"""Speed of training: tokens per second and memory of `txl train` on random ids.

python -m benchmarks.train_step
python -m benchmarks.train_step --shapes bytes --replicas 1,2
python -m benchmarks.train_step --dropout 0,0.1 --peers peers.txt

Each measurement is a run of the training program, whose log is read; it ends after `--seconds`. The
batch is the same for any number of replicas, so "times 1" is what they gain; on a CPU all of them
share its cores, and the loss is what they cost. Tokens of words are drawn uniformly and by Zipf's
law, which decides how many fall into each bin of the adaptive softmax. `--peers` names a file with
the speeds of other implementations on this machine, measured in the same hour; `benchmarks.peers`
has programs that print it.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from benchmarks.peers.protocol import Shape
from benchmarks.several_workers import ROOT
from benchmarks.works import (
    LAWS,
    SHAPES,
    define_peers_flag,
    draw_ids,
    format_times,
    make_config,
    read_peers,
)
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.config import JIT_MODES
from txl_tf.data import Vocabulary, write_records
from txl_tf.errors import UserError

N_IDS = 2_000_000  # of the data set
STEPS_A_LINE = 10
N_LINES = 3  # that are read at least, after the first, which has the compilation


class Speed(NamedTuple):
    """What the log of a run says.

    Args:
        tokens_per_second: The median of its lines.
        memory_bytes: The most that the run took, where that is known; otherwise 0.
    """

    tokens_per_second: float
    memory_bytes: int


def measure_training(
    shape: Shape,
    *,
    seconds: float,
    law: str = "uniform",
    dropout: float = 0.1,
    jit: str = "auto",
    precision: str = "float32",
    replicas: int = 1,
) -> Speed:
    """Trains for some seconds in a process of its own, and returns the speed in its log.

    Raises:
        UserError: If the training fails.
    """
    config = make_config(shape, dropout)
    names = ("n_layer", "d_model", "d_embed", "n_head", "d_head", "d_inner", "dropout", "dropatt")
    arguments = [f"--{name}={getattr(config, name)}" for name in (*names, "untie_r", "div_val")]
    arguments += [f"--{name}={getattr(shape, name)}" for name in ("tgt_len", "mem_len")]
    arguments += [f"--train_batch_size={shape.batch_size}", f"--jit={jit}"]
    arguments += [f"--precision={precision}", f"--iterations={STEPS_A_LINE}", "--quiet"]
    if shape.cutoffs:
        arguments.append(f"--cutoffs={','.join(map(str, shape.cutoffs))}")
    if replicas > 1:
        arguments.append(f"--cpu_replicas={replicas}")
    with tempfile.TemporaryDirectory() as folder:
        data, run = Path(folder) / "data", Path(folder) / "run"
        vocabulary = Vocabulary("word", tuple(map(str, range(shape.n_token))))
        ids = draw_ids(shape.n_token, law, N_IDS)
        write_records(data, dataset="noise", vocabulary=vocabulary, splits={"train": [ids]})
        command = [sys.executable, "-m", "txl_tf", "train", f"--data_dir={data}", f"--run={run}"]
        lines = follow_training([*command, *arguments], run / "log.jsonl", seconds)
    return Speed(
        statistics.median(line["tokens_per_second"] for line in lines),
        max(line.get("peak_memory_bytes", 0) for line in lines),
    )


def follow_training(command: list[str], log: Path, seconds: float) -> list[dict[str, Any]]:
    """Runs a training until its log covers some seconds; returns all lines but the first.

    Raises:
        UserError: If it ends before.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        try:
            start = None
            while True:
                has_ended = process.poll() is not None
                text = log.read_text(encoding="utf-8") if log.exists() else ""
                lines = [json.loads(line) for line in text.split("\n")[:-1]][1:]
                if lines and start is None:
                    start = time.monotonic()
                if len(lines) >= N_LINES and start and time.monotonic() - start >= seconds:
                    return lines
                if has_ended:
                    output.seek(0)
                    tail = output.read().decode("utf-8", "replace")[-1000:]
                    raise UserError(f"{' '.join(command)} ended too early: {tail}")
                time.sleep(0.1)
        finally:
            process.kill()
            process.wait()


def print_speeds(options: flags.FlagValues) -> None:
    """Measures the shapes with each number of replicas, and prints a line each.

    Raises:
        UserError: If a number of replicas or a dropout rate is not a number or too small.
    """
    counts = _read_numbers("replicas", options.replicas, int, 1)
    rates = _read_numbers("dropout", options.dropout, float, 0)
    peers = read_peers(options.peers)
    print(
        f"{'shape':<14} {'tokens':<8} {'dropout':>7} {'replicas':>8} {'ms/step':>9} "
        f"{'tokens/s':>9} {'times 1':>8} {'memory':>9}  others"
    )
    works = [
        (name, law, rate)
        for name in options.shapes
        for law in (LAWS if SHAPES[name].cutoffs else LAWS[:1])
        for rate in rates
    ]
    for name, law, rate in works:
        shape, first = SHAPES[name], 0.0
        others = peers.get(f"train:{shape.spec}", {})
        for count in counts:
            settings = {"law": law, "dropout": rate, "replicas": count, "jit": options.jit}
            speed, memory = measure_training(
                shape, seconds=options.seconds, precision=options.precision, **settings
            )
            first = first or speed
            line = (
                f"{name:<14} {law:<8} {rate:>7g} {count:>8} {1e3 * shape.n_tokens / speed:>9.1f} "
                f"{speed:>9,.0f} {speed / first:>8.2f} {memory / 2**20:>6,.0f} MB  "
                f"{format_times(speed, others)}"
            )
            print(line.rstrip(), flush=True)


def _read_numbers(name: str, texts: list[str], kind: type, least: float) -> list[Any]:
    try:
        numbers = [kind(text) for text in texts]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < least:
        raise UserError(f"`{name}` must be numbers >= {least}. Received: {','.join(texts)}")
    return numbers


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    usual = [name for name in SHAPES if name != "wt103_base"]  # takes minutes, and 13 GB
    define_flag(options, "shapes", list, usual, "Shapes to measure.", choices=SHAPES)
    text = "Numbers of replicas on the CPU; the others are compared with the first."
    define_flag(options, "replicas", list, ["1"], text)
    define_flag(options, "seconds", float, 20.0, "Time to measure each.", lower_bound=0)
    define_flag(options, "dropout", list, ["0.1"], "Rates of all dropout.")
    define_flag(options, "precision", str, "float32", "Precision of the training.")
    define_flag(options, "jit", str, "auto", "What XLA compiles.", choices=JIT_MODES)
    define_peers_flag(options)
    return run_program(__doc__, options, print_speeds, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
