"""The config of dynamic evaluation."""

from dataclasses import dataclass

from txl_tf.config.base import NOT_NEGATIVE, POSITIVE, Config, define_field, document_fields

_DEFAULT_RATES = {
    "rms": {"learning_rate": 1e-4, "decay": 0.01},
    "sgd": {"learning_rate": 0.1, "decay": 0.003},
}
DYNAMIC_RULES = tuple(_DEFAULT_RATES)


@document_fields
@dataclass(frozen=True)
class DynamicConfig(Config):
    """How the weights follow the text that is scored (Krause et al. 2018, 2019).

    Letters: g is the gradient of a segment's mean loss, S the root of the mean of its square over
    batches of the training split, W the weight and W_0 its value before the evaluation.

        rms  W += min(decay * S / mean(S), 1) * (W_0 - W) - learning_rate * g / (S + epsilon)
        sgd  W += decay * (W_0 - W) - learning_rate * g

    `rms` is the rule of the paper, in which mean(S) is the mean over the weights (each a tensor) of
    their means.

    A rate that is `None` becomes that of the rule: 1e-4 with rms and 0.1 with sgd for
    `learning_rate`, 0.01 and 0.003 for `decay`.

    Raises:
        UserError: If a value is out of its range, or has no effect on the rule.
    """

    rule: str = define_field("rms", "Rule of the steps.", choices=DYNAMIC_RULES)
    learning_rate: float = define_field(
        None,
        "Learning rate (eta); 0 for an ordinary, static evaluation.",
        kind=float,
        range=NOT_NEGATIVE,
    )
    decay: float = define_field(
        None,
        "Rate at which weights return to those of the run (lambda); 0 for never.",
        kind=float,
        range=NOT_NEGATIVE,
    )
    epsilon: float = define_field(
        3e-4,
        "Constant added to the root mean square of the gradients in rms. It bounds the "
        "steps of weights that the training split hardly uses.",
        range=POSITIVE,
    )
    n_batches: int = define_field(
        200,
        "Number of segments of the training split whose gradients rms averages.",
        lower_bound=1,
    )

    @property
    def has_statistics(self) -> bool:
        """Whether the rule needs the gradients of the training split."""
        return self.rule != "sgd"

    def describe(self) -> str:
        """Returns the settings as text.

        >>> DynamicConfig("sgd", 0.01, 0.0).describe()
        'rule sgd, learning_rate 0.01, decay 0'
        """
        constants = f", epsilon {self.epsilon:g}, {self.n_batches} batches"
        return (
            f"rule {self.rule}, learning_rate {self.learning_rate:g}, decay {self.decay:g}"
            f"{constants if self.has_statistics else ''}"
        )

    def __post_init__(self) -> None:
        rates = _DEFAULT_RATES[self.rule] if self.rule in DYNAMIC_RULES else {}
        for name, rate in rates.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, rate)  # the class is frozen
        self._check_fields()
        if self.rule == "sgd":
            self._check(self.decay <= 1, "`decay` must be at most 1 with sgd")
            for name in ("epsilon", "n_batches"):
                is_default = getattr(self, name) == getattr(type(self), name)
                self._check(is_default, f"`{name}` has no effect with sgd")
