"""Hyper-parameters as frozen, checked dataclasses with the names of the 2019 release."""

import dataclasses
import itertools

from txl_tf.config_base import Config
from txl_tf.stages import make_stages

INITIALIZERS = ("normal", "uniform")
PRECISIONS = ("float32", "bfloat16", "float16")
REDUCE_DTYPES = ("float32", "bfloat16")
OPTIMIZERS = ("adam", "adamw", "lamb")


@dataclasses.dataclass(frozen=True)
class ModelConfig(Config):
    """What fixes the weights of a Transformer-XL, and its dropout and initialisation.

    Args:
        n_token: vocabulary size V.
        n_layer: number of decoder layers L.
        d_model: width of the hidden states D; even, for the sinusoids.
        d_embed: width of the embedding of the first bin E.
        n_head: attention heads N a layer.
        d_head: width H of a head.
        d_inner: width of the feed-forward layer.
        cutoffs: ids at which the second and later bins of the adaptive embedding and softmax
            begin, ascending, without 0 and V; empty for one bin.
        div_val: bin i has embeddings of width E // div_val**i.
        untie_r: each layer has biases u and v of its own (else one pair serves all layers).
        proj_share_all_but_first: the softmax uses the embedding's projections for all bins but
            the first.
        proj_same_dim: bins whose width is D have a projection too (with `div_val` > 1).
        dropout: rate of every dropout but the attention weights'.
        dropatt: rate of the dropout on the attention weights.
        init: "normal" or "uniform".
        init_std: standard deviation of the weights with "normal".
        proj_init_std: the same for the projections of the embedding and the softmax.
        init_range: weights lie in (-init_range, init_range) with "uniform".
        layer_norm_epsilon: added to the variance by LayerNorm; 1e-12 in the 2019 release, 1e-5 in
            Hugging Face transformers.

    Raises:
        UserError: a value is out of its range; the message names it.

    >>> ModelConfig(n_token=27, n_layer=12, d_model=512, d_embed=512, n_head=8, d_head=64,
    ...             d_inner=2048).count_parameters()
    40964635
    """

    n_token: int
    n_layer: int = 6
    d_model: int = 500
    d_embed: int = 500
    n_head: int = 10
    d_head: int = 50
    d_inner: int = 1000
    cutoffs: tuple[int, ...] = ()
    div_val: int = 1
    untie_r: bool = False
    proj_share_all_but_first: bool = False
    proj_same_dim: bool = True
    dropout: float = 0.1
    dropatt: float = 0.1
    init: str = "normal"
    init_std: float = 0.02
    proj_init_std: float = 0.01
    init_range: float = 0.1
    layer_norm_epsilon: float = 1e-12

    def __post_init__(self) -> None:
        if isinstance(self.cutoffs, list):  # as JSON has them
            object.__setattr__(self, "cutoffs", tuple(self.cutoffs))
        self._check_integers(
            1, "n_token", "n_layer", "d_model", "d_embed", "n_head", "d_head", "d_inner", "div_val"
        )
        self._check_booleans("untie_r", "proj_share_all_but_first", "proj_same_dim")
        self._check(self.d_model % 2 == 0, "`d_model` must be divisible by 2", "d_model")
        is_integers = isinstance(self.cutoffs, tuple) and all(
            type(cutoff) is int for cutoff in self.cutoffs
        )
        self._check(
            is_integers and all(low < high for low, high in self.bins),
            "`cutoffs` must be ascending ids between 0 and `n_token`",
            "cutoffs",
            "n_token",
        )
        self._check(
            self.div_val ** len(self.cutoffs) <= self.d_embed,
            "`div_val` must leave every bin an embedding of width 1 or more",
            "div_val",
            "cutoffs",
            "d_embed",
        )
        positive = ("init_std", "proj_init_std", "init_range", "layer_norm_epsilon")
        self._check_reals("dropout", "dropatt", *positive)
        for name in ("dropout", "dropatt"):
            self._check(0 <= getattr(self, name) < 1, f"`{name}` must be in [0, 1)", name)
        for name in positive:
            self._check(getattr(self, name) > 0, f"`{name}` must be positive", name)
        self._check_choice("init", INITIALIZERS)

    @property
    def bins(self) -> tuple[tuple[int, int], ...]:
        """First id and end id of each bin of the adaptive embedding and softmax."""
        bounds = (0, *self.cutoffs, self.n_token)
        return tuple(itertools.pairwise(bounds))

    def bin_width(self, index: int) -> int:
        """Returns the embedding width E_i of a bin."""
        return self.d_embed // self.div_val**index

    def has_embedding_projection(self, index: int) -> bool:
        """Tells whether bin `index` of the embedding has a projection [E_i, D].

        With `div_val` = 1 there is one table and at most one projection: that of bin 0.
        """
        if self.div_val == 1:
            return index == 0 and self.d_embed != self.d_model
        return self.bin_width(index) != self.d_model or self.proj_same_dim

    def has_softmax_projection(self, index: int) -> bool:
        """Tells whether bin `index` of the softmax has a projection of its own [E_i, D]."""
        if not self.cutoffs or (self.proj_share_all_but_first and index > 0):
            return False  # the embedding's serves
        needs_none = self.div_val == 1 or not self.proj_same_dim
        return not (needs_none and self.bin_width(index) == self.d_model)

    def count_parameters(self) -> int:
        """Returns the number of trainable parameters, without making them."""
        n_bins = len(self.bins)
        d_heads = self.n_head * self.d_head
        attention = 5 * self.d_model * d_heads + 2 * self.d_model  # q k v r o, LayerNorm
        feed_forward = 2 * self.d_model * self.d_inner + self.d_inner + 3 * self.d_model
        biases_u_v = 2 * d_heads * (self.n_layer if self.untie_r else 1)
        tables = sum(
            (high - low) * self.bin_width(index) for index, (low, high) in enumerate(self.bins)
        )
        projections = sum(
            self.bin_width(index) * self.d_model * has_projection(index)
            for index in range(n_bins)
            for has_projection in (self.has_embedding_projection, self.has_softmax_projection)
        )
        clusters = (n_bins - 1) * (self.d_embed + 1)
        layers = self.n_layer * (attention + feed_forward)
        return layers + biases_u_v + tables + projections + clusters + self.n_token


