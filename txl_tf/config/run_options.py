"""The settings of a run that do not affect its results."""

from dataclasses import dataclass

from txl_tf.config.base import Config, define_field, document_fields


@document_fields
@dataclass(frozen=True)
class RunOptions(Config):
    """How a run is driven: when it logs, saves, evaluates and stops.

    A run remembers these settings, except for `max_hours`.

    Raises:
        UserError: If a value is out of its range.
    """

    iterations: int = define_field(
        500, "Steps between log lines, and at most in one call of the device.", lower_bound=1
    )
    save_steps: int = define_field(
        10_000, "Steps between checkpoints; the last step is always saved.", lower_bound=1
    )
    keep_checkpoints: int = define_field(
        5,
        "Number of newest checkpoints to keep, besides the one with the best evaluation.",
        lower_bound=1,
        rare=True,
    )
    eval_every: int = define_field(
        0, "Steps between evaluations in training; 0 for none.", lower_bound=0
    )
    sample_tokens: int = define_field(
        100,
        "Tokens to generate at each evaluation in training, shown in TensorBoard; 0 for none. "
        "Ignored on TPUs.",
        lower_bound=0,
        rare=True,
    )
    patience: int = define_field(
        0,
        "Early stopping: end training after this many evaluations without a new best; 0 to "
        "train to the end.",
        lower_bound=0,
    )
    eval_split: str = define_field("valid", "Split to evaluate on.")
    use_ema: bool = define_field(
        True,
        "Use the averaged weights if a checkpoint has them (see --ema and --average_from).",
        rare=True,
    )
    deterministic: bool = define_field(
        False, "Use only operations with bitwise reproducible results.", rare=True
    )
    max_bad_steps: int = define_field(
        10,
        "Number of consecutive steps whose gradients may be infinite or NaN; they are skipped.",
        lower_bound=0,
        rare=True,
    )
    max_hours: float = define_field(
        0.0, "Hours after which a run saves and stops; started again, it continues. 0 for no limit."
    )

    def __post_init__(self) -> None:
        self._check_fields()
        self._check(self.max_hours >= 0, "`max_hours` must not be negative")
        self._check(self.eval_every > 0 or not self.patience, "`patience` needs `eval_every`")
