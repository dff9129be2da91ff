import pytest

from benchmarks import train_step
from benchmarks.compare import Way, Work, estimate_limit, measure
from benchmarks.inference_costs import count_flops_per_token
from benchmarks.products import Product, list_products, measure_products
from benchmarks.works import SHAPES, Shape

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


@pytest.mark.parametrize("name", ["bytes", "bytes_large", "words"])
def test_the_products_alone_are_those_of_the_limit(name):
    shape = SHAPES[name]
    flops = sum(product.flops for product in list_products(shape, trains=True))
    assert flops == pytest.approx(train_step.count_flops(shape, "uniform", 1), rel=0.1)
    shape = shape._replace(mem_len=640)
    flops = sum(product.flops for product in list_products(shape, trains=False))
    expected = count_flops_per_token(shape) * shape.batch_size * shape.tgt_len
    assert flops == pytest.approx(expected, rel=0.02)


def test_gradients_of_a_product_have_the_shapes_of_its_factors():
    product = Product(batch=2, rows=3, inner=4, columns=5)
    first, second = product.list_gradients()
    assert (first.rows, first.columns) == (3, 4)
    assert (second.rows, second.columns) == (4, 5)
    assert first.flops == second.flops == product.flops


def test_products_are_measured_alone():
    assert measure_products(SMALL, "bfloat16", 0.0, trains=True) > 0
