"""The flags that programs share: the run, its checkpoint, the EMA weights and the empty memory."""

from absl import flags

from txl_tf.cli.flags import define_flag
from txl_tf.config import KERNEL_DTYPES


def define_run_flags(options: flags.FlagValues) -> None:
    """Defines the flags of the run and its checkpoint."""
    define_flag(options, "run", str, None, "Folder of the run.", required=True, is_path=True)
    help_text = "Path of the checkpoint to use. [default: the newest]"
    define_flag(options, "checkpoint", str, None, help_text, is_path=True)


def define_ema_flag(options: flags.FlagValues) -> None:
    """Defines the flag that chooses between the weights and their moving average."""
    help_text = "Use the EMA weights if the checkpoint has them."
    define_flag(options, "use_ema", bool, True, help_text)


def define_precision_flag(options: flags.FlagValues) -> None:
    """Defines the flag of the dtype of the weights."""
    help_text = (
        "Dtype of the kernels and tables: narrower ones take less memory, and less time to "
        "generate. int8 has a scale for each output; with bfloat16, texts are read in it, too."
    )
    define_flag(options, "precision", str, "float32", help_text, choices=KERNEL_DTYPES)


def define_mask_flag(options: flags.FlagValues) -> None:
    """Defines the flag that hides the empty memory."""
    help_text = (
        "Hide the empty memory, so that a text sees nothing before its first token. The 2019 "
        "release attends to its zeros."
    )
    define_flag(options, "mask_empty_memory", bool, True, help_text)
