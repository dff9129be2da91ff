"""The kernels for TPUs, interpreted on the JAX backend, beside the plain operations."""

import numpy as np
import pytest
from on_jax import run_on_jax

NAMES = ("attended", "segment", "memory", "distance_keys", "content_bias", "position_bias")
CASES = (
    *("plain", "blocks", "no_memory", "same_length", "counts_self", "documents"),
    "long_memory",
)


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    return run_on_jax("jax_kernels.py", {}, tmp_path_factory.mktemp("kernels"))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_kernels_compute_what_plain_operations_do(case, name, computed):
    kernel, plain = (computed[f"{case}/{kind}/{name}"] for kind in ("kernel", "plain"))
    assert kernel.shape == plain.shape
    assert plain.size == 0 or np.abs(plain).max() > 0
    np.testing.assert_allclose(kernel, plain, rtol=2e-5, atol=2e-5)
