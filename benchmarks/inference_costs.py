"""What reading a segment takes by formula: operations, and bytes from the main memory.

A multiply-add counts as two operations, and scores of masked keys count, as in every dense
attention. Letters as in docs/design.md; S = M + T.
"""

from benchmarks.works import Shape

FLOAT_BYTES = 4


def count_flops_per_token(shape: Shape, *, cached: bool) -> float:
    """Returns the operations of the matrix products of a token.

    Args:
        shape: The model and its segment.
        cached: Whether keys, values and positions are kept, or computed again for each segment
            from the hidden states of the memory.
    """
    keys, d_model = shape.tgt_len + shape.mem_len, shape.d_model
    projections = 2 * d_model * 4 * d_model  # q, k, v, output
    attention = 3 * 2 * keys * d_model  # content, position, values
    feed_forward = 2 * 2 * d_model * shape.d_inner
    layer = float(projections + attention + feed_forward)
    if not cached:
        memory = 2 * shape.mem_len * d_model * 2 * d_model  # k and v of a row's memory
        positions = 2 * keys * d_model**2  # for all rows together
        layer += (memory + positions / shape.batch_size) / shape.tgt_len
    return shape.n_layer * layer + _count_softmax_flops(shape)


def _count_softmax_flops(shape: Shape) -> float:
    """Returns the operations of a token's losses, or of all its log-probabilities if it is drawn.

    Tokens are drawn uniformly, as the benchmark draws them; a chunk of a tail bin counts as full.
    """
    from txl_tf.training.costs import is_projected  # imports TensorFlow

    model, _ = shape.make_configs(0.0)
    rows = [high - low for low, high in model.bins]
    shares = (1.0, *shape.list_bin_shares("uniform")[1:])
    if shape.tgt_len == 1:
        shares = (1.0,) * len(rows)
    rows[0] += len(model.cutoffs)
    return sum(
        2
        * share
        * model.bin_width(index)
        * (rows[index] + model.d_model * is_projected(model, index))
        for index, share in enumerate(shares)
    )


def count_bytes_per_token(shape: Shape) -> float:
    """Returns the bytes that must be read for a token with a cache, float32, at the very least.

    For each segment that is every weight once, the products of the positions once, and keys and
    values of each row once. Whatever is written, and whatever is read twice, comes on top.
    """
    keys, d_model = shape.tgt_len + shape.mem_len, shape.d_model
    weights = 4 * d_model**2 + 2 * d_model * shape.d_inner
    states = keys * d_model * (1 + 2 * shape.batch_size)  # positions; keys and values
    model, _ = shape.make_configs(0.0)
    tables = sum((high - low) * model.bin_width(k) for k, (low, high) in enumerate(model.bins))
    numbers = shape.n_layer * (weights + states) + tables
    return FLOAT_BYTES * numbers / (shape.batch_size * shape.tgt_len)
