"""What a segment may see, and what it leaves behind."""

from keras import ops


def make_attention_mask(tgt_len, mem_len, *, same_length=False, counts_self=False):
    """Tells which keys each query sees: memory first, then the segment up to the query.

    Query i sees key j if j <= i + M, where j counts from the oldest state of the memory; with
    `same_length` only if also j >= i, so that every query sees M + 1 keys; if also `counts_self`,
    only if j > i: M keys, of which its own is one.

    Args:
        tgt_len: segment length T.
        mem_len: memory length M.
        same_length: whether every query sees equally many keys.
        counts_self: whether these are M, not M + 1.

    Returns:
        (T, M + T) bool.

    >>> ops.convert_to_numpy(make_attention_mask(2, 1, same_length=True)).tolist()
    [[True, True, False], [False, True, True]]
    """
    query = ops.arange(tgt_len)[:, None]
    key = ops.arange(mem_len + tgt_len)[None, :]
    visible = key <= query + mem_len
    if same_length:
        visible = ops.logical_and(visible, key >= query + int(counts_self))
    return visible


def compare_documents(document_starts, mem_len):
    """Tells which keys are of the document of each query.

    The memory is of the document that goes on where the segment begins, up to the first start.

    Args:
        document_starts: (B, T) bool, true where a token begins a document.
        mem_len: memory length M.

    Returns:
        (B, T, M + T) bool.

    >>> starts = ops.convert_to_tensor([[False, True]])
    >>> ops.convert_to_numpy(compare_documents(starts, 1)).tolist()
    [[[True, True, False], [False, False, True]]]
    """
    queries = ops.cumsum(ops.cast(document_starts, "int32"), axis=1)  # the number of a document
    keys = ops.pad(queries, [(0, 0), (mem_len, 0)])
    return queries[:, :, None] == keys[:, None, :]


def update_memory(memory, hidden, same_document=None):
    """Returns the last M of the old memory and the segment, without gradient (section 3.2).

    Args:
        memory: (B, M, D) states before the segment.
        hidden: (B, T, D) states of the segment.
        same_document: (B, T, M + T) bool from `compare_documents`: states of other documents
            than the last token's become zeros, as before the first segment. `None`: all stay.

    Returns:
        (B, M, D) in the dtype of `memory`.
    """
    mem_len, tgt_len = memory.shape[1], hidden.shape[1]
    hidden = ops.cast(hidden[:, max(0, tgt_len - mem_len) :], memory.dtype)
    if mem_len > tgt_len:
        hidden = ops.concatenate([memory[:, tgt_len:], hidden], axis=1)
    states = hidden if mem_len else memory
    if same_document is not None:
        states = ops.where(same_document[:, -1, tgt_len:, None], states, 0)
    return ops.stop_gradient(states)