@dataclasses.dataclass(frozen=True)
class AttentionSpan(Config):
    """How far a model looks back. No weight depends on it: train with one, evaluate with another.

    Args:
        mem_len: hidden states M kept of the text before the segment; 0 for no memory.
        same_length: every query sees M + 1 keys (else all M of the memory and those of the
            segment up to its own).
        clamp_len: distances beyond it count as equal to it; -1 for no limit.
        counts_self: with `same_length`, a query's own key is one of the M that it sees, as in
            Hugging Face transformers; else there are M + 1.

    Raises:
        UserError: a value is out of its range, or a query would see no key.

    >>> AttentionSpan(mem_len=2100, same_length=True, clamp_len=820).to_json()
    {'mem_len': 2100, 'same_length': True, 'clamp_len': 820, 'counts_self': False}
    """

    mem_len: int
    same_length: bool = False
    clamp_len: int = -1
    counts_self: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._check_integers(0, "mem_len")
        self._check_booleans("same_length", "counts_self")
        self._check_integers(-1, "clamp_len")
        self._check(self.clamp_len != 0, "`clamp_len` must be -1 (off) or positive", "clamp_len")
        self._check(
            self.mem_len > 0 or not (self.same_length and self.counts_self),
            "`mem_len` must be positive with `same_length` and `counts_self`",
            "mem_len",
            "same_length",
            "counts_self",
        )


@dataclasses.dataclass(frozen=True)
class _ReadingConfig(Config):
    """How a text is read: segment and span."""

    tgt_len: int = 70
    mem_len: int = 70
    same_length: bool = False
    clamp_len: int = -1
    # By keyword only: it then moves no field of the classes below.
    reset_at_documents: bool = dataclasses.field(default=False, kw_only=True)
    counts_self: bool = dataclasses.field(default=False, kw_only=True)

    @property
    def span(self) -> AttentionSpan:
        """How far the model looks back."""
        return AttentionSpan(
            self.mem_len, self.same_length, self.clamp_len, counts_self=self.counts_self
        )

    def _check_reading(self) -> None:
        self._check_integers(1, "tgt_len")
        self._check_booleans("reset_at_documents")
        self.span  # noqa: B018  checks the rest


@dataclasses.dataclass(frozen=True)
class TrainConfig(_ReadingConfig):
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
        self._check_integers(0, "warmup_steps", "seed")
        self._check_integers(1, "train_steps", "train_batch_size", "accumulate_steps")
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


@dataclasses.dataclass(frozen=True)
class EvalConfig(_ReadingConfig):
    """How a model is evaluated.

    Args:
        eval_batch_size: lanes B that the split is cut into.
        tgt_len: segment length T.
        mem_len: memory length M; 0 for no memory.
        same_length: every query sees M + 1 keys; the paper's results use it.
        clamp_len: distances beyond it count as equal to it; -1 for no limit.
        counts_self: with `same_length`, a query's own key is one of the M that it sees, as in
            Hugging Face transformers; else there are M + 1.
        reset_at_documents: a document sees nothing of the one before it: the memory is emptied
            where it begins. The paper's results do without.

    Raises:
        UserError: a value is out of its range.
    """

    eval_batch_size: int = 60

    def __post_init__(self) -> None:
        self._check_integers(1, "eval_batch_size")
        self._check_reading()
