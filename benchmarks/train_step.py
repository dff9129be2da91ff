"""Speed of training: tokens per second, beside the matrix peak of the machine in the same run.

python -m benchmarks.train_step --replicas 1,2

The batch is the same for any number of replicas, so "times 1" is what they gain; on a CPU all of
them share its cores, and the loss is what they cost. "Outside" is the share of a run, from its
records to its log, in which no step was computed.
"""

import contextlib
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from absl import flags

from txl_tf.config import ModelConfig, TrainConfig
from txl_tf.costs import count_step_flops
from txl_tf.data import Vocabulary, open_records, write_records
from txl_tf.data.lanes import TrainingLanes
from txl_tf.errors import UserError
from txl_tf.program import define_flag, run_program
from txl_tf.quiet_start import quiet_start


class Shape(NamedTuple):
    """A model and a batch to train it with."""

    n_layer: int
    d_model: int
    n_head: int
    d_inner: int
    tgt_len: int
    mem_len: int
    batch_size: int
    n_token: int

    def make_configs(self, dropout: float) -> tuple[ModelConfig, TrainConfig]:
        """Returns model and training with the hyper-parameters of the release."""
        model = ModelConfig(
            n_token=self.n_token,
            n_layer=self.n_layer,
            d_model=self.d_model,
            d_embed=self.d_model,
            n_head=self.n_head,
            d_head=self.d_model // self.n_head,
            d_inner=self.d_inner,
            dropout=dropout,
            dropatt=0.0,
        )
        training = TrainConfig(
            train_batch_size=self.batch_size, tgt_len=self.tgt_len, mem_len=self.mem_len
        )
        return model, training


SHAPES = {
    "small": Shape(6, 256, 8, 1024, 128, 128, 8, 27),
    "enwik8_base": Shape(12, 512, 8, 2048, 128, 128, 2, 205),
}
CALL_SECONDS = 5.0  # as training has it
MATRIX = 2048  # rows and columns of the product that measures the peak


def count_flops(shape: Shape, n_replicas: int) -> float:
    """Returns the floating-point operations of the matrix products of a training step."""
    model, training = shape.make_configs(dropout=0.0)
    return count_step_flops(model, training, n_replicas=n_replicas)


def measure_peak(seconds: float = 1.0) -> float:
    """Returns the best FLOP/s of a large float32 matrix product in some runs."""
    import tensorflow as tf

    matrix = tf.random.stateless_normal((MATRIX, MATRIX), seed=(0, 1))
    multiply = tf.function(lambda left, right: tf.matmul(left, right))
    return 2 * MATRIX**3 / min(repeat(lambda: multiply(matrix, matrix).numpy(), seconds))


class Figures(NamedTuple):
    """What was measured of a shape and a number of replicas.

    Args:
        step_seconds: median seconds of a step in a run.
        outside: share of the run in which no step was computed.
        memory_bytes: the most that the run took, where that is known.
        peak: FLOP/s of a large matrix product, in the same process.
    """

    step_seconds: float
    outside: float
    memory_bytes: int | None
    peak: float


def measure(
    shape: Shape, replicas: int, *, dropout: float, jit_compile: bool, seconds: float
) -> Figures:
    """Measures a run; in a process of its own, since devices cannot be divided anew."""
    with quiet_start():
        import tensorflow as tf

    from txl_tf.training.gauges import measure_peak_memory
    from txl_tf.training.strategy import make_gpu_strategy
    from txl_tf.training.trainer import Trainer

    has_gpus = bool(tf.config.list_physical_devices("GPU"))
    strategy = make_gpu_strategy(
        num_gpus=replicas * has_gpus, cpu_replicas=1 if has_gpus else replicas
    )
    before = measure_peak()
    model, training = shape.make_configs(dropout)
    trainer = Trainer(strategy, model, training, jit_compile=jit_compile)
    with tempfile.TemporaryDirectory() as folder, make_lanes(shape, folder) as lanes:
        step_seconds, outside = measure_run(trainer, lanes, folder, seconds)
    memory_bytes = measure_peak_memory(strategy)
    return Figures(step_seconds, outside, memory_bytes, max(before, measure_peak()))


