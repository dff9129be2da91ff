"""Relative attention on a TPU, as kernels that keep the scores on the chip.

The scores of a head, (T, S) for each row, are many times larger than its queries, keys and values.
Here they never leave the fast memory (FlashAttention, Dao et al. 2022): a block of queries is
scored against all keys at once, and the backward pass recomputes its scores. The left shift of the
position scores (paper, appendix B) rolls each row by one entry more than the previous row.

Letters: B rows, N heads, T segment, S keys, padded to K; Q queries of a block, H head size.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from txl_tf.layers.attention import MASKED_SCORE
from txl_tf.layers.dropout import MULTIPLIERS, WEYL_STEP

_LANES = 128
_ROWS = 16  # of a tile in bfloat16
_BLOCK_ENTRIES = 128 * 2048  # of the scores of a block
MOST_QUERIES = 512
_FAST_BYTES = 100 * 2**20  # of the memory on the chip


class Settings(NamedTuple):
    """What a kernel is compiled for.

    Args:
        tgt_len: T, without the padding.
        n_keys: S, without the padding.
        rate: The dropout rate of the weights; 0 for none.
        interpret: Whether to run the kernels on any machine, slowly, for tests.
    """

    tgt_len: int
    n_keys: int
    rate: float
    interpret: bool = False


def choose_block(tgt_len, n_keys):
    """Returns Q, so that the scores of a block fit into the fast memory several times."""
    most = min(_BLOCK_ENTRIES // _pad(n_keys, _LANES), MOST_QUERIES)
    if tgt_len <= most:
        return tgt_len
    n_blocks = -(-tgt_len // most)
    return _pad(-(-tgt_len // n_blocks), _ROWS)


def find_padding(tgt_len, n_keys):
    """Returns the number of queries and of keys that must be added."""
    return _pad(tgt_len, choose_block(tgt_len, n_keys)) - tgt_len, _pad(n_keys, _LANES) - n_keys


def _pad(size, multiple):
    return -(-size // multiple) * multiple


@functools.partial(jax.jit, static_argnames="settings")
def attend(queries, keys, values, distances, biases, bounds, seed, *, settings):
    """Returns the values that each query attends to.

    Args:
        queries: (B, N, T, H), padded to whole blocks.
        keys: (B, N, K, H).
        values: (B, N, K, H).
        distances: (N, K, H), W_{k,R} R by head, from the largest distance on, then padding.
        biases: (N, 2, H), u and v.
        bounds: (1 or B, T, 2) int32: the first key that a query sees, and the one after the last.
        seed: (2,) uint32, the keys of the hash of the dropout mask.
        settings: The `Settings`.

    Returns:
        (B, N, T, H) in the dtype of the queries.
    """
    grid, specs = _make_grid(queries, keys, bounds, settings)
    return pl.pallas_call(
        functools.partial(_attend_block, settings=settings, n_head=queries.shape[1]),
        grid=grid,
        in_specs=specs,
        out_specs=specs[1],
        out_shape=jax.ShapeDtypeStruct(queries.shape, queries.dtype),
        **_options(settings, queries, keys, n_products=3),
    )(seed, queries, keys, values, distances, biases, bounds)


@functools.partial(jax.jit, static_argnames="settings")
def differentiate(queries, keys, values, distances, biases, bounds, seed, upstream, *, settings):
    """Returns the gradients of the first five arguments of `attend`.

    `upstream` (B, N, T, H) is the gradient of the result; the others are those of `attend`.
    """
    grid, specs = _make_grid(queries, keys, bounds, settings)
    n_keys, d_head = keys.shape[2:]
    outputs = (queries, keys, values, distances, biases)
    return pl.pallas_call(
        functools.partial(_differentiate_block, settings=settings, n_head=queries.shape[1]),
        grid=grid,
        in_specs=[*specs, specs[1]],
        out_specs=specs[1:6],
        out_shape=[jax.ShapeDtypeStruct(each.shape, each.dtype) for each in outputs],
        scratch_shapes=[
            *(pltpu.VMEM((n_keys, d_head), jnp.float32) for _ in range(3)),
            pltpu.VMEM((2, d_head), jnp.float32),
        ],
        **_options(settings, queries, keys, n_products=8),
    )(seed, queries, keys, values, distances, biases, bounds, upstream)


def _make_grid(queries, keys, bounds, settings):
    """Returns the grid (heads, rows, blocks of queries), and the blocks of the arguments."""
    n_rows, n_head, tgt_len, d_head = queries.shape
    block = choose_block(settings.tgt_len, settings.n_keys)
    per_row = int(bounds.shape[0] > 1)
    keys_spec = pl.BlockSpec((1, 1, keys.shape[2], d_head), lambda n, b, _: (b, n, 0, 0))
    specs = [
        pl.BlockSpec(memory_space=pltpu.SMEM),
        pl.BlockSpec((1, 1, block, d_head), lambda n, b, q: (b, n, q, 0)),
        keys_spec,
        keys_spec,
        pl.BlockSpec((1, keys.shape[2], d_head), lambda n, *_: (n, 0, 0)),
        pl.BlockSpec((1, 2, d_head), lambda n, *_: (n, 0, 0)),
        pl.BlockSpec((1, block, 2), lambda _, b, q: (b * per_row, q, 0)),
    ]
    return (n_head, n_rows, tgt_len // block), specs


def _options(settings, queries, keys, *, n_products):
    """Returns the options of a kernel with products of (T, K) scores over H."""
    if settings.interpret:
        return {"interpret": True}
    n_scores = queries.size // queries.shape[3] * keys.shape[2]
    n_values = (queries.size + 2 * keys.size) * (1 if n_products == 3 else 2)
    return {
        "compiler_params": pltpu.CompilerParams(
            # A head's gradients are sums over rows and blocks, which are processed sequentially.
            dimension_semantics=("parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=_FAST_BYTES,
        ),
        "cost_estimate": pl.CostEstimate(
            flops=2 * n_products * n_scores * queries.shape[3],
            transcendentals=n_scores,
            bytes_accessed=n_values * queries.dtype.itemsize,
        ),
    }


def _attend_block(seed, queries, keys, values, distances, biases, bounds, out, *, settings, n_head):
    _, _, weights, keep = _weigh(seed, queries, keys, distances, biases, bounds, settings, n_head)
    dropped = _drop(weights, keep, settings).astype(out.dtype)
    out[0, 0] = _multiply(dropped, values[0, 0], (1, 0)).astype(out.dtype)


def _differentiate_block(seed, *refs, settings, n_head):
    queries, keys, values, distances, biases, bounds, upstream = refs[:7]
    d_queries, d_keys, d_values, d_distances, d_biases = refs[7:12]
    sum_keys, sum_values, sum_distances, sum_biases = refs[12:]
    _, row, block = (pl.program_id(axis) for axis in range(3))
    dtype, d_head = queries.dtype, queries.shape[3]

    @pl.when(block == 0)
    def _():
        sum_keys[...], sum_values[...] = (jnp.zeros_like(sum_keys) for _ in range(2))

    @pl.when(jnp.logical_and(block == 0, row == 0))
    def _():
        sum_distances[...], sum_biases[...] = map(jnp.zeros_like, (sum_distances, sum_biases))

    content_queries, position_queries, weights, keep = _weigh(
        seed, queries, keys, distances, biases, bounds, settings, n_head
    )
    d_attended = upstream[0, 0]
    sum_values[...] += _multiply(_drop(weights, keep, settings).astype(dtype), d_attended, (0, 0))
    d_weights = _drop(_multiply(d_attended, values[0, 0], (1, 1)), keep, settings)
    slopes = jnp.sum(d_weights * weights, axis=1, keepdims=True)
    d_scores = weights * (d_weights - slopes)
    d_position = _unshift(d_scores.astype(dtype), settings)
    d_content = d_scores.astype(dtype)
    # The rows of `d_position` come in reverse order.
    d_content_queries = _multiply(d_content, keys[0, 0], (1, 0))
    d_position_queries = _multiply(d_position, distances[0], (1, 0))
    sum_keys[...] += _multiply(d_content, content_queries, (0, 0))
    sum_distances[...] += _multiply(d_position, _reverse(position_queries).astype(dtype), (0, 0))
    sum_biases[...] += d_head**-0.5 * jnp.stack(
        [jnp.sum(d_content_queries, axis=0), jnp.sum(d_position_queries, axis=0)]
    )
    d_position_queries = _reverse(d_position_queries)
    d_queries[0, 0] = ((d_content_queries + d_position_queries) * d_head**-0.5).astype(dtype)

    @pl.when(block == pl.num_programs(2) - 1)
    def _():
        d_keys[0, 0] = sum_keys[...].astype(dtype)
        d_values[0, 0] = sum_values[...].astype(dtype)

    @pl.when(jnp.logical_and(block == pl.num_programs(2) - 1, row == pl.num_programs(1) - 1))
    def _():
        d_distances[0] = sum_distances[...].astype(dtype)
        d_biases[0] = sum_biases[...].astype(dtype)


def _weigh(seed, queries, keys, distances, biases, bounds, settings, n_head):
    """Returns the two kinds of queries (Q, H), the weights (Q, K), and what dropout keeps."""
    query = queries[0, 0].astype(jnp.float32)
    content_queries, position_queries = (
        ((query + biases[0, index : index + 1]) * query.shape[1] ** -0.5).astype(queries.dtype)
        for index in range(2)
    )
    content = _multiply(content_queries, keys[0, 0], (1, 1))
    columns = jax.lax.broadcasted_iota(jnp.int32, content.shape, 1)
    position = _shift(_multiply(position_queries, distances[0], (1, 1)), settings)
    visible = bounds[0]
    is_seen = jnp.logical_and(columns >= visible[:, :1], columns < visible[:, 1:2])
    scores = jnp.where(is_seen, content + position, MASKED_SCORE)
    weights = jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True))
    weights /= jnp.sum(weights, axis=1, keepdims=True)
    keep = _draw(seed, columns, settings, n_head) if settings.rate else None
    return content_queries, position_queries, weights, keep


def _shift(position, settings):
    """Moves scores (Q, K) of distances to the keys."""
    n_queries, n_keys = position.shape
    first = pl.program_id(2) * n_queries
    start = (n_keys - settings.tgt_len + 1 + first) % n_keys
    return pltpu.roll(position, start, 1, stride=1, stride_axis=0)


def _unshift(d_position, settings):
    """Moves gradients (Q, K) of scores back to the distances; the rows come in reverse order.

    A roll can move each row by one entry more than the previous row, but not by one entry less.
    """
    n_queries, n_keys = d_position.shape
    first = pl.program_id(2) * n_queries
    start = (n_keys + settings.tgt_len - n_queries - first) % n_keys
    reverse = _reverse(d_position).astype(jnp.float32)
    return pltpu.roll(reverse, start, 1, stride=1, stride_axis=0).astype(d_position.dtype)


def _reverse(rows):
    """Returns rows (Q, ...) in reverse order, in float32: a product with ones off the diagonal."""
    size = rows.shape[0]
    index = jax.lax.broadcasted_iota(jnp.int32, (size, size), 0)
    column = jax.lax.broadcasted_iota(jnp.int32, (size, size), 1)
    ones = (index + column == size - 1).astype(rows.dtype)
    return _multiply(ones, rows, (1, 0))


def _multiply(left, right, axes):
    """Returns the product of two matrices over an axis of each, with sums in float32."""
    contracted = (((axes[0],), (axes[1],)), ((), ()))
    precision = jax.lax.Precision.HIGHEST if left.dtype == jnp.float32 else None
    return jax.lax.dot_general(
        left, right, contracted, precision=precision, preferred_element_type=jnp.float32
    )


def _drop(values, keep, settings):
    if keep is None:
        return values
    return jnp.where(keep, values * (1 / (1 - settings.rate)), 0.0)


def _draw(seed, columns, settings, n_head):
    """Returns the block's part of the mask that `make_keep_mask` makes for (B, N, T, S)."""
    head, row, block = (pl.program_id(axis) for axis in range(3))
    n_queries = columns.shape[0]
    query = block * n_queries + jax.lax.broadcasted_iota(jnp.int32, columns.shape, 0)
    index = ((row * n_head + head) * settings.tgt_len + query) * settings.n_keys + columns
    bits = index.astype(jnp.uint32) * jnp.uint32(WEYL_STEP) + seed[0]
    bits = (bits ^ (bits >> 16)) * jnp.uint32(MULTIPLIERS[0])
    bits = bits ^ (bits >> 15)
    bits = (bits ^ seed[1]) * jnp.uint32(MULTIPLIERS[1])
    return bits >= jnp.uint32(round(settings.rate * 2**32))
