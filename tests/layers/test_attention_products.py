"""Products with gradients of their own, beside einsums whose gradients TensorFlow derives."""

import numpy as np
import pytest
import tensorflow as tf

from txl_tf.layers.attention_products import score_distances, score_keys, sum_values

B, T, S, N, H = 2, 3, 7, 5, 4
PRODUCTS = {
    score_keys: ("btnh,bsnh->bnts", (B, T, N, H), (B, S, N, H)),
    score_distances: ("btnh,snh->bnts", (B, T, N, H), (S, N, H)),
    sum_values: ("bnts,bsnh->btnh", (B, N, T, S), (B, S, N, H)),
}


def differentiate(function, inputs, factors, jit):
    """Returns a product and its gradients, of a sum that the factors weigh."""

    @tf.function(jit_compile=jit)
    def compute(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            product = function(*inputs)
            total = tf.reduce_sum(product * factors)
        return product, *tape.gradient(total, inputs)

    return compute(*inputs)


@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("function", PRODUCTS, ids=lambda function: function.__name__)
def test_a_product_and_its_gradients_are_those_of_the_einsum(function, jit):
    rng = np.random.default_rng(3)
    equation, *shapes = PRODUCTS[function]
    inputs = [tf.constant(rng.normal(size=shape), tf.float32) for shape in shapes]
    factors = tf.constant(rng.normal(size=np.einsum(equation, *inputs).shape), tf.float32)
    found = differentiate(function, inputs, factors, jit)
    expected = differentiate(lambda *x: tf.einsum(equation, *x), inputs, factors, jit)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)  # sums of 35 terms, float32


@pytest.mark.parametrize("function", PRODUCTS, ids=lambda function: function.__name__)
def test_no_product_of_the_backward_pass_transposes_the_scores(function):
    """Such a product, over the queries with keys in front, is what XLA for CPU is slow at."""
    equation, *shapes = PRODUCTS[function]
    inputs = [tf.zeros(shape) for shape in shapes]

    @tf.function(jit_compile=True)
    def compute(upstream, *inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            total = tf.reduce_sum(function(*inputs) * upstream)
        return tape.gradient(total, inputs)

    upstream = tf.zeros(np.einsum(equation, *inputs).shape)
    compiled = compute.experimental_get_compiler_ir(upstream, *inputs)(stage="optimized_hlo")
    results = [line.split(" = ")[1] for line in compiled.splitlines() if " dot(" in line]
    shapes = {result.partition("{")[0] for result in results}
    assert shapes
    assert f"f32[{B},{N},{S},{H}]" not in shapes
    assert f"f32[{N},{S},{H}]" not in shapes
