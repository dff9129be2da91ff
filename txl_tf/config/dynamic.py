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
    """How the weights adapt to the text that is scored (Krause et al. 2018, 2019).

    g is the gradient of a segment's mean loss, S the root mean square of g over batches of the
    training split, W a weight and W_0 its value before the evaluation.

        rms  W += min(decay * S / mean(S), 1) * (W_0 - W) - learning_rate * g / (S + epsilon)
        sgd  W += decay * (W_0 - W) - learning_rate * g

    `rms` is the paper's rule, in which mean(S) is the average over all weight tensors of their mean
    S.

    A rate of `None` becomes the default of the rule: for `learning_rate` 1e-4 with rms and 0.1 with
    sgd, for `decay` 0.01 and 0.003.

    Raises:
        UserError: If a value is out of range, or has no effect with the rule.
    """

    rule: str = define_field("rms", "Update rule.", choices=DYNAMIC_RULES)
    learning_rate: float = define_field(
        None,
        "Learning rate (eta); 0 for an ordinary, static evaluation.",
        kind=float,
        range=NOT_NEGATIVE,
    )
    decay: float = define_field(
        None,
        "Rate at which weights decay toward those of the run (lambda); 0 for no decay.",
        kind=float,
        range=NOT_NEGATIVE,
    )
    epsilon: float = define_field(
        3e-4,
        "Constant added to the root mean square of the gradients in rms. It bounds the steps of "
        "weights that the training split rarely uses.",
        range=POSITIVE,
    )
    n_batches: int = define_field(
        200,
        "Number of segments of the training split over which rms averages squared gradients.",
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
