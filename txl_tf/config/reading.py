"""How a text is read: how far a model looks back, in which segments, in how many lanes."""

import dataclasses

from txl_tf.config.base import Config

MAX_LANES = 2**20  # far beyond what fits any device


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
class ReadingConfig(Config):
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
class EvalConfig(ReadingConfig):
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
        self._check_integers(1, "eval_batch_size", maximum=MAX_LANES)
        self._check_reading()
