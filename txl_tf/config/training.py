"""The configs of a training run: what affects its results, and when it logs, saves and stops."""

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

from txl_tf.config.base import (
    NOT_NEGATIVE,
    POSITIVE,
    RATE,
    SHARE,
    Config,
    define_field,
    document_fields,
)
from txl_tf.config.span import MAX_LANES, ReadingConfig
from txl_tf.config.stages import find_longest, find_shortest, find_stage, make_stages

PRECISIONS = ("float32", "bfloat16", "float16")
REDUCE_DTYPES = ("float32", "bfloat16")
SCHEDULES = ("cosine", "linear", "wsd")
JIT_MODES = ("auto", "whole", "chains", "none", "kernels")
JIT_HELP = (
    "How much XLA compiles: whole, the entire model; chains, only the element-wise operations "
    "between matrix products; none, nothing; kernels, for TPU v5 and later, the entire model, with "
    "attention that stays on the chip. auto means chains for 16-bit types on CPUs, otherwise whole."
)
MAX_SEED = 2**32 - 1  # Keras stores the seeds of its generators as uint32


class OptimizerFacts(NamedTuple):
    """The properties of an optimizer."""

    place: str  # module and name of its class
    text: str  # description for `--help`
    has_decay: bool = True  # whether it supports weight decay
    n_moments: int = 2  # per weight
    n_matrix_moments: int | None = None  # for matrices of the layers, if different
    works_in_fit: bool = False  # whether `CausalLM.make_optimizer` supports it

    def count_moments(self, *, is_matrix: bool) -> int:
        """Returns the number of moments per weight, for matrices of the layers or all others."""
        return (self.n_matrix_moments or self.n_moments) if is_matrix else self.n_moments


_RULES = "txl_tf.training.update_rules"
OPTIMIZERS = {
    "adam": OptimizerFacts(
        f"{_RULES}:Adam", "as in the 2019 release", has_decay=False, works_in_fit=True
    ),
    "adamw": OptimizerFacts(f"{_RULES}:Adam", "adam with weight decay", works_in_fit=True),
    "lamb": OptimizerFacts(f"{_RULES}:Lamb", "for large batches"),
    "muon": OptimizerFacts(
        f"{_RULES}:Muon",
        "orthogonalizes the updates of the layers' matrices, and uses adamw for the rest",
        n_matrix_moments=1,
        works_in_fit=True,
    ),
}
_DECAYING = [name for name, facts in OPTIMIZERS.items() if facts.has_decay]


