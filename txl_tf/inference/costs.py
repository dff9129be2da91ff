"""The memory of generation and the operations of a token, computed from configs.

Letters as in `txl_tf.training.flops`; W = N H.
"""

from txl_tf.config import ModelConfig
from txl_tf.inference.token_loop import MAX_SINGLE_ROWS

FLOAT_BYTES = 4


def estimate_generation_memory(
    model: ModelConfig, mem_len: int, *, n_texts: int = 1, tgt_len: int = 1, dtype: str = "float32"
) -> dict[str, int]:
    """Returns the memory of a model that continues texts in a loop that XLA compiles, by part.

    Args:
        model: The model.
        mem_len: Memory length M; the ring buffers have a slot more, for the new token.
        n_texts: Number of texts B.
        tgt_len: The largest number of tokens T in a segment of a prompt.
        dtype: The dtype of the kernels and tables, one of `KERNEL_DTYPES`.

    Returns:
        Bytes by part. The weights. The keys and values, (B, M + 1, W) each in a layer, in float32
        as on CPUs, before and after a call of the loop. The positions: W_r R for single tokens, and
        for the segments of prompts. The softmax: four tensors (B, V) float32 from the logits to the
        choice, and two of bool for the tokens that a text contains. Kernels that are restored to
        float32 for a call, as `TokenLoop` does for more texts than `MAX_SINGLE_ROWS`.
    """
    n_slots, d_heads = mem_len + 1, model.n_head * model.d_head
    n_read = 1 + mem_len + tgt_len
    read_bytes = 2 if dtype == "bfloat16" else FLOAT_BYTES  # segments are computed in bfloat16, too
    n_kernels, n_distances = _count_kernels(model)
    is_restored = dtype != "float32" and n_texts > MAX_SINGLE_ROWS
    return {
        "weights": _count_weight_bytes(model, dtype),
        "keys and values": 4 * FLOAT_BYTES * model.n_layer * n_texts * n_slots * d_heads,
        "positions": model.n_layer * d_heads * (n_slots * FLOAT_BYTES + n_read * read_bytes),
        "softmax": n_texts * model.n_token * (4 * FLOAT_BYTES + 2),
        "restored kernels": FLOAT_BYTES * (n_kernels - n_distances) * is_restored,
    }


def _count_kernels(model: ModelConfig) -> tuple[int, int]:
    """Returns the number of entries of all kernels and tables, and of those for distances."""
    n_projected = model.n_layer * model.d_model * model.n_head * model.d_head
    n_distances = n_projected * (model.encoding == "relative")
    n_kernels = 4 * n_projected + n_distances + 2 * model.n_layer * model.d_model * model.d_inner
    for index, (low, high) in enumerate(model.bins):
        n_kernels += (high - low) * model.bin_width(index)
    return n_kernels, n_distances


def _count_weight_bytes(model: ModelConfig, dtype: str) -> int:
    """Returns the bytes of all weights, of which kernels and tables may be narrower."""
    n_kernels, _ = _count_kernels(model)
    others = FLOAT_BYTES * (model.count_parameters() - n_kernels)
    if dtype == "float32":
        return FLOAT_BYTES * n_kernels + others
    if dtype == "bfloat16":
        return 2 * n_kernels + others
    d_heads = model.n_head * model.d_head
    n_outputs = model.n_layer * (4 * d_heads + 2 * model.d_model + model.d_inner) + model.n_token
    return n_kernels + FLOAT_BYTES * n_outputs + others  # each output has a scale


def count_token_flops(
    model: ModelConfig, mem_len: int, *, tgt_len: int = 1, n_bins: int | None = None
) -> dict[str, float]:
    """Returns the operations of the matrix products of a token that is read with a KV cache.

    A multiply-add counts as two operations, and masked scores count.

    Args:
        model: The model.
        mem_len: Memory length M.
        tgt_len: Number of tokens T that are read at once; each sees M + T keys.
        n_bins: Number of bins of the softmax that are computed, the head first; `None` for all.

    Returns:
        The operations by part, with the names of
        `txl_tf.training.flops.count_step_flops_by_part`.
    """
    d_model, d_heads = model.d_model, model.n_head * model.d_head
    widths = 2 * d_heads + model.n_head * model.position_width  # content, values and positions
    n_tables = len(model.bins) if model.div_val > 1 else 1
    embedded = sum(
        model.bin_width(index) for index in range(n_tables) if model.has_embedding_projection(index)
    )
    softmax = 0
    for index, (low, high) in enumerate(model.bins[:n_bins]):
        n_rows = high - low + (len(model.cutoffs) if index == 0 else 0)
        n_rows += d_model * model.projects_hidden(index)
        softmax += model.bin_width(index) * n_rows
    return {
        "embedding": 2.0 * d_model * embedded,
        "projections": 2.0 * model.n_layer * 4 * d_model * d_heads,
        "attention": 2.0 * model.n_layer * (mem_len + tgt_len) * widths,
        "feed-forward": 2.0 * model.n_layer * 2 * d_model * model.d_inner,
        "softmax": 2.0 * softmax,
    }
