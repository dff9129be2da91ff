"""Configs for reading text: attention span, segment length and lanes."""

from dataclasses import dataclass, field

from txl_tf.config.base import POSITIVE, Config, define_field, describe, document_fields

MAX_LANES = 2**20  # far beyond the capacity of any device

_MEM_LEN = describe(
    "Memory length M: number of hidden states kept from earlier segments; 0 for no memory.",
    lower_bound=0,
)
_SAME_LENGTH = describe(
    "Let every query see M + 1 keys, as in the paper's evaluations; otherwise it sees all M keys "
    "of the memory, and those of the segment up to its own."
)
_CLAMP_LEN = describe("Clamp larger distances to this value; -1 for no limit.", lower_bound=-1)
_COUNTS_SELF = describe(
    "With same_length, let every query see M keys including its own, as in Hugging Face "
    "transformers, instead of M + 1.",
    rare=True,
)

KERNEL_DTYPES = ("float32", "bfloat16", "int8")  # of the weights for inference

DEFAULT_TEMPERATURE, DEFAULT_TOP_K = 0.95, 40  # of generation, in Python, programs and server
MAX_SAMPLING_SEED = 2**63 - 1  # the generator of random numbers takes int64


@document_fields
@dataclass(frozen=True)
class AttentionSpan(Config):
    """How far a model looks back. No weight depends on it, so evaluation may use another span.

    Raises:
        UserError: If a value is out of range, or a query would see only its own key.

    >>> AttentionSpan(mem_len=2100, same_length=True, clamp_len=820).to_json()
    {'mem_len': 2100, 'same_length': True, 'clamp_len': 820, 'counts_self': False}
    """

    mem_len: int = field(metadata=_MEM_LEN)
    same_length: bool = field(default=False, metadata=_SAME_LENGTH)
    clamp_len: int = field(default=-1, metadata=_CLAMP_LEN)
    counts_self: bool = field(default=False, kw_only=True, metadata=_COUNTS_SELF)

    def __post_init__(self) -> None:
        self._check_fields()
        self._check(self.clamp_len != 0, "`clamp_len` must be -1 (off) or positive")
        self._check(
            self.mem_len > self.counts_self or not self.same_length,
            f"`mem_len` must be {'more than 1' if self.counts_self else 'positive'} with "
            "`same_length`: each query would see only its own key",
        )


@document_fields
@dataclass(frozen=True)
class ReadingConfig(Config):
    """The segment length and attention span with which text is read."""

    tgt_len: int = define_field(70, "Segment length T.", lower_bound=1)
    mem_len: int = field(default=70, metadata=_MEM_LEN)
    same_length: bool = field(default=False, metadata=_SAME_LENGTH)
    clamp_len: int = field(default=-1, metadata=_CLAMP_LEN)
    # Keyword-only, so that the positions of the subclasses' fields stay the same.
    reset_at_documents: bool = field(
        default=False,
        kw_only=True,
        metadata=describe(
            "Empty the memory where a document begins, so that no document sees the previous one "
            "(unlike the paper).",
            rare=True,
        ),
    )
    counts_self: bool = field(default=False, kw_only=True, metadata=_COUNTS_SELF)

    @property
    def span(self) -> AttentionSpan:
        """How far the model looks back."""
        return AttentionSpan(
            self.mem_len, self.same_length, self.clamp_len, counts_self=self.counts_self
        )

    def _check_reading(self) -> None:
        self._check_fields()
        self.span  # noqa: B018  checks the other fields


@document_fields
@dataclass(frozen=True)
class EvalConfig(ReadingConfig):
    """Settings of an evaluation.

    Raises:
        UserError: If a value is out of range.
    """

    eval_batch_size: int = define_field(
        60,
        "Number of lanes B into which an evaluation cuts the split.",
        lower_bound=1,
        upper_bound=MAX_LANES,
    )
    temperature: float = define_field(
        1.0,
        "Softmax temperature in evaluation and scoring. Values above 1 help an overconfident "
        "model. Needs a softmax without cutoffs.",
        range=POSITIVE,
        rare=True,
    )

    def __post_init__(self) -> None:
        self._check_reading()

    def describe(self) -> str:
        """Returns the segment length, span, temperature and treatment of documents as text.

        >>> EvalConfig(80, 2100, clamp_len=820).describe()
        'tgt_len 80, mem_len 2100, same_length false, clamp_len 820'
        >>> EvalConfig(128, 1600, same_length=True, counts_self=True).describe()
        'tgt_len 128, mem_len 1600, same_length true, counts_self true, clamp_len -1'
        >>> EvalConfig(10, 0, temperature=1.08).describe()
        'tgt_len 10, mem_len 0, same_length false, clamp_len -1, temperature 1.08'
        >>> EvalConfig(10, 20, reset_at_documents=True).describe()
        'tgt_len 10, mem_len 20, same_length false, clamp_len -1, reset_at_documents true'
        """
        own = ", counts_self true" if self.same_length and self.counts_self else ""
        temperature = "" if self.temperature == 1 else f", temperature {self.temperature:g}"
        reset = ", reset_at_documents true" if self.reset_at_documents else ""
        return (
            f"tgt_len {self.tgt_len}, mem_len {self.mem_len}, "
            f"same_length {str(self.same_length).lower()}{own}, clamp_len {self.clamp_len}"
            f"{temperature}{reset}"
        )
