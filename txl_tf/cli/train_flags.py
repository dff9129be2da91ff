"""The flags of the training command: those of the 2019 release, and additional ones."""

import functools

from absl import flags

from txl_tf import presets
from txl_tf.cli.config_flags import define_config_flags
from txl_tf.cli.flags import define_flag
from txl_tf.cli.legacy_flags import TRAINING_FLAGS, define_legacy_flags
from txl_tf.cli.run_flags import CHECKPOINT_HELP
from txl_tf.config import EvalConfig, ModelConfig, TrainConfig
from txl_tf.config.run_options import RunOptions


def define_flags() -> flags.FlagValues:
    """Returns the flags of the training command, before parsing."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    define("data_dir", str, None, "Folder of the records. [default: that of the run]", is_path=True)
    define("model_dir", str, None, "Folder of the run.", required=True, is_path=True)
    define(
        "preset",
        str,
        None,
        "Preset whose settings replace the defaults of the flags.",
        choices=presets.names(),
    )
    define("do_train", bool, True, "Train.")
    define("do_eval", bool, False, "Evaluate, after training if --do_train is set.")
    define("do_eval_only", bool, False, "Evaluate all checkpoints of the run instead of training.")
    define("eval_ckpt_path", str, None, CHECKPOINT_HELP, is_path=True)
    define(
        "start_eval_steps",
        int,
        10_000,
        "Step of the first checkpoint that --do_eval_only evaluates.",
    )
    define("max_eval_batch", int, -1, "Number of batches to evaluate; -1 for all.", lower_bound=-1)
    define(
        "warm_start_path",
        str,
        None,
        "Path of the checkpoint whose weights a new run starts from (fine-tuning).",
        is_path=True,
    )
    define(
        "tie_weight",
        bool,
        True,
        "Share the weights of embedding and softmax; false is not supported.",
    )
    define(
        "dry_run",
        bool,
        False,
        "Print what the command would do and the resources that it would need, and stop.",
    )
    define_config_flags(options, RunOptions)
    for config in (ModelConfig, TrainConfig, EvalConfig):
        define_config_flags(options, config)
    define_legacy_flags(options, TRAINING_FLAGS)
    return options


def trains(options: flags.FlagValues) -> bool:
    """Returns whether the command trains."""
    return options.do_train and not options.do_eval_only


def evaluates(options: flags.FlagValues) -> bool:
    """Returns whether the command evaluates checkpoints, possibly after training."""
    return options.do_eval or options.do_eval_only


def check_flags(options: flags.FlagValues) -> None:
    """Checks the flags that are in no config.

    Raises:
        flags.Error: If they contradict each other, or one is not supported.
    """
    if not options.tie_weight:
        raise flags.Error("--tie_weight=false: the softmax always has the embedding's weights")
    if not trains(options) and not evaluates(options):
        raise flags.Error("--do_train=false: pass --do_eval or --do_eval_only too")
    if options.do_eval_only and options.eval_ckpt_path:
        raise flags.Error(
            "--eval_ckpt_path is for --do_eval; --do_eval_only evaluates all checkpoints"
        )
    if options.dry_run and not trains(options):
        raise flags.Error("--dry_run is for training: pass --do_train too")
    if options.max_eval_batch == 0:
        raise flags.Error("--max_eval_batch must be -1, for all, or positive. Received: 0")