@document_fields
@dataclass(frozen=True)
class TrainConfig(ReadingConfig):
    """Training settings that affect the results of a run, besides the model and the data.

    Raises:
        UserError: If a value is out of range.
    """

    learning_rate: float = define_field(
        2.5e-4, "Peak of the learning rate schedule.", range=POSITIVE
    )
    warmup_steps: int = define_field(0, "Steps of linear warm-up from 0.", lower_bound=0)
    train_steps: int = define_field(
        100_000,
        "Total number of training steps; the schedule ends with the last one.",
        lower_bound=1,
    )
    min_lr_ratio: float = define_field(
        0.004,
        "Final learning rate as a fraction of the peak.",
        range=SHARE,
        rare=True,
    )
    clip: float = define_field(0.25, "Global norm to which gradients are clipped.", range=POSITIVE)
    train_batch_size: int = define_field(
        60,
        "Number of lanes B, the stretches of text read in parallel, over all replicas.",
        lower_bound=1,
        upper_bound=MAX_LANES,
    )
    seed: int = define_field(
        0,
        "Seed of the initial weights, the dropout and the epoch offsets.",
        lower_bound=0,
        upper_bound=MAX_SEED,
    )
    accumulate_steps: int = define_field(
        1,
        "Gradient accumulation: number of parts into which a replica divides its lanes, computed "
        "one after another. Saves device memory; results differ only in dropout.",
        lower_bound=1,
    )
    precision: str = define_field(
        "float32",
        "Dtype of hidden states, memory and matrix products; float16 uses loss scaling.",
        choices=PRECISIONS,
    )
    reduce_dtype: str = define_field(
        "float32",
        "Dtype of the gradients while replicas average them; bfloat16 halves the traffic.",
        choices=REDUCE_DTYPES,
        rare=True,
    )
    optimizer: str = define_field(
        "adam",
        "Optimizer: "
        + "; ".join(f"{name}, {facts.text}" for name, facts in OPTIMIZERS.items())
        + ".",
        choices=tuple(OPTIMIZERS),
    )
    weight_decay: float = define_field(
        0.0,
        f"Weight decay of {', '.join(_DECAYING)}, times the learning rate; only for matrices.",
        range=NOT_NEGATIVE,
    )
    ema: float = define_field(
        0.0,
        "Decay per step of an exponential moving average of the weights, which evaluations use; 0 "
        "for none.",
        range=RATE,
    )
    remat: bool = define_field(
        False,
        "Gradient checkpointing: recompute each layer in the backward pass instead of keeping "
        "its activations. Saves device memory but takes more time; results are the same.",
    )
    half_loss: bool = define_field(
        False,
        "Compute the loss only on the last half of each segment, as in table 6 of the paper. "
        "Evaluate such a model with a stride of half a segment.",
        rare=True,
    )
    ar: float = define_field(
        0.0,
        "Activation regularization: coefficient of the mean square of the last hidden states, "
        "before dropout, which is added to the minimized loss, not to the reported one.",
        range=NOT_NEGATIVE,
        rare=True,
    )
    tar: float = define_field(
        0.0,
        "Temporal activation regularization: like ar, for the differences between the last hidden "
        "states of consecutive positions.",
        range=NOT_NEGATIVE,
        rare=True,
    )
    l2: float = define_field(
        0.0,
        "L2 regularization: this coefficient times a weight is added to its clipped gradient. "
        "Unlike weight_decay, it applies to all weights, and Adam rescales it like the gradient.",
        range=NOT_NEGATIVE,
        rare=True,
    )
    embed_lr_ratio: float = define_field(
        1.0,
        "Learning rate of the embedding tables as a fraction of that of the other weights.",
        range=POSITIVE,
        rare=True,
    )
    extra_len: int = define_field(
        0,
        "Extra context: number of tokens before each segment that are read again with it, without "
        "a loss. Unlike a memory, they receive gradients. Needs mem_len=0; evaluate such a model "
        "with --stride.",
        lower_bound=0,
        rare=True,
    )
    tgt_len_schedule: tuple[tuple[int, int], ...] = define_field(
        (),
        "Segment lengths early in training, as pairs of a step and the length before it "
        "(2000:32,6000:64 on the command line); empty for a constant length.",
        rare=True,
    )
    tgt_len_std: float = define_field(
        0.0,
        "Standard deviation of random segment lengths around tgt_len, clipped at three standard "
        "deviations; 0 for a constant length. The learning rate of a step is multiplied by length "
        "/ tgt_len. Needs mem_len=0.",
        range=NOT_NEGATIVE,
        rare=True,
    )
    half_len_rate: float = define_field(
        0.0,
        "Share of the segments whose lengths are drawn around half of tgt_len.",
        range=RATE,
        rare=True,
    )
    jit: str = define_field(
        "auto", f"{JIT_HELP} A resumed run keeps this choice.", choices=JIT_MODES
    )
    schedule: str = define_field(
        "cosine",
        "Learning rate after the warm-up: cosine, half a cosine; linear, a linear decay; wsd "
        "(warm-up, stable, decay), the peak, then a linear decay in the last decay_steps.",
        choices=SCHEDULES,
    )
    decay_steps: int = define_field(
        0, "Number of decay steps at the end of a wsd schedule.", lower_bound=0, rare=True
    )
    average_from: int = define_field(
        0,
        "Keep the uniform mean of the weights of all steps after this one, which evaluations use; "
        "0 for none.",
        lower_bound=0,
        rare=True,
    )

    @property
    def has_random_lengths(self) -> bool:
        """Whether the lengths of the segments are random."""
        return self.tgt_len_std > 0 or self.half_len_rate > 0

    @property
    def window_len(self) -> int:
        """The number of tokens that a step reads per lane: extra context and longest segment."""
        longest = max(self.tgt_len, *(length for _, length in self.tgt_len_schedule), 0)
        return self.extra_len + find_longest(longest, self.tgt_len_std)

    def find_loss_start(self, window_len: int) -> int:
        """Returns the first of `window_len` positions that has a loss."""
        return window_len - self._count_scored(window_len - self.extra_len)

    def _count_scored(self, tgt_len: int) -> int:
        return tgt_len - (tgt_len // 2 if self.half_loss else 0)

    def count_tokens(self, step: int) -> int:
        """Returns the number of tokens that all lanes read before a step.

        It is the expected number if segment lengths are random.
        """
        stage = find_stage(make_stages(self.tgt_len_schedule, self.tgt_len), step)
        n_tokens = self.train_batch_size * stage.count_tokens(step)
        mean_length_share = 1 - self.half_len_rate / 2  # some segments are half as long
        return round(n_tokens * mean_length_share)

    @property
    def has_average(self) -> bool:
        """Whether the optimizer keeps an average of the weights, an EMA or a uniform mean."""
        return self.ema > 0 or self.average_from > 0

    def __post_init__(self) -> None:
        if isinstance(self.tgt_len_schedule, list):  # from JSON
            pairs = (
                tuple(pair) if isinstance(pair, list) else pair for pair in self.tgt_len_schedule
            )
            object.__setattr__(self, "tgt_len_schedule", tuple(pairs))
        self._check_reading()
        self._check_optimizer()
        self._check_schedule()
        self._check(
            not (self.extra_len and self.mem_len),
            "`mem_len` must be 0 with `extra_len`, whose states are computed again instead of kept",
        )
        self._check_random_lengths()
        stages = make_stages(self.tgt_len_schedule, self.tgt_len)
        self._check(
            stages[-1].first_step < self.train_steps,
            "`tgt_len_schedule` must change the length at steps below `train_steps`",
        )
        self._check(
            not self.half_loss or min(stage.tgt_len for stage in stages) > 1,
            "`tgt_len` must be at least 2 with `half_loss`",
            "tgt_len",
            "tgt_len_schedule",
        )
        self._check(
            not self.tar or min(self._count_scored(stage.tgt_len) for stage in stages) > 1,
            "`tgt_len` must give two positions a loss with `tar`, which takes their difference",
            *("tgt_len", "tgt_len_schedule", "half_loss"),
        )

    def _check_random_lengths(self) -> None:
        if not self.has_random_lengths:
            return
        names = ("tgt_len_std", "half_len_rate")
        nothing = {"mem_len": "0", "tgt_len_schedule": "empty", "half_loss": "false"}
        for name, value in nothing.items():
            rule = f"`{name}` must be {value} with random segment lengths"
            self._check(not getattr(self, name), rule, name, *names)
        shortest = find_shortest(self.tgt_len, self.tgt_len_std, self.half_len_rate)
        self._check(
            shortest >= 2,  # TAR needs two positions
            "`tgt_len` must leave every random segment two tokens, three standard deviations below "
            "its mean",
            *("tgt_len", *names),
        )

    def _check_optimizer(self) -> None:
        self._check(
            OPTIMIZERS[self.optimizer].has_decay or not self.weight_decay,
            f"`weight_decay` must be 0 with {self.optimizer}; {', '.join(_DECAYING)} support it",
            "weight_decay",
            "optimizer",
        )
        self._check(
            not (self.ema and self.average_from),
            "`ema` and `average_from` cannot be used together: evaluations use one average",
        )
        self._check(
            self.average_from < self.train_steps, "`average_from` must be less than `train_steps`"
        )

    def _check_schedule(self) -> None:
        self._check(
            self.warmup_steps <= self.train_steps, "`train_steps` must be at least `warmup_steps`"
        )
        self._check(
            (self.decay_steps > 0) == (self.schedule == "wsd"),
            "`decay_steps` must be positive with `schedule` wsd, and 0 otherwise",
        )
        self._check(
            self.warmup_steps + self.decay_steps <= self.train_steps,
            "`warmup_steps` and `decay_steps` together must not exceed `train_steps`",
        )


@document_fields
@dataclass(frozen=True)
class RunOptions(Config):
    """Options of a run: when it logs, saves, evaluates and stops.

    A run remembers these settings, except for `max_hours` and `stop_step`.

    Raises:
        UserError: If a value is out of range.
    """

    iterations: int = define_field(
        500, "Steps between log lines, and at most in one call to the device.", lower_bound=1
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
        0, "Steps between evaluations during training; 0 for none.", lower_bound=0
    )
    sample_tokens: int = define_field(
        100,
        "Number of tokens to generate at each evaluation during training, for TensorBoard; 0 for "
        "none. Ignored on TPUs.",
        lower_bound=0,
        rare=True,
    )
    patience: int = define_field(
        0,
        "Early stopping: stop training after this many evaluations without a new best score; 0 to "
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
        False, "Use only operations whose results are bitwise reproducible.", rare=True
    )
    max_bad_steps: int = define_field(
        10,
        "Largest number of consecutive steps with infinite or NaN gradients, which are skipped.",
        lower_bound=0,
        rare=True,
    )
    max_hours: float = define_field(
        0.0,
        "Hours after which the run saves and stops; it continues when started again. 0 for no "
        "limit.",
        range=NOT_NEGATIVE,
    )
    stop_step: int = define_field(
        0,
        "Step after which the run saves and stops, although its schedule extends to train_steps; "
        "it continues when started again. 0 for none.",
        lower_bound=0,
    )

    def __post_init__(self) -> None:
        self._check_fields()
        self._check(self.eval_every > 0 or not self.patience, "`patience` needs `eval_every`")

    def without_limits(self) -> "RunOptions":
        """Returns the settings that a run remembers: all but the limits of a single call."""
        return dataclasses.replace(self, max_hours=0.0, stop_step=0)
