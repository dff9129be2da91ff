"""The evaluation loss by attention length at test time (table 6 of the paper).

For a model trained with a memory, the attention length is that of the memory. A model trained
without memory is evaluated in sliding windows of that length (section 3.1).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from txl_tf import LanguageModel
from txl_tf.data.lanes.training_lanes import Tokens, store_tokens
from txl_tf.scoring.metrics import Score


class AttentionLengths(NamedTuple):
    """Scores of the same tokens with memories, or in windows, of several lengths.

    Args:
        lengths: The lengths, ascending. Memory lengths are attention lengths with `same_length`;
            otherwise a token attends to up to `tgt_len` more tokens. In sliding windows, only the
            last half of the targets counts.
        scores: The score for each length.
        initial: The length used in training ("PPL init" of table 6), one of `lengths`.
    """

    lengths: list[int]
    scores: list[Score]
    initial: int

    @property
    def best(self) -> int:
        """The shortest length with the lowest perplexity, to two decimals ("Attn Len")."""
        perplexities = [round(score.perplexity, 2) for score in self.scores]
        return self.lengths[perplexities.index(min(perplexities))]


def choose_lengths(initial: int, evaluated: int, limit: int | None = None) -> list[int]:
    """Returns lengths around the training length, and the evaluation length unless it is 0.

    >>> choose_lengths(128, 640)
    [64, 128, 256, 384, 512, 640, 768]
    """
    multiples = {round(initial * factor) for factor in (0.5, 1, 2, 3, 4, 6)}
    lengths = multiples | {evaluated}
    return sorted(n for n in lengths if n > 0 and (limit is None or n <= limit))


def measure_attention_lengths(
    lm: LanguageModel,
    split: Tokens,
    lengths: Sequence[int],
    *,
    max_tokens: int,
    report: Callable[[], object] = lambda: None,
) -> AttentionLengths:
    """Evaluates a model with memories, or in windows, of several lengths, on the same tokens.

    Only the `mem_len` of its evaluation is changed, or for a model trained without memory, the
    `tgt_len`, for windows. The training length is added to `lengths`. At most `max_tokens` are
    scored, rounded up to whole segments of all lanes. `report` is called after each length.
    """
    has_windows = not lm.training.mem_len
    initial = lm.training.mem_len or lm.training.tgt_len
    lengths = sorted({*lengths, initial})
    scores = []
    for length in lengths:
        if has_windows:  # the last half of each counts
            config = dataclasses.replace(
                lm.evaluation, tgt_len=length, mem_len=0, same_length=False
            )
            evaluator = lm.make_evaluator(evaluation=config)
            first = store_tokens(split, 0, max_tokens + 1)  # equal targets for all windows
            score = evaluator.score_lanes(evaluator.cut_lanes(first, stride=max(1, length // 2)))
        else:
            same_length = lm.evaluation.same_length and length > 0
            config = dataclasses.replace(lm.evaluation, mem_len=length, same_length=same_length)
            evaluator = lm.make_evaluator(evaluation=config)
            lanes = evaluator.cut_lanes(split)
            n_segments = -(-max_tokens // (lanes.n_lanes * lanes.tgt_len))
            score = evaluator.score_lanes(lanes, max_segments=n_segments)
        scores.append(score)
        report()
    return AttentionLengths(lengths, scores, initial)
