"""The operations of which the stateless step consists; each format defines them once."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

Tensor = Any  # of a format
MIN_INT8_SIZE = 1024  # matrices with fewer entries stay float32, as LiteRT's converter decides


class Matrix(NamedTuple):
    """A constant to multiply with, or to take rows of; a format may store it in fewer bits.

    Args:
        name: Its name, unique within the step.
        rows: (L, K) float32, stored by its L outputs; or (N, L, K), such a matrix for each head.
    """

    name: str
    rows: np.ndarray


class Norm(NamedTuple):
    """A LayerNorm over the last axis.

    Args:
        gain: (D,) float32.
        offset: (D,) float32.
        epsilon: What it adds to the variance.
    """

    gain: np.ndarray
    offset: np.ndarray
    epsilon: float


class Operations(Protocol):
    """What a format must be able to do. All numbers are float32, but ids and lengths are int32."""

    def constant(self, value: ArrayLike) -> Tensor:
        """Returns a constant, float32 or int32."""

    def multiply_rows(self, inputs: Tensor, matrix: Matrix) -> Tensor:
        """Returns the products (..., L) of inputs (..., K) and the rows of a matrix."""

    def take_rows(self, matrix: Matrix, indices: Tensor) -> Tensor:
        """Returns rows (n, K) of a matrix (L, K) at indices (n,) int32."""

    def take_columns(self, inputs: Tensor, indices: np.ndarray) -> Tensor:
        """Returns the entries of the last axis at constant indices, (k,) int32."""

    def matmul(self, left: Tensor, right: Tensor, *, transpose_right: bool = False) -> Tensor:
        """Returns the products of two batches of matrices."""

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        """Returns the sums, with broadcasting, as for the next ones."""

    def multiply(self, left: Tensor, right: Tensor) -> Tensor:
        """Returns the products of the entries."""

    def minimum(self, left: Tensor, right: Tensor) -> Tensor:
        """Returns the smaller entries."""

    def maximum(self, left: Tensor, right: Tensor) -> Tensor:
        """Returns the larger entries."""

    def equal(self, left: Tensor, right: Tensor) -> Tensor:
        """Returns 1.0 where two integers are equal, else 0.0."""

    def to_float(self, integers: Tensor) -> Tensor:
        """Returns integers as float32."""

    def softmax(self, scores: Tensor) -> Tensor:
        """Returns the softmax over the last axis."""

    def log_softmax(self, logits: Tensor) -> Tensor:
        """Returns the logarithm of the softmax over the last axis."""

    def normalize(self, states: Tensor, norm: Norm) -> Tensor:
        """Returns LayerNorm over the last axis."""

    def reshape(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """Returns the entries in another shape."""

    def transpose(self, tensor: Tensor, axes: Sequence[int]) -> Tensor:
        """Returns the tensor with its axes in another order."""

    def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        """Returns tensors joined along an axis."""

    def slice(self, tensor: Tensor, axis: int, start: int, stop: int) -> Tensor:
        """Returns a part of an axis."""
