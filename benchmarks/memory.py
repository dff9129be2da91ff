"""Memory of training: what a compiled step needs beside its arguments, with and without --remat.

The estimate is that of the activations by `txl_tf.training.costs`, which a dry run prints.

python -m benchmarks.memory
"""

import dataclasses
import os
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
from absl import flags

from benchmarks.works import SHAPES, Shape
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.training.costs import estimate_memory

# XLA's own account of a compiled function. The temporary allocation is what it needs beside
# arguments (weights, memory, ids) and results (gradients, memory).
REPORTS = "*compute_gradients*after_optimizations-buffer-assignment.txt"
ALLOCATION = re.compile(r"^allocation \d+: size (\d+), preallocated-temp", flags=re.MULTILINE)


def dump_reports(folder: str) -> None:
    """Has XLA write an account of what it compiles; must come before tensorflow's first use."""
    dump = f"--xla_dump_to={folder} --xla_dump_hlo_module_re=.*compute_gradients.*"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {dump}"


def read_temporary_bytes(folder: str) -> int:
    """Returns the largest temporary allocation that XLA wrote down, and removes the accounts."""
    sizes = []
    for path in Path(folder).glob(REPORTS):
        sizes.append(sum(int(size) for size in ALLOCATION.findall(path.read_text())))
        path.unlink()
    return max(sizes)


def measure_step(shape: Shape, folder: str, *, remat: bool, dropout: float) -> tuple[int, int]:
    """Returns the temporary bytes of a training step as the training program compiles it.

    Beside them stands the estimate of its activations.

    Args:
        shape: Model and batch.
        folder: Where XLA writes its accounts.
        remat: Whether the layers are computed anew in the backward pass.
        dropout: Rate of every dropout.
    """
    from txl_tf.training.strategy import make_gpu_strategy
    from txl_tf.training.trainer import Trainer
    from txl_tf.training.workers import Workers

    model, training = shape.make_configs(dropout)
    training = dataclasses.replace(training, remat=remat)
    trainer = Trainer(Workers(make_gpu_strategy()), model, training)
    trainer.run(np.zeros((1, shape.batch_size, shape.tgt_len + 1), np.int32))
    return read_temporary_bytes(folder), estimate_memory(model, training).activations


def print_memory(options: flags.FlagValues) -> None:
    """Measures both and prints a line each."""
    shape = SHAPES["bytes"]._replace(
        n_layer=options.n_layer,
        d_model=options.d_model,
        d_inner=4 * options.d_model,
        tgt_len=options.tgt_len,
        mem_len=options.tgt_len,
        batch_size=options.batch_size,
    )
    print(" ".join(f"{name}={value}" for name, value in shape._asdict().items()))
    print(f"{'':<14} {'temporary, MiB':>14} {'estimate, MiB':>14}")
    with tempfile.TemporaryDirectory() as folder:
        dump_reports(folder)
        for name, remat in (("without remat", False), ("with remat", True)):
            sizes = measure_step(shape, folder, remat=remat, dropout=options.dropout)
            found, estimate = (size / 2**20 for size in sizes)
            print(f"{name:<14} {found:>14.1f} {estimate:>14.1f}", flush=True)


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "n_layer", int, 8, "Number of layers.", lower_bound=1)
    define_flag(
        options, "d_model", int, 256, "Width; d_inner is four times as wide.", lower_bound=1
    )
    define_flag(options, "tgt_len", int, 128, "Length of segment and memory.", lower_bound=1)
    define_flag(options, "batch_size", int, 8, "Number of lanes.", lower_bound=1)
    define_flag(
        options, "dropout", float, 0.1, "Rate of every dropout.", lower_bound=0, upper_bound=1
    )
    return run_program(__doc__, options, print_memory, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
