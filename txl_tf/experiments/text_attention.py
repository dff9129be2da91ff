"""The attention within a text: what each of its tokens attends to in each head."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.cached_model import CachedModel
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.experiments.attention_terms import TERMS, LayerAttention, read_attention
from txl_tf.scoring.text_report import show_symbol

MAX_BYTES = 2 * 2**30


class Head(NamedTuple):
    """A head of a layer, both counted from 0; written as "3.0".

    Args:
        layer: The index of the layer.
        head: The index of the head in its layer.
    """

    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.layer}.{self.head}"


class HeadAttention(NamedTuple):
    """The attention of K heads within a text: of its last q tokens, to its last k tokens.

    A row belongs to the token that the model has read last, when it predicts the next one.

    Args:
        first_key: The offset of the first key in the text.
        visible: (q, k) bool, true where the token sees the key.
        weights: (K, q, k) float32, 0 where it does not.
        terms: (4, K, q, k) float32, the terms (a) to (d) of the scores, 0 where it does not.
    """

    first_key: int
    visible: np.ndarray
    weights: np.ndarray
    terms: np.ndarray


@dataclass(frozen=True, eq=False)
class TextAttention:
    """The attention of some layers and heads within a text of n tokens.

    Row i of an array belongs to token i, the last one that the model has read when it predicts
    token i + 1. Column j belongs to token j as a key, at the distance i - j.

    Args:
        ids: (n,) int32, the tokens of the text.
        symbols: The n symbols in readable form; `None` without a vocabulary.
        layers: The indices of the layers L, from 0.
        heads: The indices of the heads N of each layer, from 0.
        visible: (n, n) bool, true where a token sees a key.
        weights: (L, N, n, n) float32, the attention weights, 0 where a token does not see the key.
            A row sums to 1, less what an empty memory receives with `mask_empty_memory=False`.
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


def read_text_attention(
    cached: CachedModel,
    ids: np.ndarray,
    vocabulary: Vocabulary | None,
    *,
    layers: int | Sequence[int] | None = None,
    heads: int | Sequence[int] | None = None,
) -> TextAttention:
    """Returns the attention within a text; see `LanguageModel.attention`.

    Raises:
        UserError: If the text is empty, a layer or head does not exist, or the arrays would be
            larger than `MAX_BYTES`.
    """
    config = cached.model.config
    chosen_layers = _choose("layers", layers, config.n_layer)
    chosen_heads = _choose("heads", heads, config.n_head)
    if not len(ids):
        raise UserError("`text` must have at least one token. Received: none")
    pairs = [Head(layer, head) for layer in chosen_layers for head in chosen_heads]
    found = read_heads(cached, ids, pairs)
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


def read_heads(
    cached: CachedModel,
    ids: np.ndarray,
    heads: Sequence[Head],
    *,
    first_query: int = 0,
    document_starts: np.ndarray | None = None,
) -> HeadAttention:
    """Reads a text in segments of `cached.tgt_len`, and returns the attention of its last tokens.

    Args:
        cached: The model.
        ids: (n,) int32, the text. It is read with an empty memory.
        heads: The heads.
        first_query: The offset of the first token whose attention is returned.
        document_starts: (n,) bool, true where a token begins a document; `None` if none does.

    Raises:
        UserError: If the arrays would be larger than `MAX_BYTES`.
    """
    tgt_len, mem_len = cached.tgt_len, cached.span.mem_len
    first_key = max(0, first_query // tgt_len * tgt_len - mem_len)
    shape = (len(heads), len(ids) - first_query, len(ids) - first_key)
    _check_size(*shape)
    arrays = np.zeros((1 + len(TERMS), *shape), np.float32)
    visible = np.zeros(shape[1:], bool)
    rows_of_layer = {
        layer: [row for row, head in enumerate(heads) if head.layer == layer]
        for layer in range(cached.model.config.n_layer)
    }

    def keep(layer: int, attention: LayerAttention) -> tuple[np.ndarray, np.ndarray]:
        chosen = np.array([heads[row].head for row in rows_of_layer[layer]], np.int32)
        is_seen = tf.logical_and(attention.mask, attention.is_token)[0, 0]  # (T, S)
        tensors = (attention.weights, *attention.terms)
        parts = [tf.where(is_seen, tf.gather(tensor[0], chosen), 0.0) for tensor in tensors]
        return is_seen.numpy(), np.stack([part.numpy() for part in parts])

    state = cached.initial_state(1)
    for start in range(0, len(ids), tgt_len):
        segment = slice(start, start + tgt_len)
        inputs = tf.constant(ids[None, segment])
        starts = None if document_starts is None else tf.constant(document_starts[None, segment])
        if start + tgt_len <= first_query:
            _, state = cached.read(inputs, state, document_starts=starts)
            continue
        kept, _, state = read_attention(cached, inputs, state, keep, starts)
        # The parts of the segment's queries and keys that are asked for, there and in the arrays.
        queries = slice(max(first_query - start, 0), inputs.shape[1])
        keys = slice(max(first_key - (start - mem_len), 0), mem_len + inputs.shape[1])
        place = (
            slice(start + queries.start - first_query, start + queries.stop - first_query),
            slice(*(start - mem_len + key - first_key for key in (keys.start, keys.stop))),
        )
        for layer, (is_seen, parts) in enumerate(kept):
            arrays[:, rows_of_layer[layer], *place] = parts[..., queries, keys]
            visible[place] = is_seen[queries, keys]
    return HeadAttention(first_key, visible, arrays[0], arrays[1:])


def _choose(name: str, chosen: int | Sequence[int] | None, count: int) -> tuple[int, ...]:
    """Returns the chosen layers or heads, by default all, and checks that they exist."""
    if chosen is None:
        return tuple(range(count))
    indices = (chosen,) if isinstance(chosen, int) else tuple(chosen)
    if not indices or not set(indices) <= set(range(count)):
        raise UserError(
            f"`{name}` must be one or more numbers from 0 to {count - 1}. Received: {chosen!r}"
        )
    return indices


def _check_size(n_heads: int, n_queries: int, n_keys: int) -> None:
    size = (1 + len(TERMS)) * 4 * n_heads * n_queries * n_keys
    if size > MAX_BYTES:
        raise UserError(
            f"the attention of {n_queries:,} tokens to {n_keys:,} in {n_heads:,} heads would take "
            f"{size / 2**30:.1f} GiB, and at most {MAX_BYTES / 2**30:g} GiB are allowed: choose "
            "fewer layers or heads, or a shorter text"
        )
