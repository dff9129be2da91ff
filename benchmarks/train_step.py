"""Speed of training: tokens per second, beside the matrix peak of the machine in the same run.

python -m benchmarks.train_step
python -m benchmarks.train_step --shapes bytes --replicas 1,2
python -m benchmarks.train_step --dropout 0,0.1 --peers peers.txt

The batch is the same for any number of replicas, so "times 1" is what they gain; on a CPU all of
them share its cores, and the loss is what they cost. "Outside" is the share of a run, from its
records to its log, in which no step was computed. Tokens of words are drawn uniformly and by Zipf's
law, which decides how many fall into each bin of the adaptive softmax. `--peers` names a file with
the speeds of other implementations on this machine, measured in the same hour; see
`benchmarks.works.read_peers`.
"""

import dataclasses
import functools
import statistics
import sys
import tempfile
import time
from typing import Any, NamedTuple

from absl import flags

from benchmarks.works import (
    LAWS,
    SHAPES,
    Shape,
    define_peers_flag,
    draw_ids,
    format_times,
    measure_apart,
    measure_peak,
    read_peers,
    repeat,
)
from txl_tf.data import Vocabulary, open_records, write_records
from txl_tf.data.lanes.training_lanes import TrainingLanes
from txl_tf.errors import UserError
from txl_tf.programs.cli.config_flags import define_jit_flag
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program
from txl_tf.quiet_start import quiet_start

CALL_SECONDS = 5.0  # as training has it
N_IDS = 2_000_000  # of the data set


def count_flops(shape: Shape, law: str, n_replicas: int) -> float:
    """Returns the floating-point operations of the matrix products of a training step."""
    from benchmarks.step_costs import count_step_flops  # imports TensorFlow

    model, training = shape.make_configs(dropout=0.0)
    shares = shape.list_bin_shares(law)
    return count_step_flops(model, training, n_replicas=n_replicas, bin_shares=shares)


class Figures(NamedTuple):
    """What was measured of a shape and a number of replicas.

    Args:
        step_seconds: Median seconds of a step in a run.
        outside: Share of the run in which no step was computed.
        memory_bytes: The most that the run took, where that is known.
        peak: FLOP/s of a large matrix product, in the same process.
    """

    step_seconds: float
    outside: float
    memory_bytes: int | None
    peak: float


def measure(
    shape: Shape,
    law: str,
    replicas: int,
    *,
    dropout: float,
    jit: str,
    seconds: float,
    precision: str = "float32",
) -> Figures:
    """Measures a run; in a process of its own, since devices cannot be divided anew."""
    with quiet_start():
        import tensorflow as tf

    from txl_tf.training.strategy import make_gpu_strategy
    from txl_tf.training.trainer import Trainer, measure_peak_memory
    from txl_tf.training.workers import Workers

    has_gpus = bool(tf.config.list_physical_devices("GPU"))
    strategy = make_gpu_strategy(
        num_gpus=replicas * has_gpus, cpu_replicas=1 if has_gpus else replicas
    )
    before = measure_peak()
    model, training = shape.make_configs(dropout)
    training = dataclasses.replace(training, precision=precision, jit=jit)
    trainer = Trainer(Workers(strategy), model, training)
    with tempfile.TemporaryDirectory() as folder:
        lanes = make_lanes(shape, law, folder)
        step_seconds, outside = measure_run(trainer, lanes, folder, seconds)
    memory_bytes = measure_peak_memory(strategy)
    return Figures(step_seconds, outside, memory_bytes, max(before, measure_peak()))


def make_lanes(shape: Shape, law: str, folder: str) -> TrainingLanes:
    """Returns the lanes of a data set on disk: a run reads its records as it goes on."""
    ids = draw_ids(shape.n_token, law, N_IDS)
    vocabulary = Vocabulary("word", tuple(map(str, range(shape.n_token))))
    write_records(folder, dataset="noise", vocabulary=vocabulary, splits={"train": [ids]})
    split = open_records(folder).split("train")
    return TrainingLanes(split, n_lanes=shape.batch_size, tgt_len=shape.tgt_len)


def measure_run(
    trainer: Any, lanes: TrainingLanes, folder: str, seconds: float
) -> tuple[float, float]:
    """Trains for some seconds; returns the median seconds of a step and the share outside of them.

    A call of the device takes some seconds, and a line of the log follows it, as in training.
    """
    from txl_tf.config import EvalConfig
    from txl_tf.config.training import RunOptions
    from txl_tf.runs.folder import RunConfig
    from txl_tf.training.log import TrainingLog

    inside: list[float] = []
    run_steps = trainer.run_steps

    def run_timed(*arguments: Any) -> Any:
        start = time.perf_counter()
        values = run_steps(*arguments)
        values.numpy()  # on an accelerator the call returns before it is done
        inside.append(time.perf_counter() - start)
        return values

    config = RunConfig("noise", trainer.model.config, trainer.config, EvalConfig(mem_len=0))
    log = TrainingLog(folder, config, RunOptions(), first_step=0, level="word")
    n_steps = _find_steps_a_call(trainer, lanes)
    begin = trainer.step
    trainer.run_steps = run_timed
    n_calls = 1 + max(3, round(seconds / CALL_SECONDS))
    ends = []
    for interval in trainer.train(lanes, [begin + n_steps * (k + 1) for k in range(n_calls)]):
        log.write_training(interval, trainer.read_gauges())
        ends.append(time.perf_counter())
    del inside[0]  # the first call waits for its records, and the first line is compiled
    wall = ends[-1] - ends[0]
    return statistics.median(inside) / n_steps, 1 - sum(inside) / wall


def _find_steps_a_call(trainer: Any, lanes: TrainingLanes) -> int:
    """Returns how many steps to make in a call; traces and compiles before."""
    trainer.run(lanes.read(0))
    start = time.perf_counter()
    trainer.run(lanes.read(0))
    took = time.perf_counter() - start
    if took < 1:
        took = min(repeat(lambda: trainer.run(lanes.read(0)), 1.0))
    n_steps = max(1, min(500, int(CALL_SECONDS / took)))
    trainer.run(lanes.read(0, n_steps))
    return n_steps


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
        f"{'tokens/s':>9} {'times 1':>8} {'GFLOP/s':>8} {'peak':>8} {'share':>6} {'outside':>8} "
        f"{'memory':>9}  others"
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
            figures = measure_apart(
                functools.partial(measure, dropout=rate, jit=options.jit, seconds=options.seconds),
                *(shape, law, count),
            )
            tokens = shape.batch_size * shape.tgt_len / figures.step_seconds
            first = first or tokens
            flops = count_flops(shape, law, count) / figures.step_seconds
            line = (
                f"{name:<14} {law:<8} {rate:>7g} {count:>8} {1e3 * figures.step_seconds:>9.1f} "
                f"{tokens:>9,.0f} {tokens / first:>8.2f} {flops / 1e9:>8.1f} "
                f"{figures.peak / 1e9:>8.1f} {flops / figures.peak:>6.1%} {figures.outside:>8.2%} "
                f"{(figures.memory_bytes or 0) / 2**20:>6,.0f} MB  {format_times(tokens, others)}"
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
    text = "Numbers of replicas; the others are compared with the first."
    define_flag(options, "replicas", list, ["1"], text)
    define_flag(options, "seconds", float, 20.0, "Time to measure each.", lower_bound=0)
    define_flag(options, "dropout", list, ["0.1"], "Rates of all dropout.")
    define_jit_flag(options)
    define_peers_flag(options)
    return run_program(__doc__, options, print_speeds, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
