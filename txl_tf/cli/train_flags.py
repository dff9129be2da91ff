"""The flags of the training command: those of the 2019 release, and additional ones."""

import functools

from absl import flags

from txl_tf import presets
from txl_tf.cli.config_flags import define_config_flags
from txl_tf.cli.flags import define_flag
from txl_tf.cli.legacy_flags import TRAINING_FLAGS, define_legacy_flags
from txl_tf.cli.run_flags import CHECKPOINT_HELP
from txl_tf.config import EvalConfig, ModelConfig, TrainConfig
from txl_tf.config.training import RunOptions


def define_flags() -> flags.FlagValues:
    """Returns the flags of the training command, before parsing."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options, section="Run")
    text = "Folder of the records. [default: that of the run]"
    define("data_dir", str, None, text, is_path=True)
    define("model_dir", str, None, "Folder of the run.", required=True, is_path=True)
    text = "Preset whose settings replace the defaults of the flags."
    define("preset", str, None, text, choices=presets.names())
    text = "Path of the checkpoint whose weights a new run starts from (fine-tuning)."
    define("warm_start_path", str, None, text, is_path=True)
    text = "Print what the command would do and the resources that it would need, and stop."
    define("dry_run", bool, False, text)
    define("do_train", bool, True, "Train.")
    define("do_eval", bool, False, "Evaluate, after training if --do_train is set.")
    text = "Evaluate all checkpoints of the run instead of training."
    define("do_eval_only", bool, False, text, rare=True)
    define("eval_ckpt_path", str, None, CHECKPOINT_HELP, is_path=True, rare=True)
    text = "Step of the first checkpoint that --do_eval_only evaluates."
    define("start_eval_steps", int, 10_000, text, rare=True)
    text = "Number of batches to evaluate; -1 for all."
    define("max_eval_batch", int, -1, text, lower_bound=-1, rare=True)
    text = "Share the weights of embedding and softmax; false is not supported."
    define("tie_weight", bool, True, text, rare=True)
    define_config_flags(options, RunOptions, section="Run")
    define_config_flags(options, ModelConfig, section="Model")
    define_config_flags(options, TrainConfig, section="Training")
    define_config_flags(options, EvalConfig, section="Evaluation")
    define_legacy_flags(options, TRAINING_FLAGS)
    return options


def trains(options: flags.FlagValues) -> bool:
    """Returns whether the command trains."""
    return options.do_train and not options.do_eval_only


def evaluates(options: flags.FlagValues) -> bool:
    """Returns whether the command evaluates checkpoints, possibly after training."""
    return options.do_eval or options.do_eval_only


def check_flags(options: flags.FlagValues) -> None:
    """Checks that the flags that are in no config do not contradict each other."""
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
