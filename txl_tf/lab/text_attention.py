"""The attention within a text: what each of its tokens attends to in each head."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf import LanguageModel, UserError
from txl_tf.config import ModelConfig
from txl_tf.data import EvaluationLanes, Segment
from txl_tf.data.lanes.training_lanes import StoredTokens, Tokens, store_tokens
from txl_tf.generation.text_encoder import TextEncoder
from txl_tf.lab.attention_reader import TERMS, AttentionReader, LayerAttention
from txl_tf.models.architecture import check_transformer
from txl_tf.scoring.evaluator import choose_warm_len
from txl_tf.scoring.text_report import show_symbol

MAX_BYTES = 2 * 2**30


class Head(NamedTuple):
    """A head of a layer, both counted from 0; written as "3.0"."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.layer}.{self.head}"


class HeadAttention(NamedTuple):
    """The attention of K heads within a stretch of text: of q tokens, to k tokens.

    A row belongs to the last token read when the target, the next token, is predicted. The last
    query is the last key. For the arrays, see `TextAttention`.
    """

    heads: Sequence[Head]
    first_key: int  # the position of the first key in the text or split
    ids: np.ndarray  # (k + 1,) int32, the tokens from the first key to the last target
    visible: np.ndarray  # (q, k)
    weights: np.ndarray  # (K, q, k)
    terms: np.ndarray  # (4, K, q, k)

    @property
    def first_target(self) -> int:
        """The position of the first target in the text or split."""
        n_queries, n_keys = self.visible.shape
        return self.first_key + n_keys - n_queries + 1


@dataclass(frozen=True, eq=False)
class TextAttention:
    """The attention of some layers and heads within a text of n tokens.

    Row i of an array belongs to token i, the last token read when token i + 1 is predicted. Column
    j belongs to token j as a key, at the distance i - j.

    Args:
        ids: (n,) int32, the tokens of the text.
        symbols: The n symbols in readable form; `None` without a vocabulary.
        layers: The indices of the layers L, from 0.
        heads: The indices of the heads N of each layer, from 0.
        visible: (n, n) bool, true where a token sees a key.
        weights: (L, N, n, n) float32, the attention weights, 0 where a token does not see the key.
            A row sums to 1, minus the weight on the empty memory with `mask_empty_memory=False`.
        terms: The terms of the scores by their letters in the paper (section 3.3), (L, N, n, n)
            float32 each: content "a", content and position "b", and the global biases of content
            "c" and position "d". They are divided by sqrt(H), and 0 where a token does not see the
            key.
    """

    ids: np.ndarray
    symbols: tuple[str, ...] | None
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    visible: np.ndarray
    weights: np.ndarray
    terms: dict[str, np.ndarray]

    @property
    def scores(self) -> np.ndarray:
        """(L, N, n, n) float32, the sum of the terms, whose softmax is `weights`."""
        return sum(self.terms.values(), np.zeros((), np.float32))


def read_attention(
    lm: LanguageModel,
    text: str | bytes | np.ndarray,
    *,
    layers: int | Sequence[int] | None = None,
    heads: int | Sequence[int] | None = None,
    mask_empty_memory: bool = True,
) -> TextAttention:
    """Returns the attention of each token of a text to the tokens before it, in each head.

    The text is read in segments with memory, as in `LanguageModel.score`, and the weights are those
    that the model uses there; see docs/attention-visualization.md.

    Args:
        lm: The language model.
        text: A text of at least one token, or its ids, (n,) integers.
        layers: The layers, from 0; `None` for all.
        heads: The heads of each of these layers, from 0; `None` for all.
        mask_empty_memory: As in `LanguageModel.score`. If false, the weight on the empty memory is
            missing from the sums of the rows.

    Returns:
        The attention weights and the four terms of the scores. The arrays have n * n entries per
        head.

    Raises:
        UserError: If the text is empty or cannot be encoded, a layer or head does not exist, or the
            arrays would take more than 2 GiB.
    """
    config, vocabulary = lm.config, lm.vocabulary
    check_transformer(config, "an analysis of attention")
    ids = TextEncoder(vocabulary, config.n_token).encode(text)
    chosen_layers = _choose("layers", layers, config.n_layer)
    chosen_heads = _choose("heads", heads, config.n_head)
    if not len(ids):
        raise UserError("`text` must have at least one token. Received: none")
    pairs = [Head(layer, head) for layer in chosen_layers for head in chosen_heads]
    tokens = StoredTokens(np.append(ids, ids[:1]))  # with any last target
    found = read_heads(lm, tokens, pairs, mask_empty_memory=mask_empty_memory)
    shape = (len(chosen_layers), len(chosen_heads), len(ids), len(ids))
    symbols = None
    if vocabulary is not None:
        symbols = tuple(show_symbol(vocabulary, i) for i in ids.tolist())
    return TextAttention(
        ids,
        symbols,
        chosen_layers,
        chosen_heads,
        found.visible,
        found.weights.reshape(shape),
        {name: term.reshape(shape) for name, term in zip(TERMS, found.terms, strict=True)},
    )


