"""The config of a model. Import it, like all other configs, from `txl_tf.config`."""

import dataclasses
import itertools
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

from txl_tf.config.base import POSITIVE, RATE, Config, define_field, describe, document_fields
from txl_tf.config.encodings import ENCODINGS
from txl_tf.config.parameters import count_by_part
from txl_tf.errors import UserError

if TYPE_CHECKING:
    from txl_tf.config.span import AttentionSpan
    from txl_tf.config.training import TrainConfig

INITIALIZERS = ("normal", "uniform")
TRANSFORMER_XL, LSTM, QRNN = "transformer_xl", "lstm", "qrnn"
MODEL_TYPES = (TRANSFORMER_XL, LSTM, QRNN)
# Fields that have no effect in a recurrent model.
_NOT_OF_RECURRENT = (
    *("n_head", "d_head", "d_inner", "untie_r", "dropatt", "layer_norm_epsilon"),
    *("encoding", "n_positions", "qkv_dropout"),
)
# Far beyond any real model: a larger value is a mistake, and would run out of time or memory.
MAX_LAYERS = 1000
MAX_WIDTH = 2**20
# Fields that affect only training, not the computation with trained weights.
TRAINED_WITH = (
    *("dropout", "dropatt", "init", "init_std", "proj_init_std", "init_range"),
    *("word_dropout", "input_dropout", "qkv_dropout", "output_dropout", "locked_dropout"),
)
# Fields that do not affect the shapes of the weights.
SHAPELESS = (*TRAINED_WITH, "layer_norm_epsilon")
_RECURRENT_SPAN = {"mem_len": 0, "clamp_len": -1, "counts_self": False}


