"""Products of rows with a kernel, which are made otherwise if there is one row.

That is what generation reads: one token.
"""

from keras import ops

_N_PARTS = 4
_SMALL_SIZE = 2**18  # numbers; with fewer, what threads have to say to each other takes longer


def matmul_rows(rows, kernel):
    """Returns `rows @ kernel`; of a single row the product is made of parts.

    XLA for CPU computes the product of a vector and a matrix on one thread if a sum follows, which
    is half of the bandwidth that two have. Products of a batch it gives to all threads, so the sum
    over K is taken in parts: a batch of them.

    Args:
        rows: (..., K).
        kernel: (K, L) of the same dtype.

    Returns:
        (..., L) of that dtype.

    >>> matmul_rows(ops.ones((2, 3, 5)), ops.ones((5, 7))).shape == (2, 3, 7)
    True
    """
    *batch, width = rows.shape
    n_columns = kernel.shape[-1]
    if not _is_single(rows) or width % _N_PARTS or width * n_columns < _SMALL_SIZE:
        return ops.matmul(rows, kernel)
    rows = ops.reshape(rows, (_N_PARTS, 1, width // _N_PARTS))
    kernel = ops.reshape(kernel, (_N_PARTS, width // _N_PARTS, n_columns))
    return ops.reshape(ops.sum(ops.matmul(rows, kernel), axis=0), (*batch, n_columns))


def matmul_rows_transposed(rows, kernel):
    """Returns `rows @ kernel^T`; of a single row the kernel's product with a column.

    Else XLA for CPU copies the kernel into another order first, sixteen times the work.

    Args:
        rows: (..., K).
        kernel: (L, K) of the same dtype.

    Returns:
        (..., L) of that dtype.

    >>> matmul_rows_transposed(ops.ones((2, 3, 5)), ops.ones((7, 5))).shape == (2, 3, 7)
    True
    """
    if not _is_single(rows):
        return ops.matmul(rows, ops.transpose(kernel))
    *batch, width = rows.shape
    products = ops.matmul(kernel, ops.reshape(rows, (width, 1)))
    return ops.reshape(products, (*batch, kernel.shape[0]))


def _is_single(rows):
    return all(size == 1 for size in rows.shape[:-1])
