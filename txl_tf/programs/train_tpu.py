"""Trains and evaluates a Transformer-XL on a TPU.

txl train_tpu --tpu=name
txl train_tpu --tpu=name --cpu_replicas=2
txl train_tpu --tpu=name --preset wt103_large --data_dir gs://bucket/wt103 --model_dir gs://bucket/run
"""

import functools
from typing import Any

from absl import flags

from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import program
from txl_tf.programs.cli.train_command import run
from txl_tf.programs.cli.train_flags import MAX_CPU_REPLICAS, define_flags


def make_strategy(options: flags.FlagValues) -> Any:
    """Returns a TPUStrategy; imports tensorflow only after the flags have been read."""
    from txl_tf.training.strategy import make_tpu_strategy

    if options.cpu_replicas:
        print(
            f"{options.cpu_replicas} replicas on this machine's CPU (MirroredStrategy) stand in "
            f"for the TPU {options.tpu}: this tries the command, not the TPU's compiler."
        )
    return make_tpu_strategy(
        options.tpu,
        zone=options.tpu_zone,
        project=options.gcp_project,
        cpu_replicas=options.cpu_replicas,
    )


def count_replicas(options: flags.FlagValues) -> int | None:
    """Returns the number of replicas; `None` if it is known only when training starts."""
    return options.cpu_replicas or None


def define_tpu_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing: those of training and of its devices."""
    options = define_flags()
    define = functools.partial(define_flag, options, section="Devices")
    text = 'Name of the TPU, its grpc:// address, or "local" on a TPU VM.'
    define("tpu", str, None, text, required=True)
    define("tpu_zone", str, None, "Cloud zone of the TPU. [default: that of this machine]")
    define("gcp_project", str, None, "Cloud project of the TPU. [default: that of this machine]")
    text = (
        "Number of replicas on this machine's CPU that stand in for the TPU, to try the command "
        "without one; 0 for the TPU."
    )
    define("cpu_replicas", int, 0, text, lower_bound=0, upper_bound=MAX_CPU_REPLICAS)
    return options


@program(__doc__, define_tpu_flags)
def main(options: flags.FlagValues) -> None:
    """Trains and evaluates as the flags specify, on a TPU."""
    run(options, make_strategy, count_replicas)
