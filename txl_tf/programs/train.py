"""Trains and evaluates a Transformer-XL on all GPUs of this machine, or on its CPU.

If TF_CONFIG is set, this is one process of a run on several hosts.

txl train --preset text8_base --data_dir data/text8 --run runs/text8
"""

import functools
from typing import Any

from absl import flags

from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import program
from txl_tf.programs.cli.train_command import run
from txl_tf.programs.cli.train_flags import MAX_CPU_REPLICAS, define_flags, trains


def make_strategy(options: flags.FlagValues) -> Any:
    """Returns a MirroredStrategy; imports tensorflow only after the flags have been read."""
    from txl_tf.training.strategy import make_gpu_strategy

    return make_gpu_strategy(num_gpus=options.num_gpus, cpu_replicas=options.cpu_replicas)


def count_replicas(options: flags.FlagValues) -> int:
    """Returns the number of replicas that the strategy would have, without creating it."""
    from txl_tf.training import strategy

    cpu_replicas = options.cpu_replicas if trains(options) else 1
    return strategy.count_replicas(num_gpus=options.num_gpus, cpu_replicas=cpu_replicas)


def define_gpu_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing: those of training and of its devices."""
    options = define_flags()
    define = functools.partial(define_flag, options, section="Devices")
    define("num_gpus", int, None, "Number of GPUs to use. [default: all]", lower_bound=0)
    text = "Number of replicas on the CPU, to try out training with several replicas."
    define("cpu_replicas", int, 1, text, lower_bound=1, upper_bound=MAX_CPU_REPLICAS, rare=True)
    return options


@program(__doc__, define_gpu_flags)
def main(options: flags.FlagValues) -> None:
    """Trains and evaluates as the flags specify, on GPUs or the CPU."""
    run(options, make_strategy, count_replicas)
