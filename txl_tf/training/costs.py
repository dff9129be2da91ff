"""The cost of training a model: floating-point operations and memory, computed from configs.

Letters: B lanes, T segment, M memory, S = M + T, N heads, H head size,
D `d_model`, E embedding size, V vocabulary, n = B T tokens.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

from txl_tf.config import ModelConfig, TrainConfig
from txl_tf.config.stages import make_stages
from txl_tf.errors import UserError
from txl_tf.layers.chunks import choose_chunk, is_taken_at_once

FLOAT_BYTES = 4  # weights, gradients and optimizer are float32 under every precision
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


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
        training: Batch, segment, memory, `accumulate_steps` and `remat`.
        n_replicas: The number of replicas; each projects the positions.
        bin_shares: The share of tokens in each bin; `None` for `estimate_bin_shares`.

    Raises:
        UserError: If the number of shares is not the number of bins.
    """
    n_parts = n_replicas * training.accumulate_steps
    n_tokens = training.train_batch_size * training.tgt_len
    layers = model.n_layer * _count_layer_flops(model, training, n_parts)
    shares = estimate_bin_shares(model) if bin_shares is None else bin_shares
    if len(shares) != len(model.bins):
        raise UserError(
            f"`bin_shares` must be one for each of {len(model.bins)} bins. Received: {len(shares)}"
        )
    embedding = 6.0 * n_tokens * model.d_model * _sum_embedding_widths(model)
    softmax = 0.0
    for index, n_rows in enumerate(_list_logits(model)):
        n_part = math.ceil(n_tokens / n_parts)
        products = model.bin_width(index) * (n_rows + model.d_model * is_projected(model, index))
        if index == 0 and is_taken_at_once(n_part, n_rows):
            softmax += 6.0 * n_tokens * products
            continue
        chunk = choose_chunk(n_part, n_rows)
        share = shares[index] if index else 1.0
        n_computed = n_parts * chunk * math.ceil(share * n_tokens / n_parts / chunk)
        softmax += 8.0 * n_computed * products  # forward twice, and backward
    return layers + embedding + softmax


def _list_logits(model: ModelConfig) -> list[int]:
    """Returns the number of logits of a token in each bin; the head has one more per cluster."""
    sizes = [high - low for low, high in model.bins]
    return [sizes[0] + len(model.cutoffs), *sizes[1:]]


def _count_layer_flops(model: ModelConfig, training: TrainConfig, n_parts: int) -> float:
    n_lanes, d_model = training.train_batch_size, model.d_model
    d_heads = model.n_head * model.d_head
    tokens, memory = n_lanes * training.tgt_len, n_lanes * training.mem_len
    keys = training.tgt_len + training.mem_len
    no_input_gradient = 2 * memory * d_model * 2 * d_heads  # keys and values of the memory
    no_input_gradient += 2 * n_parts * keys * d_model * d_heads  # positions
    projections = 2 * tokens * d_model * 4 * d_heads  # q, k, v, output
    # Content, position, values; the shift of the position scores needs one column more.
    attention = 2 * tokens * (3 * keys + 1) * d_heads
    feed_forward = 2 * 2 * tokens * d_model * model.d_inner
    forward = no_input_gradient + projections + attention + feed_forward
    return float((4 if training.remat else 3) * forward - no_input_gradient)


def _sum_embedding_widths(model: ModelConfig) -> int:
    """Returns the summed width of the bins with a projection, each of which embeds all tokens."""
    return sum(
        model.bin_width(index)
        for index in range(len(model.bins))
        if model.has_embedding_projection(index)
    )


def is_projected(model: ModelConfig, index: int) -> bool:
    """Returns whether a bin of the softmax projects the hidden states."""
    if model.has_softmax_projection(index):
        return True
    has_own = bool(model.cutoffs) and not (model.proj_share_all_but_first and index > 0)
    # A single table for all bins has the projection of bin 0.
    return not has_own and model.has_embedding_projection(0 if model.div_val == 1 else index)


class TrainingMemory(NamedTuple):
    """The bytes of training memory on each replica.

    Args:
        weights: The weights.
        gradients: The gradients; twice, if several replicas reduce a copy.
        optimizer: The two moments, and the EMA of the weights.
        recurrent: The hidden states of the memory.
        activations: An estimate of the values kept from the forward to the backward pass.
    """

    weights: int
    gradients: int
    optimizer: int
    recurrent: int
    activations: int


