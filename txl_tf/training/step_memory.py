"""The memory of training, estimated from configs."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from txl_tf.config import ModelConfig, TrainConfig
from txl_tf.training.optimizers.costs import count_matrix_parameters
from txl_tf.training.step_tensors import DTYPE_BYTES, FLOAT_BYTES, Tensor, list_step_tensors


class TrainingMemory(NamedTuple):
    """The bytes of training memory on each replica.

    Args:
        weights: The weights.
        gradients: The gradients; twice, if several replicas reduce a copy.
        optimizer: The moments, two for each weight or one, and the average of the weights.
        recurrent: The hidden states of the memory.
        next_memory: The hidden states of the memory after the step.
        activations: The temporary memory of the step, as `estimate_activations` estimates it.
    """

    weights: int
    gradients: int
    optimizer: int
    recurrent: int
    next_memory: int
    activations: int


def estimate_memory(
    model: ModelConfig, training: TrainConfig, *, n_replicas: int = 1, is_widened: bool = False
) -> TrainingMemory:
    """Returns the memory that training takes on each replica.

    All parts but the activations follow from the config.

    Args:
        model: The model.
        training: Batch, segment, memory, precision and optimizer.
        n_replicas: The number of replicas.
        is_widened: As in `estimate_activations`.
    """
    weights = FLOAT_BYTES * model.count_parameters()
    without = 0  # bytes of weights that have no second moment
    if training.optimizer == "muon":
        without = FLOAT_BYTES * count_matrix_parameters(model)
    rows = math.ceil(training.train_batch_size / n_replicas)
    states = rows * training.mem_len * model.d_model * model.n_layer
    activations = estimate_activations(
        model, training, n_replicas=n_replicas, is_widened=is_widened
    )
    return TrainingMemory(
        weights=weights,
        gradients=weights * (2 if n_replicas > 1 or training.accumulate_steps > 1 else 1),
        optimizer=weights * (3 if training.has_average else 2) - without,
        recurrent=states * DTYPE_BYTES[training.precision],
        next_memory=states * DTYPE_BYTES[training.precision],
        activations=sum(activations.values()),
    )


def estimate_activations(
    model: ModelConfig, training: TrainConfig, *, n_replicas: int = 1, is_widened: bool = False
) -> dict[str, int]:
    """Returns the temporary memory of a step that XLA compiles as a whole, by part.

    That is what the forward and backward pass need besides arguments (weights, memory, ids) and
    results (gradients, memory), at the instruction that needs the most. XLA for CPUs reports the
    same figure within 10 %: see docs/numbers.md.

    Args:
        model: The model.
        training: Batch, segment, memory, precision, `accumulate_steps` and `remat`.
        n_replicas: The number of replicas.
        is_widened: Whether products of 16-bit tensors are computed from float32 copies, as XLA for
            CPUs does.

    Returns:
        Bytes by part. "gaps" are left over between the tensors of the others.
    """
    rows = math.ceil(training.train_batch_size / n_replicas)
    part = math.ceil(rows / training.accumulate_steps)
    tensors = list_step_tensors(model, training, part, is_widened=is_widened)
    temporary = _find_temporary(tensors)
    peak = _find_peak(temporary)
    sizes: Counter[str] = Counter()
    for tensor in temporary:
        if tensor.made <= peak <= tensor.last:
            sizes[tensor.part] += tensor.size
    sizes["gaps"] = _pack(temporary) - sum(sizes.values())
    return dict(sizes)


def _find_temporary(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns the tensors that need memory besides the results.

    Like XLA, it lets a temporary tensor use the place of a result that is not made yet. The largest
    tensors come first, each takes the smallest place, and several share one if they never meet.
    """
    end = max(tensor.last for tensor in tensors) + 1
    for tensor in tensors:
        if tensor.is_result:
            tensor.last = end

    def rank(tensor: Tensor) -> tuple[int, int]:
        # Of results of one size XLA considers those of the first layer first, which come last.
        return -tensor.size, -tensor.made if tensor.is_result else tensor.made

    places: list[list[Tensor]] = []
    temporary = []
    for tensor in sorted(tensors, key=rank):
        if tensor.is_result:
            places.append([tensor])
            continue
        for place in reversed(places):
            if not any(_meet(tensor, other) for other in place):
                place.append(tensor)
                break
        else:
            temporary.append(tensor)
    return temporary


def _meet(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors are alive at the same time."""
    return one.made <= other.last and other.made <= one.last


def _find_peak(tensors: Sequence[Tensor]) -> int:
    """Returns the index of the instruction at which the most bytes are alive."""
    changes: Counter[int] = Counter()
    for tensor in tensors:
        changes[tensor.made] += tensor.size
        changes[tensor.last + 1] -= tensor.size
    total = most = peak = 0
    for index in sorted(changes):
        total += changes[index]
        if total > most:
            most, peak = total, index
    return peak


def _pack(tensors: Sequence[Tensor]) -> int:
    """Returns the bytes of an allocation in which no two tensors that meet overlap.

    Like XLA, it tries two orders, by size and by lifetime, and places each tensor in the smallest
    gap into which it fits.
    """
    orders: tuple[Callable[[Tensor], Any], ...] = (
        lambda tensor: (-tensor.size, tensor.made - tensor.last),
        lambda tensor: (tensor.made - tensor.last, -tensor.size),
    )
    return min(_place(sorted(tensors, key=order)) for order in orders)


def _place(tensors: Sequence[Tensor]) -> int:
    """Returns the bytes that tensors need if they are placed in the given order."""
    placed: list[tuple[int, Tensor]] = []
    end = 0
    for tensor in tensors:
        free, gaps = 0, []
        for start, size in sorted((start, x.size) for start, x in placed if _meet(tensor, x)):
            if start - free >= tensor.size:
                gaps.append((start - free, free))
            free = max(free, start + size)
        _, start = min(gaps, default=(0, free))
        placed.append((start, tensor))
        end = max(end, start + tensor.size)
    return end
