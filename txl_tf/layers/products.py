"""Products of rows with a kernel."""

from keras import ops

_N_PARTS = 4
_SMALL_SIZE = 2**18  # numbers; with fewer, what threads have to say to each other takes longer


def multiply(rows, kernel):
    """Returns `rows @ kernel`; of a single row the product is made of parts.

    XLA for CPU computes the product of a vector and a matrix on one thread if a sum follows, which
    is half of the bandwidth that two have. Products of a batch it gives to all threads, so the sum
    over K is taken in parts: a batch of them.

    Args:
        rows: (..., K).
        kernel: (K, L) of the same dtype.

    Returns:
        (..., L) of that dtype.

    >>> multiply(ops.ones((2, 3, 5)), ops.ones((5, 7))).shape == (2, 3, 7)
    True
    """
    *batch, width = rows.shape
    n_columns = kernel.shape[-1]
    is_single = all(size == 1 for size in batch)
    if not is_single or width % _N_PARTS or width * n_columns < _SMALL_SIZE:
        return ops.matmul(rows, kernel)
    rows = ops.reshape(rows, (_N_PARTS, 1, width // _N_PARTS))
    kernel = ops.reshape(kernel, (_N_PARTS, width // _N_PARTS, n_columns))
    return ops.reshape(ops.sum(ops.matmul(rows, kernel), axis=0), (*batch, n_columns))
