"""Speed of training: tokens per second, beside the matrix peak of the machine in the same run.

python -m benchmarks.train_step
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from absl import flags

from txl_tf.config import ModelConfig, TrainConfig
from txl_tf.program import define_flag, run_program


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
MATRIX = 2048  # rows and columns of the product that measures the peak


def count_flops(shape: Shape) -> float:
    """Returns the floating-point operations of the matrix products of a training step.

    A multiply-add counts as two; scores of masked keys count, as in every dense attention. The
    backward pass costs twice the forward pass, less the gradients with respect to memory and
    positions, into which none flows.
    """
    tokens, memory = shape.batch_size * shape.tgt_len, shape.batch_size * shape.mem_len
    keys, d_model = shape.tgt_len + shape.mem_len, shape.d_model
    no_input_gradient = 2 * memory * d_model * 2 * d_model + 2 * keys * d_model**2  # k, v; r
    projections = 2 * tokens * d_model * 4 * d_model  # q, k, v, output
    attention = 3 * 2 * tokens * keys * d_model  # content, position, values
    feed_forward = 2 * 2 * tokens * d_model * shape.d_inner
    forward = shape.n_layer * (no_input_gradient + projections + attention + feed_forward)
    forward += 2 * tokens * d_model * shape.n_token
    return 3 * forward - shape.n_layer * no_input_gradient


def measure_peak(seconds: float = 1.0) -> float:
    """Returns the best FLOP/s of a large float32 matrix product in some runs."""
    import tensorflow as tf

    matrix = tf.random.stateless_normal((MATRIX, MATRIX), seed=(0, 1))
    multiply = tf.function(lambda left, right: tf.matmul(left, right))
    return 2 * MATRIX**3 / min(repeat(lambda: multiply(matrix, matrix).numpy(), seconds))


def measure_step(shape: Shape, *, dropout: float, jit_compile: bool, seconds: float) -> float:
    """Returns the median seconds of a training step, as the training program runs it."""
    from txl_tf.training.strategy import make_gpu_strategy
    from txl_tf.training.trainer import Trainer

    model, training = shape.make_configs(dropout)
    trainer = Trainer(make_gpu_strategy(), model, training, jit_compile=jit_compile)
    generator = np.random.default_rng(0)
    shape_of_ids = (1, shape.batch_size, shape.tgt_len + 1)
    segments = generator.integers(0, shape.n_token, shape_of_ids, np.int32)
    return statistics.median(repeat(lambda: trainer.run(segments), seconds))


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
    """Measures the shapes and prints a line each."""
    print(f"{'shape':<12} {'ms/step':>9} {'tokens/s':>9} {'GFLOP/s':>8} {'peak':>8} {'share':>6}")
    for name, shape in SHAPES.items():
        before = measure_peak()
        step = measure_step(
            shape, dropout=options.dropout, jit_compile=options.jit, seconds=options.seconds
        )
        peak = max(before, measure_peak())
        flops = count_flops(shape) / step
        print(
            f"{name:<12} {1e3 * step:>9.1f} {shape.batch_size * shape.tgt_len / step:>9,.0f} "
            f"{flops / 1e9:>8.1f} {peak / 1e9:>8.1f} {flops / peak:>6.1%}",
            flush=True,
        )


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "seconds", float, 20.0, "How long to measure each.", lower_bound=0.0)
    define_flag(options, "dropout", float, 0.1, "Rate of the dropout.")
    define_flag(options, "jit", bool, True, "Compile the model with XLA.")
    return run_program(str(__doc__), options, print_speeds, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
