"""The loss of an evaluation by the attention length at test time (table 6 of the paper)."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from txl_tf.config import EvalConfig
from txl_tf.data.lanes import Tokens
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.score import Score
from txl_tf.model import SegmentModel


class AttentionLengths(NamedTuple):
    """Scores of the same tokens with memories of several lengths.

    Args:
        lengths: The memory lengths, ascending. With `same_length` they are the attention lengths;
            otherwise a token attends to up to `tgt_len` tokens more.
        scores: The score with each.
        initial: The length used in training ("PPL init" of table 6), one of `lengths`.
    """

    lengths: list[int]
    scores: list[Score]
    initial: int

    @property
    def best(self) -> int:
        """The shortest length whose perplexity is the lowest, to two decimals ("Attn Len")."""
        perplexities = [round(score.perplexity, 2) for score in self.scores]
        return self.lengths[perplexities.index(min(perplexities))]


def choose_lengths(initial: int, evaluated: int) -> list[int]:
    """Returns lengths around that of training, with that of the run's evaluation.

    >>> choose_lengths(128, 640)
    [64, 128, 256, 384, 512, 640, 768]
    """
    multiples = {round(initial * factor) for factor in (0.5, 1, 2, 3, 4, 6)}
    return sorted(length for length in multiples | {evaluated} if length > 0)


def measure_attention_lengths(
    model: SegmentModel,
    config: EvalConfig,
    split: Tokens,
    lengths: Sequence[int],
    *,
    initial: int,
    max_tokens: int,
    vocabulary: Vocabulary | None = None,
    jit: str = "auto",
    report: Callable[[], object] | None = None,
) -> AttentionLengths:
    """Evaluates a model with memories of several lengths, on the same tokens.

    Args:
        model: The model.
        config: Lanes, segment and span of the evaluation; only `mem_len` is changed.
        split: The tokens of the split.
        lengths: The memory lengths.
        initial: The length used in training, which is added to `lengths`.
        max_tokens: The number of tokens to score, at most, rounded up to whole segments of all
            lanes.
        vocabulary: The vocabulary, which determines the unit of the scores.
        jit: How much of the model XLA compiles; one of `JIT_MODES`.
        report: Called after each length.
    """
    lengths = sorted({*lengths, initial})
    scores = []
    for length in lengths:
        of_length = dataclasses.replace(config, mem_len=length)
        evaluator = Evaluator(model, of_length, vocabulary=vocabulary, jit=jit)
        lanes = evaluator.cut_lanes(split)
        n_segments = -(-max_tokens // (lanes.n_lanes * config.tgt_len))
        scores.append(evaluator.score_lanes(lanes, max_segments=n_segments))
        if report:
            report()
    return AttentionLengths(lengths, scores, initial)
