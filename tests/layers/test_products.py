import re

import numpy as np
import pytest
import tensorflow as tf

from txl_tf.layers.fused.for_xla import matmul_rows, matmul_rows_transposed

RNG = np.random.default_rng(3)
KERNEL = RNG.normal(size=(516, 523)).astype("float32")


@pytest.mark.parametrize("shape", [(516,), (1, 516), (1, 1, 516), (2, 1, 516), (0, 516)], ids=str)
def test_rows_times_a_kernel_are_the_product_of_matrices(shape):
    rows = RNG.normal(size=shape).astype("float32")
    found = np.asarray(matmul_rows(tf.constant(rows), tf.constant(KERNEL)))
    np.testing.assert_allclose(found, rows @ KERNEL, rtol=0, atol=1e-4)  # 516 terms, float32
    transposed = matmul_rows_transposed(tf.constant(rows), tf.constant(KERNEL.T))
    np.testing.assert_allclose(transposed, rows @ KERNEL, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "width", "is_in_parts"),
    [((1, 1), 516, True), ((2, 1), 516, False), ((1,), 515, False), ((1,), 256, False)],
)
def test_a_single_row_and_a_large_kernel_are_multiplied_in_parts(shape, width, is_in_parts):
    """A batch of products is what XLA gives to several threads."""

    def multiply(rows, kernel):
        return matmul_rows(rows, kernel)

    function = tf.function(multiply, jit_compile=True, autograph=False)
    places = tf.zeros((*shape, width)), tf.constant(KERNEL[:width])
    compiled = function.experimental_get_compiler_ir(*places)(stage="optimized_hlo")
    assert ("lhs_batch_dims" in compiled) == is_in_parts


def test_the_kernel_of_a_single_row_is_not_copied_into_another_order():
    def read(row, kernel):
        """As generation does, where nothing can be made ready before the loop."""
        return tf.while_loop(
            lambda step, _: step < 3,
            lambda step, row: (step + 1, row + matmul_rows_transposed(row, kernel)[:, :516]),
            (0, row),
        )

    function = tf.function(read, jit_compile=True, autograph=False)
    places = tf.zeros((1, 516)), tf.constant(KERNEL.T)
    compiled = function.experimental_get_compiler_ir(*places)(stage="optimized_hlo")
    assert not re.search(r"f32\[516,523\]\S* (transpose|copy)", compiled)
