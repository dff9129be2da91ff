"""The update of matrices by Muon, on any backend."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from keras import ops

MOMENTUM = 0.95
SCALE = 0.2
# Polynomials a s + b s^3 + c s^5 of the singular values s. Each is the polynomial of this degree
# that moves the range left by the previous one closest to 1: the first starts from [.005, 1], the
# last ends within .098 of 1. Each tolerates singular values that are 2 % too large, beyond which it
# grows steeply.
COEFFICIENTS = (
    (8.1400, -23.0368, 16.3967),
    (3.8518, -2.7640, 0.5084),
    (3.1586, -2.2837, 0.4577),
    (2.1981, -1.5352, 0.3822),
)


def orthogonalize(
    matrices: Sequence[Any], n_joint: Sequence[int], *, product_dtype: str = "float32"
) -> list[Any]:
    """Moves the singular values of matrices to about 1, from .90 to 1.10.

    It iterates polynomials of degree 5, which take only matrix products. If the Frobenius norm of
    a matrix is 1, singular values below .005 are multiplied by about 218 instead. The result does
    not depend on the norm. A matrix of zeros stays unchanged.

    Each of `matrices` holds `n_joint` matrices side by side, (rows, n_joint columns) float32. Those
    of one shape are multiplied together.

    References:
        Amsel et al. 2025, https://arxiv.org/abs/2505.16932: how the polynomials are chosen.
    """
    parts = [ops.split(x, n, axis=1) for x, n in zip(matrices, n_joint, strict=True)]
    stacks: dict[tuple[int, int], list[Any]] = {}
    for part in itertools.chain(*parts):
        stacks.setdefault(tuple(part.shape), []).append(part)
    found = {
        shape: iter(ops.unstack(_orthogonalize_stack(ops.stack(stack), product_dtype)))
        for shape, stack in stacks.items()
    }
    return [ops.concatenate([next(found[tuple(x.shape)]) for x in xs], axis=1) for xs in parts]


def _orthogonalize_stack(x: Any, product_dtype: str) -> Any:
    """Moves the singular values of a stack of matrices (n, rows, columns) to about 1."""
    is_tall = x.shape[1] > x.shape[2]
    if is_tall:  # the products are then as small as possible
        x = ops.swapaxes(x, 1, 2)
    norm = ops.sqrt(ops.sum(ops.square(x), axis=(1, 2), keepdims=True))
    x = ops.cast(ops.where(norm > 0, x / norm, 0.0), product_dtype)
    for a, b, c in COEFFICIENTS:
        # Not a product with a transpose, which takes XLA for CPU twice the time.
        gram = ops.einsum("nik,njk->nij", x, x)
        x = a * x + ops.matmul(b * gram + c * ops.matmul(gram, gram), x)
    if is_tall:
        x = ops.swapaxes(x, 1, 2)
    return ops.cast(x, "float32")


def compute_muon_changes(
    gradients: Sequence[Any],
    momentums: Sequence[Any],
    n_joint: Sequence[int],
    orthogonalize: Callable[[Sequence[Any], Sequence[int]], list[Any]] = orthogonalize,
) -> list[Any]:
    """Returns what Muon subtracts from matrices, divided by the learning rate.

        O = orthogonalize(.95 m + .05 g)  (Nesterov);  the change is .2 sqrt(max(rows, columns)) O

    Its root mean square is about .2, as with Adam, so both can use the same learning rate.

    Args:
        gradients: g of each, (rows, n_joint columns).
        momentums: m of each, already updated with this gradient: m = .95 m + .05 g.
        n_joint: The number of matrices side by side in each.
        orthogonalize: The function `orthogonalize`, or a compiled form of it.

    References:
        Jordan et al. 2024, Muon, https://kellerjordan.github.io/posts/muon; the factor is that of
        Liu et al. 2025, https://arxiv.org/abs/2502.16982, equation 4.
    """
    directions = [
        gradient + MOMENTUM * (momentum - gradient)
        for gradient, momentum in zip(gradients, momentums, strict=True)
    ]
    changes = []
    for matrix, n in zip(orthogonalize(directions, n_joint), n_joint, strict=True):
        rows, columns = matrix.shape
        changes.append(SCALE * max(rows, columns // n) ** 0.5 * matrix)
    return changes
