"""The floating-point operations of training a model, computed from configs.

Letters: B lanes, T segment, M memory, S = M + T, N heads, H head size,
D `d_model`, E embedding size, V vocabulary, n = B T tokens.
"""

import math
from collections.abc import Sequence

from txl_tf.config import ModelConfig, TrainConfig
from txl_tf.config.encodings import ENCODINGS
from txl_tf.config.parameters import list_matrices
from txl_tf.layers.bin_loss import choose_chunk, is_taken_at_once

N_POLYNOMIALS = 4  # of the orthogonalization in `txl_tf.training.update_rules`


def estimate_bin_shares(model: ModelConfig) -> tuple[float, ...]:
    """Returns the share of tokens in each bin by Zipf's law: id k has a frequency of 1 / (k+1).

    >>> [round(share, 2) for share in estimate_bin_shares(ModelConfig(1000, cutoffs=(10, 100)))]
    [0.39, 0.3, 0.31]
    """

    def add_up(count: int) -> float:  # the sum of 1/k for k from 1 to `count`
        return math.log(count) + 0.5772156649 + 1 / (2 * count) if count else 0.0

    total = add_up(model.n_token)
    return tuple((add_up(high) - add_up(low)) / total for low, high in model.bins)


def count_step_flops(
    model: ModelConfig,
    training: TrainConfig,
    *,
    n_replicas: int = 1,
    bin_shares: Sequence[float] | None = None,
) -> float:
    """Returns the floating-point operations of the matrix products of a training step.

    A multiply-add counts as two operations, and masked scores count, as in any dense attention.
    The backward pass costs twice the forward pass, minus the gradients of memory and positions,
    which are not computed. Recomputed parts count twice: layers with `remat` (gradient
    checkpointing), and the logits of tail bins and of a head in chunks. The segment length is
    `tgt_len`, that of the last stage.

    Args:
        model: The model.
        training: Batch, segment, memory, `accumulate_steps`, `remat` and optimizer.
        n_replicas: The number of replicas; each projects the positions.
        bin_shares: The share of tokens in each bin; `None` for `estimate_bin_shares`.
    """
    n_parts = n_replicas * training.accumulate_steps
    shares = estimate_bin_shares(model) if bin_shares is None else bin_shares
    n_tokens = training.train_batch_size * training.window_len
    n_scored = training.train_batch_size * count_scored(training)
    projected = (k for k in range(len(model.bins)) if model.has_embedding_projection(k))
    flops = 6.0 * n_tokens * model.d_model * sum(map(model.bin_width, projected))
    flops += _count_layer_flops(model, training, n_parts)
    flops += _count_softmax_flops(model, n_scored, n_parts, shares)
    if training.optimizer == "muon":  # each replica orthogonalizes whole matrices
        flops += n_replicas * _count_orthogonalization_flops(model)
    return flops


def count_scored(training: TrainConfig) -> int:
    """Returns the number of positions of the longest segment whose targets have a loss."""
    tgt_len = training.window_len - training.extra_len
    return tgt_len - (tgt_len // 2 if training.half_loss else 0)


def projects_hidden(model: ModelConfig, index: int) -> bool:
    """Returns whether bin `index` of the softmax projects the hidden states at all.

    The projection may be that of the embedding; a single table for all bins has that of bin 0.
    """
    has_own = bool(model.cutoffs) and not (model.proj_share_all_but_first and index > 0)
    if has_own:
        return model.has_softmax_projection(index)
    return model.has_embedding_projection(0 if model.div_val == 1 else index)


def _count_orthogonalization_flops(model: ModelConfig) -> float:
    flops = 0.0
    for matrix in list_matrices(model):
        short, long = sorted(matrix)
        flops += N_POLYNOMIALS * (2 * 2 * short * short * long + 2 * short**3)
    return flops


def _count_softmax_flops(
    model: ModelConfig, n_tokens: int, n_parts: int, shares: Sequence[float]
) -> float:
    # The head has one more logit for each cluster.
    n_logits = [high - low for low, high in model.bins]
    n_logits[0] += len(model.cutoffs)
    n_part = math.ceil(n_tokens / n_parts)
    flops = 0.0
    for index, n_rows in enumerate(n_logits):
        products = model.bin_width(index) * (n_rows + model.d_model * projects_hidden(model, index))
        if index == 0 and is_taken_at_once(n_part, n_rows):
            flops += 6.0 * n_tokens * products
            continue
        chunk = choose_chunk(n_part, n_rows)
        share = shares[index] if index else 1.0
        n_computed = n_parts * chunk * math.ceil(share * n_tokens / n_parts / chunk)
        flops += 8.0 * n_computed * products  # forward twice, and backward
    return flops


def _count_layer_flops(model: ModelConfig, training: TrainConfig, n_parts: int) -> float:
    n_lanes, d_model = training.train_batch_size, model.d_model
    tokens, memory = n_lanes * training.window_len, n_lanes * training.mem_len
    factor = 4.0 if training.remat else 3.0
    if model.is_recurrent:  # each matrix is multiplied with each token
        return factor * 2 * tokens * sum(rows * columns for rows, columns in list_matrices(model))
    d_heads = model.n_head * model.d_head
    keys = training.window_len + training.mem_len
    no_input_gradient = 2 * memory * d_model * 2 * d_heads  # keys and values of the memory
    encoding = ENCODINGS[model.encoding]
    if encoding.projects_positions:
        no_input_gradient += 2 * n_parts * keys * d_model * d_heads
    projections = 2 * tokens * d_model * 4 * d_heads  # q, k, v, output
    attention = 2 * tokens * 2 * keys * d_heads  # content and values
    # The shift of the position scores needs one column more.
    attention += 2 * tokens * (keys + 1) * model.n_head * encoding.get_width(model)
    feed_forward = 2 * 2 * tokens * d_model * model.d_inner
    products = projections + no_input_gradient + attention + feed_forward
    return model.n_layer * (factor * products - no_input_gradient)
