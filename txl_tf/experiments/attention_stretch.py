"""The attention of single heads over a stretch of a split (paper, appendix D, figure 6)."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from txl_tf.cached_model import CachedModel
from txl_tf.config import EvalConfig, ModelConfig
from txl_tf.data.lanes.training_lanes import Tokens, find_document_starts
from txl_tf.errors import UserError
from txl_tf.experiments.text_attention import Head, HeadAttention, read_heads
from txl_tf.model import TransformerXL
from txl_tf.scoring.evaluator import choose_warm_len


class Stretch(NamedTuple):
    """The attention of a few heads over a stretch of a split.

    Args:
        start: The position of the first target in the split.
        first_key: The position of the first key in the split.
        ids: (k + 1,) int32, the tokens from the first key to the last target.
        heads: The heads.
        attention: Their attention. Row i is that of the token before target `start + i`.
    """

    start: int
    first_key: int
    ids: np.ndarray
    heads: Sequence[Head]
    attention: HeadAttention


def read_stretch(
    model: TransformerXL,
    evaluation: EvalConfig,
    split: Tokens,
    heads: Sequence[Head],
    *,
    start: int,
    length: int,
) -> Stretch:
    """Returns the attention of heads over a stretch of a split.

    The memory is filled by the text before the stretch, in the segments of a single lane.

    Args:
        model: The model.
        evaluation: Segment and span.
        split: The tokens of the split.
        heads: The heads.
        start: The position of the first target in the split, at least 1.
        length: The number of targets.

    Raises:
        UserError: If the arrays would be too large.
    """
    first_query, stop = start - 1, start - 1 + length
    tgt_len = evaluation.tgt_len
    begin = max(0, first_query - choose_warm_len(evaluation.span.mem_len)) // tgt_len * tgt_len
    starts = find_document_starts(split, begin, stop) if evaluation.reset_at_documents else None
    ids = split.read(begin, stop + 1)
    attention = read_heads(
        CachedModel(model, evaluation.span, tgt_len),
        ids[:-1],
        heads,
        first_query=first_query - begin,
        document_starts=starts,
    )
    first = attention.first_key
    return Stretch(start, begin + first, ids[first:], heads, attention)


def parse_heads(texts: Sequence[str], config: ModelConfig) -> list[Head]:
    """Returns the heads that texts such as "3.0" name.

    Args:
        texts: Layer and head, both counted from 0, with a dot between them.
        config: The config of the model.

    Raises:
        UserError: If a text is not of this form, or there is no such head.
    """
    return [_parse_head(text, config) for text in texts]


def _parse_head(text: str, config: ModelConfig) -> Head:
    found = re.fullmatch(r"(\d{1,9})\.(\d{1,9})", text.strip(), flags=re.ASCII)
    head = Head(*map(int, found.groups())) if found else None
    if head is None or head.layer >= config.n_layer or head.head >= config.n_head:
        raise UserError(
            f"`heads` must be LAYER.HEAD, from 0.0 to {config.n_layer - 1}.{config.n_head - 1}. "
            f"Received: {text}"
        )
    return head


def place_stretch(n_tokens: int, start: int | None, length: int) -> int:
    """Returns the position of the first target of a stretch.

    Args:
        n_tokens: The number of tokens of the split; the first is no target.
        start: The position that the user chose; `None` for the middle of the split.
        length: The number of targets.

    Raises:
        UserError: If the stretch is not within the split.
    """
    if start is None:
        start = max(1, (n_tokens - length) // 2)
    if start < 1 or start + length > n_tokens:
        raise UserError(
            f"the stretch must be within the targets of the split, 1 to {n_tokens - 1}. "
            f"Received: `start`={start}, `length`={length}"
        )
    return start
