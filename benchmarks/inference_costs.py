"""Operations, and bytes read from the main memory, of reading a segment, by formula.

A multiply-add counts as two operations, and scores of masked keys count, as in every dense
attention. Letters as in docs/design.md; S = M + T.
"""

from benchmarks.step_costs import projects_hidden
from benchmarks.works import Shape
from txl_tf.config import ModelConfig
from txl_tf.config.encodings import ENCODINGS

# Bytes of a number of the kernels, and of the keys, values and positions of a segment.
WIDTHS = {"float32": (4, 4), "bfloat16": (2, 2), "int8": (1, 4)}


def count_flops_per_token(shape: Shape) -> float:
    """Returns the operations of the matrix products of a token that is read with a KV cache.

    If single tokens are read, all bins of the softmax count. Otherwise a token counts its own bin,
    drawn uniformly, as the benchmark draws it; a chunk of a tail bin counts as full.
    """
    model, _ = shape.make_configs(0.0)

    def count(n_bins: int) -> float:
        return count_cached_flops(model, shape.mem_len, tgt_len=shape.tgt_len, n_bins=n_bins)

    flops = count(1)
    for index, share in enumerate(shape.list_bin_shares("uniform")[1:], 1):
        flops += (1.0 if shape.tgt_len == 1 else share) * (count(index + 1) - count(index))
    return flops


def count_bytes_per_token(shape: Shape, precision: str = "float32") -> float:
    """Returns the bytes that must be read for a token with a cache, at the very least.

    For each segment that is every weight once, the products of the positions once, and keys and
    values of each row once. Whatever is written, and whatever is read twice, comes on top. Of the
    tables of an adaptive softmax, single tokens need only the head: nearly no token that a model
    with random weights draws is in another bin.

    Args:
        shape: The model and its segment.
        precision: One of `WIDTHS`.
    """
    keys, d_model = shape.tgt_len + shape.mem_len, shape.d_model
    weights = 4 * d_model**2 + 2 * d_model * shape.d_inner
    states = keys * d_model * (1 + 2 * shape.batch_size)  # positions; keys and values
    model, _ = shape.make_configs(0.0)
    bins = model.bins[:1] if shape.tgt_len == 1 else model.bins
    tables = sum((high - low) * model.bin_width(k) for k, (low, high) in enumerate(bins))
    of_kernel, of_state = WIDTHS[precision]
    if shape.tgt_len == 1:
        of_state = 4  # the loop of generation keeps float32 on CPUs
    n_bytes = of_kernel * (shape.n_layer * weights + tables) + of_state * shape.n_layer * states
    return n_bytes / (shape.batch_size * shape.tgt_len)


def count_cached_flops(model: ModelConfig, mem_len: int, *, tgt_len: int, n_bins: int) -> float:
    """Returns the operations of the matrix products of a token that is read with a KV cache.

    Args:
        model: The model.
        mem_len: Memory length M.
        tgt_len: Number of tokens T that are read at once; each sees M + T keys.
        n_bins: Number of bins of the softmax that are computed, the head first.
    """
    d_model, d_heads = model.d_model, model.n_head * model.d_head
    position_width = model.n_head * ENCODINGS[model.encoding].get_width(model)
    widths = 2 * d_heads + position_width  # content and values, and positions
    n_tables = len(model.bins) if model.div_val > 1 else 1
    embedded = sum(
        model.bin_width(index) for index in range(n_tables) if model.has_embedding_projection(index)
    )
    softmax = 0
    for index, (low, high) in enumerate(model.bins[:n_bins]):
        n_rows = high - low + (len(model.cutoffs) if index == 0 else 0)
        n_rows += d_model * projects_hidden(model, index)
        softmax += model.bin_width(index) * n_rows
    products = model.n_layer * (4 * d_model * d_heads + 2 * d_model * model.d_inner)
    products += model.n_layer * (mem_len + tgt_len) * widths
    return 2.0 * (d_model * embedded + products + softmax)
