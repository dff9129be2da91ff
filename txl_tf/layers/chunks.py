"""How many tokens a softmax takes at once, so that their logits fit into memory.

Plain arithmetic: the layers compute by it, and `txl_tf.training.costs` counts by it.
"""

LOGITS_PER_CHUNK = 2**24  # 64 MiB of float32
UNKNOWN_CHUNK = 32  # tokens, where their number is not known when a function is traced
_N_CHUNKS = 8  # of all tokens; a tail bin has a share of these, and its last chunk is not full


def choose_chunk(n_tokens: int | None, n_rows: int) -> int:
    """Returns how many tokens are taken at once.

    Args:
        n_tokens: all there are; `None` where that is not known when a function is traced.
        n_rows: the logits of a token.

    >>> choose_chunk(1024, 8000), choose_chunk(9600, 200_000)
    (128, 83)
    """
    share = UNKNOWN_CHUNK if n_tokens is None else -(-n_tokens // _N_CHUNKS)
    return max(1, min(share, LOGITS_PER_CHUNK // n_rows))


def is_taken_at_once(n_tokens: int | None, n_rows: int) -> bool:
    """Tells whether the logits of all tokens are held at once where all tokens have them."""
    return n_tokens is None or n_tokens * n_rows <= LOGITS_PER_CHUNK
