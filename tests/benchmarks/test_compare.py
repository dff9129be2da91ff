import pytest

from benchmarks import train_step
from benchmarks.compare import Way, Work, estimate_limit, measure
from benchmarks.works import Shape

SMALL = Shape(1, 8, 2, 8, 5, 6, 2, 23)
WORKS = {
    "train": Work("train", SMALL),
    "eval": Work("eval", SMALL),
    "generate": Work("generate", SMALL._replace(tgt_len=1, batch_size=1)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"), [("train", "bfloat16"), ("eval", "float32"), ("generate", "int8")]
)
def test_a_work_is_measured_in_a_precision(name, precision, monkeypatch):
    monkeypatch.setattr(train_step, "CALL_SECONDS", 0.01)
    monkeypatch.setattr(train_step, "N_IDS", 5000)
    monkeypatch.setattr(train_step, "measure_peak", lambda: 1.0)
    assert measure(WORKS[name], Way(precision, jit="none"), 0.0) > 0


def test_the_limit_is_the_lower_of_products_and_memory():
    work = WORKS["generate"]
    machine = {"float32_flops_per_second": 1e12, "copied_bytes_per_second": 1e6}
    limit, cause = estimate_limit(work, "int8", machine)
    # q, k, v and output, feed-forward, and the table in bytes; 7 positions, keys and values.
    assert limit == 1e6 / (4 * 8 * 8 + 2 * 8 * 8 + 23 * 8 + 4 * 7 * 8 * 3)
    assert cause == "memory"
    slow = machine | {"float32_flops_per_second": 1e3}
    assert estimate_limit(work, "int8", slow)[1] == "products"