@document_fields
@dataclass(frozen=True)
class ModelConfig(Config):
    """Settings of a model that define its weights, dropout and initialization.

    Raises:
        UserError: If a value is out of range, or has no effect with `model_type`. The message names
            the field.

    >>> ModelConfig(n_token=27, n_layer=12, d_model=512, d_embed=512, n_head=8, d_head=64,
    ...             d_inner=2048).count_parameters()
    40964635
    """

    n_token: int = field(metadata=describe("Vocabulary size V.", lower_bound=1))
    n_layer: int = define_field(
        6, "Number of decoder layers L.", lower_bound=1, upper_bound=MAX_LAYERS
    )
    d_model: int = define_field(
        500,
        "Width D of the hidden states. Must be even: half of the sinusoids are cosines.",
        lower_bound=1,
        upper_bound=MAX_WIDTH,
    )
    d_embed: int = define_field(
        500, "Width E of the embeddings in the first bin.", lower_bound=1, upper_bound=MAX_WIDTH
    )
    n_head: int = define_field(
        10, "Number of attention heads N per layer.", lower_bound=1, upper_bound=MAX_WIDTH
    )
    d_head: int = define_field(50, "Width H of a head.", lower_bound=1, upper_bound=MAX_WIDTH)
    d_inner: int = define_field(
        1000, "Width of the feed-forward layer.", lower_bound=1, upper_bound=MAX_WIDTH
    )
    cutoffs: tuple[int, ...] = define_field(
        (),
        "First ids of the second and later bins of the adaptive embedding and softmax, "
        "in ascending order, excluding 0 and V; empty for a single bin.",
    )
    div_val: int = define_field(1, "Bin i has embeddings of width E // div_val**i.", lower_bound=1)
    untie_r: bool = define_field(
        False,
        "Give each layer its own attention biases u and v; otherwise all layers share one pair.",
        rare=True,
    )
    encoding: str = define_field(
        "relative",
        "Position encoding; all but the first are for ablations (table 6 of the paper): "
        + "; ".join(f"{name}, {facts.text}" for name, facts in ENCODINGS.items())
        + ".",
        choices=tuple(ENCODINGS),
        rare=True,
    )
    n_positions: int = define_field(
        0,
        "Number of rows K of the learned position tables. shaw and shaw_biased need at least M + "
        "T, as in training, and larger distances use the last row; learned needs at least T; the "
        "other encodings need 0.",
        lower_bound=0,
        upper_bound=MAX_WIDTH,
        rare=True,
    )
    proj_share_all_but_first: bool = define_field(
        False,
        "Share the projections of the embedding with the softmax, for all bins but the first.",
        rare=True,
    )
    proj_same_dim: bool = define_field(
        True, "Also project bins of width D; has an effect only with div_val > 1.", rare=True
    )
    dropout: float = define_field(
        0.1,
        "Dropout rate wherever no field below sets a different one.",
        range=RATE,
    )
    dropatt: float = define_field(0.1, "Dropout rate of the attention weights.", range=RATE)
    init: str = define_field(
        "normal", "Distribution of the initial weights.", choices=INITIALIZERS, rare=True
    )
    init_std: float = define_field(
        0.02,
        "Standard deviation of the initial weights with init=normal.",
        range=POSITIVE,
        rare=True,
    )
    proj_init_std: float = define_field(
        0.01,
        "Standard deviation of the initial projections of embedding and softmax with init=normal.",
        range=POSITIVE,
        rare=True,
    )
    init_range: float = define_field(
        0.1,
        "With init=uniform, initial weights lie in (-init_range, init_range).",
        range=POSITIVE,
        rare=True,
    )
    layer_norm_epsilon: float = define_field(
        1e-12,
        "Constant added to the variance in LayerNorm: 1e-12 in the 2019 release, 1e-5 in Hugging "
        "Face transformers.",
        range=POSITIVE,
        rare=True,
    )
    model_type: str = define_field(
        TRANSFORMER_XL,
        "Architecture. lstm and qrnn are baselines: n_layer recurrent layers of width d_model, "
        "with the same embedding and softmax; they need mem_len=0, and accept no attention "
        "settings.",
        choices=MODEL_TYPES,
    )
    word_dropout: float = define_field(
        0.0,
        "Word dropout rate: drops whole rows of the embedding tables, with one mask for all lanes "
        "that are computed together. The softmax keeps all rows.",
        range=RATE,
        rare=True,
    )
    input_dropout: float = define_field(
        -1.0,
        "Dropout rate of the embeddings and positions; -1 for the value of dropout.",
        rare=True,
    )
    qkv_dropout: float = define_field(
        0.0,
        "Dropout rate of queries, keys and values, including those of the memory.",
        range=RATE,
        rare=True,
    )
    output_dropout: float = define_field(
        -1.0,
        "Dropout rate of the last hidden states, before the softmax; -1 for the value of dropout.",
        rare=True,
    )
    locked_dropout: bool = define_field(
        False,
        "Drop the same entries at all positions of a row (locked or variational dropout), except "
        "for attention weights. Masks differ between rows, layers and steps.",
        rare=True,
    )

    def __post_init__(self) -> None:
        has_integers = isinstance(self.cutoffs, list | tuple) and all(
            isinstance(cutoff, Integral) and not isinstance(cutoff, bool) for cutoff in self.cutoffs
        )
        if has_integers:  # JSON holds lists, and no integers of NumPy
            object.__setattr__(self, "cutoffs", tuple(map(int, self.cutoffs)))
        self._check_fields()
        self._check(self.d_model % 2 == 0, "`d_model` must be divisible by 2")
        self._check(
            has_integers and all(low < high for low, high in self.bins),
            "`cutoffs` must be ascending ids between 0 and `n_token`",
        )
        self._check(
            self.div_val ** len(self.cutoffs) <= self.d_embed,
            "`div_val` must leave every bin an embedding of width 1 or more",
            "div_val",
            "cutoffs",
            "d_embed",
        )
        has_table = ENCODINGS[self.encoding].has_table
        rule = f"`n_positions` must be {'positive' if has_table else '0'}"
        fits = has_table == (self.n_positions > 0)
        self._check(fits, f"{rule} with this encoding", "n_positions", "encoding")
        self._check(
            self.encoding == "relative" or not self.untie_r,
            "`untie_r` is for encoding=relative; in shaw_biased each layer has its own bias",
            "untie_r",
            "encoding",
        )
        self._check_dropout()
        if self.is_recurrent:
            for name in _NOT_OF_RECURRENT:
                is_default = getattr(self, name) == getattr(type(self), name)
                rule = f"`{name}` has no effect with model_type={self.model_type}"
                self._check(is_default, rule)

    def _check_dropout(self) -> None:
        for name in ("input_dropout", "output_dropout"):
            is_rate = 0 <= getattr(self, name) < 1 or getattr(self, name) == -1
            self._check(is_rate, f"`{name}` must be in [0, 1), or -1 for that of `dropout`", name)
        has_effect = any((self.dropout, self.input_rate, self.qkv_dropout, self.output_rate))
        self._check(
            has_effect or not self.locked_dropout,
            "`locked_dropout` needs a rate above 0: that of `dropout`, `input_dropout`, "
            "`qkv_dropout` or `output_dropout`",
            *("locked_dropout", "dropout"),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a dict for `json.dump`, without those that have no effect."""
        left_out = _NOT_OF_RECURRENT if self.is_recurrent else ()
        return {name: value for name, value in super().to_json().items() if name not in left_out}

    @property
    def is_recurrent(self) -> bool:
        """Whether the model has no attention, but a recurrent state of fixed size."""
        return self.model_type != TRANSFORMER_XL

    def check_reading(self, tgt_len: int, span: "AttentionSpan") -> None:
        """Checks that the model can read segments of length `tgt_len` with an attention span.

        Raises:
            UserError: If it cannot: a recurrent model has no span, and some position encodings
                allow no memory or limit the length.
        """
        if self.is_recurrent:
            for name, needed in _RECURRENT_SPAN.items():
                if (value := getattr(span, name)) != needed:
                    raise UserError(
                        f"`{name}` must be {str(needed).lower()} with "
                        f"model_type={self.model_type}, which attends to nothing. "
                        f"Received: {name}={value}"
                    )
        elif span.mem_len and not self.can_have_memory:
            raise UserError(
                f"`mem_len` must be 0 with encoding={self.encoding}: it encodes the places in a "
                f"segment, and the memory lies before them. Received: mem_len={span.mem_len}"
            )
        if span.clamp_len > 0 and ENCODINGS[self.encoding].encodes_places:
            raise UserError(
                f"`clamp_len` must be -1 with encoding={self.encoding}: it encodes no distances. "
                f"Received: clamp_len={span.clamp_len}"
            )
        if self.max_places is not None and tgt_len > self.max_places:
            raise UserError(
                f"`tgt_len` must be at most `n_positions` with encoding={self.encoding}. "
                f"Received: tgt_len={tgt_len}, n_positions={self.n_positions}"
            )

    def check_temperature(self, temperature: float) -> None:
        """Checks that the softmax supports a temperature.

        Raises:
            UserError: If it is not positive, or is not 1 and the softmax has several bins, which
                have no common logits.
        """
        if not temperature > 0:
            raise UserError(f"`temperature` must be positive. Received: temperature={temperature}")
        if temperature != 1 and self.cutoffs:
            raise UserError(
                "`temperature` must be 1 with `cutoffs`: the bins of an adaptive softmax have no "
                f"common logits. Received: temperature={temperature}"
            )

    @property
    def input_rate(self) -> float:
        """The dropout rate of the embeddings and positions."""
        return self.dropout if self.input_dropout == -1 else self.input_dropout

    @property
    def output_rate(self) -> float:
        """The dropout rate of the last hidden states."""
        return self.dropout if self.output_dropout == -1 else self.output_dropout

    @property
    def can_have_memory(self) -> bool:
        """Whether attention can read a memory, which generation needs."""
        return not self.is_recurrent and not ENCODINGS[self.encoding].encodes_places

    @property
    def max_places(self) -> int | None:
        """The longest segment that the position encoding allows; `None` for any."""
        facts = ENCODINGS[self.encoding]
        return self.n_positions if facts.has_table and facts.encodes_places else None

    def check_memory(self, purpose: str) -> None:
        """Raises `UserError` if the model cannot have a memory, which `purpose` needs."""
        if not self.can_have_memory:
            raise UserError(
                f"{purpose} needs a memory, which a model with encoding={self.encoding} cannot have"
            )

    def check_training(self, training: "TrainConfig") -> None:
        """Checks that the model can be trained with the segments and span of a training config.

        Raises:
            UserError: If it cannot, or has fewer learned positions than a segment has keys.
        """
        if self.is_recurrent:
            for name in ("extra_len", "tgt_len_std", "half_len_rate"):
                if value := getattr(training, name):
                    raise UserError(
                        f"`{name}` must be 0 with model_type={self.model_type}: its state goes on "
                        f"where a segment of fixed length ends. Received: {name}={value}"
                    )
        self.check_reading(training.window_len, training.span)
        n_keys = training.mem_len + training.window_len
        if ENCODINGS[self.encoding].has_table and self.n_positions < n_keys:
            before = "extra_len" if training.extra_len else "mem_len"  # never both
            longer = " + 3 tgt_len_std" if training.tgt_len_std else ""
            raise UserError(
                f"`n_positions` must be at least {before} + tgt_len{longer} = {n_keys} with "
                f"encoding={self.encoding}. Received: n_positions={self.n_positions}"
            )

    @property
    def bins(self) -> tuple[tuple[int, int], ...]:
        """The first and end id (exclusive) of each bin of the adaptive embedding and softmax."""
        bounds = (0, *self.cutoffs, self.n_token)
        return tuple(itertools.pairwise(bounds))

    def bin_width(self, index: int) -> int:
        """Returns the embedding width E_i of a bin."""
        return self.d_embed // self.div_val**index

    def has_embedding_projection(self, index: int) -> bool:
        """Returns whether bin `index` of the embedding has a projection [E_i, D].

        With `div_val` = 1, there is one table and at most one projection, that of bin 0.
        """
        if self.div_val == 1:
            return index == 0 and self.d_embed != self.d_model
        return self.bin_width(index) != self.d_model or self.proj_same_dim

    def has_softmax_projection(self, index: int) -> bool:
        """Returns whether bin `index` of the softmax has its own projection [E_i, D]."""
        if not self.cutoffs or (self.proj_share_all_but_first and index > 0):
            return False  # it uses the embedding's
        needs_none = self.div_val == 1 or not self.proj_same_dim
        return not (needs_none and self.bin_width(index) == self.d_model)

    def without_dropout(self) -> Self:
        """Returns the config of the same model without dropout."""
        dropatt = self.dropatt if self.is_recurrent else 0.0  # recurrent models must not change it
        return dataclasses.replace(
            self,
            dropout=0.0,
            dropatt=dropatt,
            word_dropout=0.0,
            input_dropout=-1.0,
            qkv_dropout=0.0,
            output_dropout=-1.0,
            locked_dropout=False,
        )

    def count_parameters(self) -> int:
        """Returns the number of trainable parameters, without building the model."""
        return sum(count_by_part(self).values())
