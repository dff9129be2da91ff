"""Speed of training: tokens per second and memory of `txl train` on random ids.

python -m benchmarks.train_step
python -m benchmarks.train_step --shapes bytes --replicas 2 --precision bfloat16

Each measurement runs the training program, reads its log, and ends after `--seconds`. The batch is
the same for any number of replicas, so "times 1" is the speedup; on a CPU, replicas share its
cores, so a value below 1 is their cost. Words are drawn uniformly and by Zipf's law, which
determines how many fall into each bin of the adaptive softmax.
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
from benchmarks.works import LAWS, SHAPES, draw_ids, make_config
from txl_tf.config import JIT_MODES
from txl_tf.data import Vocabulary, write_records
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

N_IDS = 2_000_000  # of the data set
STEPS_A_LINE = 10
N_LINES = 3  # the least to read, after the first line, which includes compilation


class Speed(NamedTuple):
    """What the log of a run reports.

    Args:
        tokens_per_second: The median over its lines.
        memory_bytes: The peak memory of the run; 0 if unknown.
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
    """Trains for some seconds in a separate process, and returns the speed from its log.

    Raises:
        UserError: If training fails.
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
    """Runs training until its log covers some seconds; returns all lines except the first.

    Raises:
        UserError: If it ends before that.
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
    """Measures the shapes, with one replica and with more if requested; prints a line for each."""
    print(
        f"{'shape':<14} {'tokens':<8} {'replicas':>8} {'ms/step':>9} {'tokens/s':>9} "
        f"{'times 1':>8} {'memory':>9}"
    )
    settings: dict[str, Any] = {
        name: options[name].value for name in ("dropout", "jit", "precision", "seconds")
    }
    for name in options.shapes:
        shape = SHAPES[name]
        for law in LAWS if shape.cutoffs else LAWS[:1]:
            first = 0.0
            for count in sorted({1, options.replicas}):
                speed, memory = measure_training(shape, law=law, replicas=count, **settings)
                first = first or speed
                line = (
                    f"{name:<14} {law:<8} {count:>8} {1e3 * shape.n_tokens / speed:>9.1f} "
                    f"{speed:>9,.0f} {speed / first:>8.2f} {memory / 2**20:>6,.0f} MB"
                )
                print(line, flush=True)


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    usual = [name for name in SHAPES if name != "wt103_base"]  # takes minutes, and 13 GB
    define_flag(options, "shapes", list, usual, "Shapes to measure.", choices=SHAPES)
    text = "Number of replicas on the CPU, to compare with one."
    define_flag(options, "replicas", int, 1, text, lower_bound=1)
    define_flag(options, "seconds", float, 20.0, "Time to measure each.", lower_bound=0)
    define_flag(options, "dropout", float, 0.1, "Dropout rate.", lower_bound=0)
    define_flag(options, "precision", str, "float32", "Precision: float32, bfloat16 or float16.")
    define_flag(options, "jit", str, "auto", "What XLA compiles.", choices=JIT_MODES)
    return run_program(__doc__, options, print_speeds, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
