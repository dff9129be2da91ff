"""What a segment may see, and what it leaves behind."""

from keras import ops


def make_attention_mask(tgt_len, mem_len, *, same_length=False):
    """Tells which keys each query sees: memory first, then the segment up to the query.

    Query i sees key j if j <= i + M, where j counts from the oldest state of the memory; with
    `same_length` only if also j >= i, so that every query sees M + 1 keys.

    Args:
        tgt_len: segment length T.
        mem_len: memory length M.
        same_length: whether every query sees equally many keys.

    Returns:
        (T, M + T) bool.

    >>> ops.convert_to_numpy(make_attention_mask(2, 1, same_length=True)).tolist()
    [[True, True, False], [False, True, True]]
    """
    query = ops.arange(tgt_len)[:, None]
    key = ops.arange(mem_len + tgt_len)[None, :]
    visible = key <= query + mem_len
    if same_length:
        visible = ops.logical_and(visible, key >= query)
    return visible


def update_memory(memory, hidden):
    """Returns the last M of the old memory and the segment, without gradient (section 3.2).

    Args:
        memory: (B, M, D) states before the segment.
        hidden: (B, T, D) states of the segment.

    Returns:
        (B, M, D) in the dtype of `memory`.
    """
    mem_len, tgt_len = memory.shape[1], hidden.shape[1]
    hidden = ops.cast(hidden[:, max(0, tgt_len - mem_len) :], memory.dtype)
    if mem_len > tgt_len:
        hidden = ops.concatenate([memory[:, tgt_len:], hidden], axis=1)
    return ops.stop_gradient(hidden if mem_len else memory)