def estimate_memory(
    model: ModelConfig, training: TrainConfig, *, n_replicas: int = 1
) -> TrainingMemory:
    """Returns the memory that training takes on each replica.

    All parts but the activations follow from the config. The activations that a compiler keeps,
    and its working memory, depend on the device: docs/numbers.md compares the estimate with the
    report of XLA for CPU.

    Args:
        model: The model.
        training: Batch, segment, memory, precision and optimizer.
        n_replicas: The number of replicas.
    """
    weights = FLOAT_BYTES * model.count_parameters()
    rows = math.ceil(training.train_batch_size / n_replicas)
    width = _DTYPE_BYTES[training.precision]
    return TrainingMemory(
        weights=weights,
        gradients=weights * (2 if n_replicas > 1 or training.accumulate_steps > 1 else 1),
        optimizer=weights * (3 if training.ema else 2),
        recurrent=rows * training.mem_len * model.d_model * model.n_layer * width,
        activations=_estimate_activations(model, training, rows),
    )


def _estimate_activations(model: ModelConfig, training: TrainConfig, rows: int) -> int:
    part = math.ceil(rows / training.accumulate_steps)
    part_config = dataclasses.replace(training, train_batch_size=part, accumulate_steps=1)
    width = _DTYPE_BYTES[training.precision]
    n_tokens = part * training.tgt_len
    layer = _estimate_layer(model, part_config)
    scores = part * model.n_head * training.tgt_len * (training.mem_len + training.tgt_len)
    hidden = n_tokens * model.d_model * width
    kept = model.n_layer * hidden + layer if training.remat else model.n_layer * layer
    new_memory = part * training.mem_len * model.d_model * model.n_layer * width
    working = FLOAT_BYTES * scores  # of the scores' gradient
    return kept + new_memory + working + _estimate_softmax(model, n_tokens)


def _estimate_layer(model: ModelConfig, training: TrainConfig) -> int:
    """Returns the bytes of a layer that the backward pass needs.

    Dropout adds nothing: masks and masked values are computed again.
    """
    n_lanes, width = training.train_batch_size, _DTYPE_BYTES[training.precision]
    keys, d_heads = training.tgt_len + training.mem_len, model.n_head * model.d_head
    n_tokens = n_lanes * training.tgt_len
    weights = n_lanes * model.n_head * training.tgt_len * keys  # of the attention
    # The inputs of both norms; q with u, q with v, and the attention output.
    entries = 2 * n_tokens * model.d_model + 3 * n_tokens * d_heads
    entries += 2 * n_lanes * keys * d_heads + keys * d_heads  # k, v, positions
    entries += n_tokens * model.d_inner
    size = width * entries + FLOAT_BYTES * weights
    if width != FLOAT_BYTES:
        size += width * weights  # the softmax is float32, the product with it is not
    return size


def _estimate_softmax(model: ModelConfig, n_tokens: int) -> int:
    """Returns the bytes of logits and their gradients; a tail bin holds one chunk at a time."""
    head, *tails = _list_logits(model)
    sizes = [choose_chunk(n_tokens, n_rows) * n_rows for n_rows in tails]
    n_at_once = n_tokens if is_taken_at_once(n_tokens, head) else choose_chunk(n_tokens, head)
    return FLOAT_BYTES * 2 * max(n_at_once * head, *sizes, 0)


def count_run_flops(
    model: ModelConfig,
    training: TrainConfig,
    *,
    first_step: int = 0,
    n_replicas: int = 1,
    bin_shares: Sequence[float] | None = None,
) -> float:
    """Returns the operations of all steps from `first_step` on, over all stages."""
    stages = make_stages(training.tgt_len_schedule, training.tgt_len)
    ends = [*(stage.first_step for stage in stages[1:]), training.train_steps]
    total = 0.0
    for stage, end in zip(stages, ends, strict=True):
        n_steps = max(0, end - max(first_step, stage.first_step))
        of_stage = dataclasses.replace(training, tgt_len=stage.tgt_len, tgt_len_schedule=())
        total += n_steps * count_step_flops(
            model, of_stage, n_replicas=n_replicas, bin_shares=bin_shares
        )
    return total
