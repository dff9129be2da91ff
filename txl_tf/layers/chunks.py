"""Numbers of tokens whose logits a softmax computes at once, so that they fit into memory.

The layers share this arithmetic with `benchmarks/step_costs.py`.
"""

LOGITS_PER_CHUNK = 2**24  # 64 MiB of float32
UNKNOWN_CHUNK = 32  # tokens, if their number is not known when a function is traced
_N_CHUNKS = 8  # for all tokens; a tail bin needs some of these, and its last one is not full


def choose_chunk(n_tokens: int | None, n_rows: int) -> int:
    """Returns the number of tokens of a chunk.

    Args:
        n_tokens: Number of all tokens; `None` if it is not known when a function is traced.
        n_rows: Number of logits of each token.

    >>> choose_chunk(1024, 8000), choose_chunk(9600, 200_000)
    (128, 83)
    """
    share = UNKNOWN_CHUNK if n_tokens is None else -(-n_tokens // _N_CHUNKS)
    return max(1, min(share, LOGITS_PER_CHUNK // n_rows))


def is_taken_at_once(n_tokens: int | None, n_rows: int) -> bool:
    """Returns whether the logits of all tokens fit into one chunk."""
    return n_tokens is None or n_tokens * n_rows <= LOGITS_PER_CHUNK
