"""The hyper-parameters of a training run."""

import dataclasses

from txl_tf.config.reading import MAX_LANES, ReadingConfig
from txl_tf.config.stages import make_stages

PRECISIONS = ("float32", "bfloat16", "float16")
REDUCE_DTYPES = ("float32", "bfloat16")
OPTIMIZERS = ("adam", "adamw", "lamb")
MAX_SEED = 2**32 - 1  # Keras keeps the seeds of its generators in uint32


@dataclasses.dataclass(frozen=True)
class TrainConfig(ReadingConfig):
    """What the numbers of a training run depend on, beside the model and the data.

    Args:
        learning_rate: peak of the schedule.
        warmup_steps: steps of linear warm-up from 0.
        train_steps: all steps; the cosine ends there.
        min_lr_ratio: the last learning rate over the peak.
        clip: the largest global norm of the gradients.
        optimizer: adam, adamw or lamb; LAMB is for large batches.
        weight_decay: of adamw and lamb, times the learning rate; on matrices alone.
        train_batch_size: lanes B over all replicas.
        accumulate_steps: parts that a replica's lanes are divided into, computed one after the
            other, to fit the device; the same steps bar dropout.
        precision: of hidden states, memory and products: float32, bfloat16, or float16 with a
            scaled loss.
        reduce_dtype: of the gradients while replicas average them: float32, or bfloat16 for half
            the traffic.
        remat: compute the inside of each layer anew in the backward pass instead of keeping it:
            less memory of the device, more time, the same steps.
        tgt_len: segment length T.
        tgt_len_schedule: other lengths to begin with, as pairs of a step and the length up to it
            (2000:32,6000:64 on the command line); empty for one length throughout.
        mem_len: memory length M; 0 for no memory.
        same_length: every query sees M + 1 keys.
        clamp_len: distances beyond it count as equal to it; -1 for no limit.
        counts_self: with `same_length`, a query's own key is one of the M that it sees, as in
            Hugging Face transformers; else there are M + 1.
        reset_at_documents: a document sees nothing of the one before it: the memory is emptied
            where it begins.
        ema: decay a step of a moving average of the weights, which evaluations then use; 0 for
            none.
        seed: of the initial weights, the dropout and the epochs' offsets.

    Raises:
        UserError: a value is out of its range.
    """

    learning_rate: float = 2.5e-4
    warmup_steps: int = 0
    train_steps: int = 100_000
    min_lr_ratio: float = 0.004
    clip: float = 0.25
    train_batch_size: int = 60
    seed: int = 0
    accumulate_steps: int = 1
    precision: str = "float32"
    reduce_dtype: str = "float32"
    optimizer: str = "adam"
    weight_decay: float = 0.0
    ema: float = 0.0
    remat: bool = False
    tgt_len_schedule: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.tgt_len_schedule, list):  # as JSON has it
            pairs = (
                tuple(pair) if isinstance(pair, list) else pair for pair in self.tgt_len_schedule
            )
            object.__setattr__(self, "tgt_len_schedule", tuple(pairs))
        self._check_reals("learning_rate", "min_lr_ratio", "clip")
        self._check_optimizer()
        for name in ("learning_rate", "clip"):
            self._check(getattr(self, name) > 0, f"`{name}` must be positive", name)
        self._check(0 <= self.min_lr_ratio <= 1, "`min_lr_ratio` must be in [0, 1]", "min_lr_ratio")
        self._check_integers(0, "warmup_steps")
        self._check_integers(0, "seed", maximum=MAX_SEED)
        self._check_integers(1, "train_steps", "accumulate_steps")
        self._check_integers(1, "train_batch_size", maximum=MAX_LANES)
        self._check_choice("precision", PRECISIONS)
        self._check_choice("reduce_dtype", REDUCE_DTYPES)
        self._check_booleans("remat")
        self._check(
            self.warmup_steps <= self.train_steps,
            "`warmup_steps` must not exceed `train_steps`",
            "warmup_steps",
            "train_steps",
        )
        self._check_reading()
        *_, last = make_stages(self.tgt_len_schedule, self.tgt_len)
        self._check(
            last.first_step < self.train_steps,
            "`tgt_len_schedule` must change the length at steps below `train_steps`",
            "tgt_len_schedule",
            "train_steps",
        )

    def _check_optimizer(self) -> None:
        self._check_reals("weight_decay", "ema")
        self._check_choice("optimizer", OPTIMIZERS)
        self._check(self.weight_decay >= 0, "`weight_decay` must not be negative", "weight_decay")
        self._check(
            self.optimizer != "adam" or not self.weight_decay,
            "`weight_decay` must be 0 with adam, which has none: adamw and lamb do",
            "weight_decay",
            "optimizer",
        )
        self._check(0 <= self.ema < 1, "`ema` must be in [0, 1)", "ema")