def read_stretch(
    lm: LanguageModel, split: Tokens, heads: Sequence[Head], *, start: int, length: int
) -> HeadAttention:
    """Returns the attention of heads over a stretch of a split (paper, appendix D, figure 6).

    The first of its `length` targets is at position `start`, at least 1. The text before it fills
    the memory, in the segments of a single lane.
    """
    first_query, tgt_len = start - 1, lm.evaluation.tgt_len
    begin = max(0, first_query - choose_warm_len(lm.span.mem_len)) // tgt_len * tgt_len
    found = read_heads(
        lm,
        store_tokens(split, begin, start + length),
        heads,
        first_query=first_query - begin,
        resets=lm.evaluation.reset_at_documents,
    )
    return found._replace(first_key=begin + found.first_key)


def read_heads(
    lm: LanguageModel,
    text: StoredTokens,
    heads: Sequence[Head],
    *,
    first_query: int = 0,
    mask_empty_memory: bool = False,
    resets: bool = False,
) -> HeadAttention:
    """Reads a text from an empty memory; returns the attention from `first_query` on."""
    n_queries, mem_len = len(text) - 1, lm.span.mem_len
    tgt_len = min(lm.evaluation.tgt_len, n_queries)
    n_skipped = first_query // tgt_len
    first_key = max(0, n_skipped * tgt_len - mem_len)
    n_rows, n_columns = n_queries - first_query, n_queries - first_key
    shape = (1 + len(TERMS), len(heads), n_rows, n_columns)
    if math.prod(shape) * 4 > MAX_BYTES:
        raise UserError(
            f"the attention of {n_rows:,} tokens to {n_columns:,} in {len(heads):,} heads would "
            f"take {math.prod(shape) * 4 / 2**30:.1f} GiB, and at most {MAX_BYTES / 2**30:g} GiB "
            "are allowed: choose fewer layers or heads, or a shorter text"
        )
    arrays, visible = np.zeros(shape, np.float32), np.zeros(shape[2:], bool)
    rows_of_layer = [
        [row for row, head in enumerate(heads) if head.layer == layer]
        for layer in range(lm.config.n_layer)
    ]

    def reduce(layer: int, attention: LayerAttention, _: Segment) -> tuple[tf.Tensor, tf.Tensor]:
        chosen = np.array([heads[row].head for row in rows_of_layer[layer]], np.int32)
        is_seen = tf.logical_and(attention.mask, attention.is_token)[0, 0]  # (T, S)
        tensors = (attention.weights, *attention.terms)
        parts = [tf.where(is_seen, tf.gather(tensor[0], chosen), 0.0) for tensor in tensors]
        return is_seen, tf.stack(parts)  # (1 + 4, heads, T, S)

    lanes = EvaluationLanes(text, n_lanes=1, tgt_len=tgt_len)
    reader = AttentionReader(lm, reduce, mask_empty_memory=mask_empty_memory, resets=resets)
    for index, (_, kept) in enumerate(reader.read(lanes, n_warm=n_skipped)):
        if kept is None:
            continue
        start = index * tgt_len
        # The queries and keys of the segment that are asked for, as positions in the text.
        queries = range(max(first_query, start), min(start + tgt_len, n_queries))
        keys = range(max(first_key, start - mem_len), queries.stop)
        source = _slice(queries, start), _slice(keys, start - mem_len)
        place = _slice(queries, first_query), _slice(keys, first_key)
        for rows, (is_seen, parts) in zip(rows_of_layer, kept, strict=True):
            arrays[:, rows, *place] = parts[..., *source]
            visible[place] = is_seen[source]
    ids = text.read(first_key, len(text))
    return HeadAttention(heads, first_key, ids, visible, arrays[0], arrays[1:])


def parse_heads(texts: Sequence[str], config: ModelConfig) -> list[Head]:
    """Returns the heads named by texts such as "3.0", and checks that they exist."""
    heads = []
    for text in texts:
        found = re.fullmatch(r"(\d{1,9})\.(\d{1,9})", text.strip(), flags=re.ASCII)
        head = Head(*map(int, found.groups())) if found else None
        if head is None or head.layer >= config.n_layer or head.head >= config.n_head:
            raise UserError(
                f"`heads` must be LAYER.HEAD, from 0.0 to {config.n_layer - 1}.{config.n_head - 1}."
                f" Received: {text}"
            )
        heads.append(head)
    return heads


def place_stretch(n_tokens: int, start: int | None, length: int) -> int:
    """Returns the position of the first target of a stretch, by default in the middle."""
    if start is None:
        start = max(1, (n_tokens - length) // 2)
    if start < 1 or start + length > n_tokens:
        raise UserError(
            f"the stretch must be within the targets of the split, 1 to {n_tokens - 1}. "
            f"Received: `start`={start}, `length`={length}"
        )
    return start


def _slice(positions: range, origin: int) -> slice:
    return slice(positions.start - origin, positions.stop - origin)


def _choose(name: str, chosen: int | Sequence[int] | None, count: int) -> tuple[int, ...]:
    """Returns the chosen layers or heads, by default all, and checks that they exist."""
    if chosen is None:
        return tuple(range(count))
    indices = (chosen,) if isinstance(chosen, int | np.integer) else tuple(chosen)
    if not indices or not set(indices) <= set(range(count)):
        raise UserError(
            f"`{name}` must be one or more numbers from 0 to {count - 1}. Received: {chosen!r}"
        )
    return indices
