"""The hyper-parameters of a training run."""

from dataclasses import dataclass, field

from txl_tf.config.base import describe, document_fields
from txl_tf.config.reading import MAX_LANES, ReadingConfig
from txl_tf.config.stages import make_stages

PRECISIONS = ("float32", "bfloat16", "float16")
REDUCE_DTYPES = ("float32", "bfloat16")
OPTIMIZERS = ("adam", "adamw", "lamb")
MAX_SEED = 2**32 - 1  # Keras keeps the seeds of its generators in uint32


@document_fields
@dataclass(frozen=True)
class TrainConfig(ReadingConfig):
    """The settings that the numbers of a run depend on, beside the model and the data.

    Raises:
        UserError: a value is out of its range.
    """

    learning_rate: float = field(
        default=2.5e-4, metadata=describe("Peak of the learning rate schedule.")
    )
    warmup_steps: int = field(
        default=0, metadata=describe("Steps of linear warm-up from 0.", lower_bound=0)
    )
    train_steps: int = field(
        default=100_000,
        metadata=describe(
            "Steps to train in all; the cosine schedule ends with the last.", lower_bound=1
        ),
    )
    min_lr_ratio: float = field(
        default=0.004, metadata=describe("Last learning rate as a fraction of the peak.")
    )
    clip: float = field(
        default=0.25, metadata=describe("Global norm to which gradients are clipped.")
    )
    train_batch_size: int = field(
        default=60,
        metadata=describe(
            "Lanes B over all replicas: texts that are read side by side.",
            lower_bound=1,
            upper_bound=MAX_LANES,
        ),
    )
    seed: int = field(
        default=0,
        metadata=describe(
            "Seed of the initial weights, the dropout and the offsets of the epochs.",
            lower_bound=0,
            upper_bound=MAX_SEED,
        ),
    )
    accumulate_steps: int = field(
        default=1,
        metadata=describe(
            "Parts into which the lanes of a replica are divided, to be computed one after the "
            "other (gradient accumulation): less device memory, and equal steps but for dropout.",
            lower_bound=1,
        ),
    )
    precision: str = field(
        default="float32",
        metadata=describe(
            "Type of hidden states, memory and matrix products; float16 scales the loss.",
            choices=PRECISIONS,
        ),
    )
    reduce_dtype: str = field(
        default="float32",
        metadata=describe(
            "Type of the gradients while replicas average them; bfloat16 halves the traffic.",
            choices=REDUCE_DTYPES,
        ),
    )
    optimizer: str = field(
        default="adam",
        metadata=describe("Optimizer; lamb is for large batches.", choices=OPTIMIZERS),
    )
    weight_decay: float = field(
        default=0.0,
        metadata=describe(
            "Weight decay of adamw and lamb, times the learning rate; applies to matrices only."
        ),
    )
    ema: float = field(
        default=0.0,
        metadata=describe(
            "Decay per step of an exponential moving average of the weights, which evaluations "
            "then use; 0 for none."
        ),
    )
    remat: bool = field(
        default=False,
        metadata=describe(
            "Gradient checkpointing: compute the inside of each layer again in the backward pass "
            "instead of keeping it. Less device memory, more time, equal steps."
        ),
    )
    tgt_len_schedule: tuple[tuple[int, int], ...] = field(
        default=(),
        metadata=describe(
            "Other segment lengths to begin with, as pairs of a step and the length up to it "
            "(2000:32,6000:64 on the command line); empty for one length throughout."
        ),
    )

    def __post_init__(self) -> None:
        if isinstance(self.tgt_len_schedule, list):  # as JSON has it
            pairs = (
                tuple(pair) if isinstance(pair, list) else pair for pair in self.tgt_len_schedule
            )
            object.__setattr__(self, "tgt_len_schedule", tuple(pairs))
        self._check_reading()
        self._check_optimizer()
        for name in ("learning_rate", "clip"):
            self._check(getattr(self, name) > 0, f"`{name}` must be positive", name)
        self._check(0 <= self.min_lr_ratio <= 1, "`min_lr_ratio` must be in [0, 1]", "min_lr_ratio")
        self._check(
            self.warmup_steps <= self.train_steps,
            "`warmup_steps` must not exceed `train_steps`",
            "warmup_steps",
            "train_steps",
        )
        *_, last = make_stages(self.tgt_len_schedule, self.tgt_len)
        self._check(
            last.first_step < self.train_steps,
            "`tgt_len_schedule` must change the length at steps below `train_steps`",
            "tgt_len_schedule",
            "train_steps",
        )

    def _check_optimizer(self) -> None:
        self._check(self.weight_decay >= 0, "`weight_decay` must not be negative", "weight_decay")
        self._check(
            self.optimizer != "adam" or not self.weight_decay,
            "`weight_decay` must be 0 with adam, which has none: adamw and lamb do",
            "weight_decay",
            "optimizer",
        )
        self._check(0 <= self.ema < 1, "`ema` must be in [0, 1)", "ema")
