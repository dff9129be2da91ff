"""The attention mask of a segment, and the memory after it."""

import functools

import keras
from keras import ops


def make_attention_mask(tgt_len, mem_len, *, same_length=False, counts_self=False, n_before=None):
    """Returns the attention mask: a query sees the memory, and the segment up to itself.

    Query i sees key s if s <= i + M; s counts from the oldest state of the memory, so the distance
    is i + M - s. `same_length` makes this a sliding window by also requiring s >= i, so that every
    query sees M + 1 keys; with `counts_self`, s > i: M keys, including the query's own. `n_before`
    hides empty memory entries and other documents.

    In the 2019 code: `_create_mask`, where 1 means hidden.

    Args:
        tgt_len: Segment length T.
        mem_len: Memory length M.
        same_length: Whether every query sees the same number of keys.
        counts_self: Whether that number is M instead of M + 1.
        n_before: (B, T) int32 from `count_before`, how many of the tokens before each query it may
            see, counted back from the query. `None` to show all, including empty memory entries.

    Returns:
        (T, M + T) bool, true where the query (row) sees the key (column); (B, 1, T, M + T) with
        `n_before`.

    >>> ops.convert_to_numpy(make_attention_mask(2, 1, same_length=True)).tolist()
    [[True, True, False], [False, True, True]]
    """
    query = ops.arange(tgt_len, dtype="int32")
    key = ops.arange(mem_len + tgt_len, dtype="int32")
    last = query + mem_len  # the key of each query
    visible = key <= last[:, None]
    firsts = [query + int(counts_self)] if same_length else []
    if n_before is not None:
        firsts.append(last - n_before)  # (B, T)
    if firsts:
        # One comparison with the greater bound: XLA would repeat two for each head and pass.
        visible = ops.logical_and(visible, key >= functools.reduce(ops.maximum, firsts)[..., None])
    return visible if n_before is None else visible[:, None]


def count_before(n_read, tgt_len, document_starts=None):
    """Returns how many tokens of its document were read before each token of a segment.

    Args:
        n_read: (B,) int32, the number of tokens before the segment; at least those that the memory
            holds.
        tgt_len: Segment length T.
        document_starts: (B, T) bool, true where a token begins a document; `None` if none does.

    Returns:
        (B, T) int32.

    >>> starts = ops.convert_to_tensor([[False, False, True, False]])
    >>> ops.convert_to_numpy(count_before(ops.convert_to_tensor([5]), 4, starts)).tolist()
    [[5, 6, 0, 1]]
    """
    index = ops.arange(tgt_len, dtype="int32")
    n_before = n_read[:, None] + index
    if document_starts is None:
        return n_before
    is_start = ops.logical_and(document_starts[:, None], index[None, :] <= index[:, None])
    start = ops.max(ops.where(is_start, index, -1), axis=-1)  # (B, T), the last one so far
    return ops.where(start < 0, n_before, index - start)


def update_memory(memory, hidden):
    """Returns the last M states of memory and segment, without gradient (paper, section 3.2).

    In the 2019 code: `_cache_mem`.

    Args:
        memory: (B, M, D), the states before the segment.
        hidden: (B, T, D), the states of the segment.

    Returns:
        (B, M, D) in the dtype of `memory`.
    """
    mem_len, tgt_len = memory.shape[1], hidden.shape[1]
    hidden = ops.cast(hidden[:, max(0, tgt_len - mem_len) :], memory.dtype)
    if mem_len > tgt_len:
        hidden = ops.concatenate([memory[:, tgt_len:], hidden], axis=1)
    return ops.stop_gradient(hidden)


def clear_rows(state, rows):
    """Returns a nest of tensors (B, ...) with zeros in the given rows, (B,) bool."""

    def clear(states):
        is_cleared = ops.reshape(rows, (-1, *[1] * (len(states.shape) - 1)))
        return ops.where(is_cleared, ops.zeros_like(states), states)

    return keras.tree.map_structure(clear, state)
