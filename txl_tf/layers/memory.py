"""The attention mask of a segment, and the memory after it."""

import keras
from keras import ops


def make_attention_mask(tgt_len, mem_len, *, same_length=False, counts_self=False, filled=None):
    """Returns the attention mask: the memory, and the segment up to the query.

    Query i sees key j if j <= i + M; j counts from the oldest state of the memory. `same_length`
    makes it a sliding window: also j >= i, so that every query sees M + 1 keys. `counts_self`
    makes that j > i: M keys, including the query's own.

    In the 2019 code: `_create_mask`, where 1 means hidden.

    Args:
        tgt_len: Segment length T.
        mem_len: Memory length M.
        same_length: Whether every query sees the same number of keys.
        counts_self: Whether that number is M instead of M + 1.
        filled: (B,) int32, the number of entries of each row's memory that hold a token: the
            last ones. The others are hidden. `None` to show all.

    Returns:
        (T, M + T) bool, true where the query (row) sees the key (column); (B, 1, T, M + T) with
        `filled`.

    >>> ops.convert_to_numpy(make_attention_mask(2, 1, same_length=True)).tolist()
    [[True, True, False], [False, True, True]]
    """
    query = ops.arange(tgt_len, dtype="int32")[:, None]
    key = ops.arange(mem_len + tgt_len, dtype="int32")[None, :]
    visible = key <= query + mem_len
    if same_length:
        visible = ops.logical_and(visible, key >= query + int(counts_self))
    if filled is None:
        return visible
    is_filled = key >= mem_len - filled[:, None]  # (B, S)
    return ops.logical_and(visible, is_filled[:, None, None])


def compare_documents(document_starts, mem_len):
    """Returns a mask of the keys that belong to the same document as the query.

    The memory belongs to the document that continues in the segment, up to the first start.

    Args:
        document_starts: (B, T) bool, true where a token begins a document.
        mem_len: Memory length M.

    Returns:
        (B, T, M + T) bool.

    >>> starts = ops.convert_to_tensor([[False, True]])
    >>> ops.convert_to_numpy(compare_documents(starts, 1)).tolist()
    [[[True, True, False], [False, False, True]]]
    """
    queries = ops.cumsum(ops.cast(document_starts, "int32"), axis=1)  # index of a document
    keys = ops.pad(queries, [(0, 0), (mem_len, 0)])
    return queries[:, :, None] == keys[:, None, :]


def update_memory(memory, hidden, same_document=None):
    """Returns the last M states of memory and segment, without gradient (paper, section 3.2).

    In the 2019 code: `_cache_mem`.

    Args:
        memory: (B, M, D), the states before the segment.
        hidden: (B, T, D), the states of the segment.
        same_document: (B, T, M + T) bool from `compare_documents`. States that do not belong to
            the document of the last token become zeros, as before the first segment. `None` keeps
            all states.

    Returns:
        (B, M, D) in the dtype of `memory`.
    """
    mem_len, tgt_len = memory.shape[1], hidden.shape[1]
    hidden = ops.cast(hidden[:, max(0, tgt_len - mem_len) :], memory.dtype)
    if mem_len > tgt_len:
        hidden = ops.concatenate([memory[:, tgt_len:], hidden], axis=1)
    if same_document is not None:
        hidden = ops.where(same_document[:, -1, tgt_len:, None], hidden, 0)
    return ops.stop_gradient(hidden)


def clear_rows(state, rows):
    """Returns a nest of tensors (B, ...) with zeros in the given rows, (B,) bool."""

    def clear(states):
        is_cleared = ops.reshape(rows, (-1, *[1] * (len(states.shape) - 1)))
        return ops.where(is_cleared, ops.zeros_like(states), states)

    return keras.tree.map_structure(clear, state)
