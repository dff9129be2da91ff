"""The matrix products of a work alone: how fast the machine is on their shapes."""

import math
import statistics
from typing import NamedTuple

from benchmarks.works import Shape, repeat
from txl_tf.quiet_start import quiet_start


class Product(NamedTuple):
    """A product of `rows` x `inner` by `inner` x `columns` matrices, of `batch` pairs at once."""

    batch: int
    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        """The floating-point operations; a multiply-add counts as two."""
        return 2 * math.prod(self)

    def list_gradients(self) -> list["Product"]:
        """Returns the products that give the gradients of the first and of the second factor."""
        batch, rows, inner, columns = self
        return [Product(batch, rows, columns, inner), Product(batch, inner, rows, columns)]


def list_products(shape: Shape, *, trains: bool) -> list[Product]:
    """Returns the products of a segment: forward, and in training backward, too.

    Training also projects the memory and the positions; otherwise they are in a cache. Ids are
    drawn uniformly. Projections of embeddings and of an adaptive softmax, and what the softmax
    computes twice, are left out.
    """
    model, _ = shape.make_configs(0.0)
    d_model, d_inner, d_head = shape.d_model, shape.d_inner, model.d_head
    n_tokens, n_keys = shape.batch_size * shape.tgt_len, shape.mem_len + shape.tgt_len
    n_heads = shape.batch_size * shape.n_head
    layer = [
        Product(1, n_tokens, d_model, 3 * d_model),  # queries, keys and values
        Product(n_heads, shape.tgt_len, d_head, n_keys),  # content scores
        Product(shape.n_head, n_tokens, d_head, n_keys),  # position scores
        Product(n_heads, shape.tgt_len, n_keys, d_head),  # attention times values
        Product(1, n_tokens, d_model, d_model),  # output
        Product(1, n_tokens, d_model, d_inner),
        Product(1, n_tokens, d_inner, d_model),
    ]
    products = shape.n_layer * layer
    shares = (1.0, *shape.list_bin_shares("uniform")[1:])
    for index, ((low, high), share) in enumerate(zip(model.bins, shares, strict=True)):
        n_scored = math.ceil(share * n_tokens)
        products.append(Product(1, n_scored, model.bin_width(index), high - low))
    if trains:
        products += [gradient for product in products for gradient in product.list_gradients()]
        memory = Product(1, shape.batch_size * shape.mem_len, d_model, 2 * d_model)
        positions = Product(1, n_keys, d_model, d_model)
        for product in (memory, positions):  # constants: only the weights have gradients
            products += shape.n_layer * [product, product.list_gradients()[1]]
    return products


def measure_products(shape: Shape, dtype: str, seconds: float, *, trains: bool) -> float:
    """Returns the tokens per second of the products alone; called in a new process."""
    with quiet_start():
        import tensorflow as tf

    pairs = []
    for batch, rows, inner, columns in list_products(shape, trains=trains):
        lead = () if batch == 1 else (batch,)
        sizes = ((*lead, rows, inner), (*lead, inner, columns))
        pairs.append([tf.Variable(tf.ones(size, dtype)) for size in sizes])

    @tf.function(autograph=False)
    def multiply() -> list[tf.Tensor]:
        products = [tf.matmul(left, right) for left, right in pairs]
        return [product[..., :1] for product in products]

    durations = repeat(multiply, seconds)
    return shape.batch_size * shape.tgt_len / statistics.median(durations)