@contextlib.contextmanager
def make_lanes(shape: Shape, folder: str) -> Iterator[TrainingLanes]:
    """Makes the lanes of a data set on disk: a run reads its records as it goes on."""
    ids = np.random.default_rng(0).integers(0, shape.n_token, 2_000_000, np.int32)
    vocabulary = Vocabulary("word", tuple(map(str, range(shape.n_token))))
    write_records(folder, dataset="noise", vocabulary=vocabulary, splits={"train": [ids]})
    split = open_records(folder).split("train")
    yield TrainingLanes(split, n_lanes=shape.batch_size, tgt_len=shape.tgt_len)


def measure_run(
    trainer: Any, lanes: TrainingLanes, folder: str, seconds: float
) -> tuple[float, float]:
    """Trains for some seconds; returns the median seconds of a step and the share outside of them.

    A call of the device takes some seconds, and a line of the log follows it, as in training.
    """
    from txl_tf.training.log import TrainingLog

    inside: list[float] = []
    run_steps = trainer._run_steps

    def run_timed(*arguments: Any) -> Any:
        start = time.perf_counter()
        values = run_steps(*arguments)
        values.numpy()  # on an accelerator the call returns before it is done
        inside.append(time.perf_counter() - start)
        return values

    log = TrainingLog(folder, first_step=0, train_steps=trainer.config.train_steps)
    n_steps = _find_steps_a_call(trainer, lanes)
    begin = trainer.step
    trainer._run_steps = run_timed
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
    took = min(repeat(lambda: trainer.run(lanes.read(0)), 1.0))
    n_steps = max(1, min(500, int(CALL_SECONDS / took)))
    trainer.run(lanes.read(0, n_steps))
    return n_steps


def repeat(call: Callable[[], object], seconds: float) -> list[float]:
    """Calls twice to warm up, then for some seconds; returns how long each call took."""
    call()
    call()
    durations: list[float] = []
    while sum(durations) < seconds or len(durations) < 5:
        start = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start)
    return durations


def print_speeds(options: flags.FlagValues) -> None:
    """Measures the shapes with each number of replicas, and prints a line each.

    Raises:
        UserError: the replicas are no numbers.
    """
    try:
        counts = [int(text) for text in options.replicas]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise UserError(f"`replicas` must be integers >= 1. Received: {options.replicas}")
    print(
        f"{'shape':<12} {'replicas':>8} {'ms/step':>9} {'tokens/s':>9} {'times 1':>8} "
        f"{'GFLOP/s':>8} {'peak':>8} {'share':>6} {'outside':>8} {'memory':>8}"
    )
    for name, shape in SHAPES.items():
        first = 0.0
        for count in counts:
            figures = _measure_apart(shape, count, options)
            tokens = shape.batch_size * shape.tgt_len / figures.step_seconds
            first = first or tokens
            flops = count_flops(shape, count) / figures.step_seconds
            print(
                f"{name:<12} {count:>8} {1e3 * figures.step_seconds:>9.1f} {tokens:>9,.0f} "
                f"{tokens / first:>8.2f} {flops / 1e9:>8.1f} {figures.peak / 1e9:>8.1f} "
                f"{flops / figures.peak:>6.1%} {figures.outside:>8.2%} "
                f"{(figures.memory_bytes or 0) / 2**20:>5,.0f} MB",
                flush=True,
            )


def _measure_apart(shape: Shape, replicas: int, options: flags.FlagValues) -> Figures:
    """Measures in a new process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(
            measure,
            shape,
            replicas,
            dropout=options.dropout,
            jit_compile=options.jit,
            seconds=options.seconds,
        ).result()


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "replicas", list, ["1"], "Numbers of replicas, the first to compare with.")
    define_flag(options, "seconds", float, 20.0, "How long to measure each.", lower_bound=0.0)
    define_flag(options, "dropout", float, 0.1, "Rate of the dropout.")
    define_flag(options, "jit", bool, True, "Compile the model with XLA.")
    return run_program(str(__doc__), options, print_speeds, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
