"""Trains and evaluates a Transformer-XL on all GPUs of this machine, or on its CPU.

python train_gpu.py --preset text8_base --data_dir data/text8 --model_dir runs/text8
"""

import sys
from typing import Any

from txl_tf.program import run_program
from txl_tf.train_command import define_flags, run


def make_strategy() -> Any:
    """Returns a MirroredStrategy; tensorflow is imported once the flags have been read."""
    from txl_tf.training.strategy import make_gpu_strategy

    return make_gpu_strategy()


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(
        str(__doc__), define_flags(), lambda options: run(options, make_strategy), argv
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv))
