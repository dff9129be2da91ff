"""How a run is driven: what its numbers do not depend on."""

from dataclasses import dataclass

from txl_tf.config.base import Config


@dataclass(frozen=True)
class RunOptions(Config):
    """When a run logs, saves, evaluates and stops.

    Args:
        iterations: steps between log lines, and the most in one call of the device.
        save_steps: steps between checkpoints; the last step is saved too.
        keep_checkpoints: how many of the newest checkpoints stay, beside the best by evaluation.
        eval_every: steps between evaluations in training; 0 for none.
        sample_tokens: tokens of text to generate at each evaluation, for TensorBoard; 0 for none.
            Not on TPUs.
        patience: evaluations without a new best after which training ends; 0 for no end.
        max_bad_steps: steps in a row whose gradients may be not finite; they are skipped.
        max_hours: hours after which a run saves and stops, to be called again; 0 for no limit.

    Raises:
        UserError: a value is out of its range.
    """

    iterations: int = 500
    save_steps: int = 10_000
    keep_checkpoints: int = 5
    eval_every: int = 0
    sample_tokens: int = 100
    patience: int = 0
    max_bad_steps: int = 10
    max_hours: float = 0.0

    def __post_init__(self) -> None:
        self._check_integers(1, "iterations", "save_steps", "keep_checkpoints")
        self._check_integers(0, "eval_every", "sample_tokens", "patience", "max_bad_steps")
        self._check_reals("max_hours")
        self._check(self.max_hours >= 0, "`max_hours` must not be negative", "max_hours")
        self._check(
            self.eval_every > 0 or not self.patience,
            "`patience` needs `eval_every`",
            "patience",
            "eval_every",
        )
