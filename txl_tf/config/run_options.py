"""How a run is driven: settings on which its numbers do not depend."""

from dataclasses import dataclass, field

from txl_tf.config.base import Config, describe, document_fields


@document_fields
@dataclass(frozen=True)
class RunOptions(Config):
    """When a run logs, saves, evaluates and stops.

    Raises:
        UserError: a value is out of its range.
    """

    iterations: int = field(
        default=500,
        metadata=describe(
            "Steps between log lines, and the most in one call of the device.", lower_bound=1
        ),
    )
    save_steps: int = field(
        default=10_000,
        metadata=describe(
            "Steps between checkpoints; the last step is always saved.", lower_bound=1
        ),
    )
    keep_checkpoints: int = field(
        default=5,
        metadata=describe(
            "Number of newest checkpoints to keep, beside the one with the best evaluation.",
            lower_bound=1,
        ),
    )
    eval_every: int = field(
        default=0,
        metadata=describe("Steps between evaluations in training; 0 for none.", lower_bound=0),
    )
    sample_tokens: int = field(
        default=100,
        metadata=describe(
            "Tokens to generate at each evaluation in training, shown in TensorBoard; 0 for none. "
            "Not on TPUs.",
            lower_bound=0,
        ),
    )
    patience: int = field(
        default=0,
        metadata=describe(
            "Early stopping: end training after this many evaluations without a new best; 0 to "
            "train to the end.",
            lower_bound=0,
        ),
    )
    max_bad_steps: int = field(
        default=10,
        metadata=describe(
            "Steps in a row whose gradients may be infinite or NaN; such steps are skipped.",
            lower_bound=0,
        ),
    )
    max_hours: float = field(
        default=0.0,
        metadata=describe(
            "Hours after which a run saves and stops; started again, it continues. 0 for no limit."
        ),
    )

    def __post_init__(self) -> None:
        self._check_fields()
        self._check(self.max_hours >= 0, "`max_hours` must not be negative", "max_hours")
        self._check(
            self.eval_every > 0 or not self.patience,
            "`patience` needs `eval_every`",
            "patience",
            "eval_every",
        )
