"""What a compiled program computes and moves, counted in its optimized HLO.

It counts as XLA's own cost analysis does, with two differences that matter for programs that keep
their tensors on the chip: the body of a loop counts as often as it runs, and tensors in the fast
memory of a TPU (memory space 1) move no bytes of its main memory.
"""

import functools
import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax._src.lib import xla_client
from jaxlib import _jax
from tensorflow.compiler.xla.service import hlo_pb2

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# Operations that move nothing themselves.
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota"),
    *("partition-id", "replica-id", "opt-barrier", "add-dependency", "domain"),
}
_CUBLAS = "__cublas$"
_SLICES = ("dynamic-slice", "slice", "gather")


class Costs(NamedTuple):
    """The costs of one run of a program on one chip.

    Args:
        flops: Floating-point operations; a multiply-add counts as two.
        bytes: Bytes read from and written to the main memory.
        accessed: Bytes read from and written to any memory, as XLA counts "bytes accessed".
        collectives: The bytes that each kind of collective operation receives as its operands.
        n_unknown: The number of loops whose length depends on the data; each counts as one run.
    """

    flops: float
    bytes: float
    accessed: float
    collectives: dict[str, float]
    n_unknown: int


def count_costs(module: bytes) -> Costs:
    """Counts the costs of a program.

    Args:
        module: A serialized HloModuleProto of an optimized program.
    """
    program = hlo_pb2.HloModuleProto.FromString(module)
    counter = _Counter(program)
    entry = counter.module.entry_computation_id
    flops = counter.analyze(entry) + counter.visit(entry, 1)
    return Costs(
        flops,
        counter.bytes,
        counter.accessed,
        dict(counter.collectives),
        len(counter.unknown),
    )


class _Counter:
    def __init__(self, module: Any):
        self.module = module
        self.computations = {computation.id: computation for computation in module.computations}
        self.bytes = self.accessed = 0.0
        self.collectives: Counter = Counter()
        self.unknown: set[int] = set()

    def visit(self, computation_id: int, n_runs: int) -> float:
        """Adds the bytes of a computation that runs `n_runs` times.

        Returns the FLOPs of one run that XLA leaves out, as it counts each loop as a single run.
        """
        computation = self.computations[computation_id]
        values = {each.id: each for each in computation.instructions}
        flops = 0.0
        for each in computation.instructions:
            opcode = each.opcode.removesuffix("-start")
            if each.opcode.endswith("-done") or opcode in _FREE:
                continue
            if opcode == "while":
                body, condition = each.called_computation_ids
                length = self._find_length(condition)
                if length is None:
                    self.unknown.add(each.id)
                length = length or 1
                flops += length * self.visit(body, n_runs * length)
                flops += (length - 1) * self.analyze(body) if length > 1 else 0
            elif opcode in ("call", "async", "conditional"):  # all branches: an upper bound
                for called in each.called_computation_ids:
                    flops += self.visit(called, n_runs)
            else:
                operands = [values[index] for index in each.operand_ids]
                self.bytes += n_runs * self._count_bytes(each, operands, main_only=True)
                self.accessed += n_runs * self._count_bytes(each, operands, main_only=False)
                flops += _read_estimate(each, operands)
                if opcode in COLLECTIVES:
                    size = sum(measure(operand.shape) for operand in operands)
                    self.collectives[opcode] += n_runs * size
        return flops

    def analyze(self, computation_id: int) -> float:
        """Returns the FLOPs that XLA counts from a computation on, with each loop run once."""
        computation = self.computations[computation_id]
        part = hlo_pb2.HloModuleProto()
        part.CopyFrom(self.module)
        part.entry_computation_id = computation.id
        part.entry_computation_name = computation.name
        part.host_program_shape.CopyFrom(computation.program_shape)
        for field in ("input_output_alias", "buffer_donor", "schedule", "spmd_output_sharding"):
            part.ClearField(field)
        part.ClearField("spmd_parameters_shardings")
        hlo = xla_client.XlaComputation(part.SerializeToString()).get_hlo_module()
        client = jax.devices("cpu")[0].client
        return _jax.hlo_module_cost_analysis(client, hlo)["flops"]

    def _find_length(self, condition_id: int) -> int | None:
        """Returns how often a loop that counts up to a constant runs; `None` if it is another."""
        computations = [self.computations[condition_id]]
        for each in computations:
            for instruction in each.instructions:
                computations += [self.computations[i] for i in instruction.called_computation_ids]
        instructions = [each for computation in computations for each in computation.instructions]
        bounds = [
            number
            for each in instructions
            if each.opcode == "constant" and not each.shape.dimensions
            for number in (*each.literal.s32s, *each.literal.s64s, *each.literal.u32s)
        ]
        n_compared = sum(each.opcode == "compare" for each in instructions)
        return bounds[0] if len(bounds) == 1 and n_compared == 1 else None

    def _count_bytes(self, instruction: Any, operands: list[Any], *, main_only: bool) -> float:
        """Counts what an operation reads and writes."""
        count = functools.partial(measure, main_only=main_only)
        if instruction.opcode == "fusion":
            return self._count_fusion(instruction, count)
        if instruction.opcode == "copy-start":
            # A tuple of target, source and a semaphore: one of both may be in fast memory.
            return sum(map(count, instruction.shape.tuple_shapes[:2]))
        if instruction.custom_call_target.startswith(_CUBLAS) and instruction.shape.tuple_shapes:
            # A tuple of the product and a workspace.
            shapes = [instruction.shape.tuple_shapes[0], *(each.shape for each in operands)]
            return sum(map(count, shapes))
        if instruction.opcode in _SLICES:
            read = measure(instruction.shape) if count(operands[0].shape) else 0
            return count(instruction.shape) + read
        if instruction.opcode == "dynamic-update-slice":
            written = measure(operands[1].shape) if count(instruction.shape) else 0
            return written + count(operands[1].shape)
        return count(instruction.shape) + sum(count(operand.shape) for operand in operands)

    def _count_fusion(self, fusion: Any, count: Callable[[Any], int]) -> float:
        """Counts what a fusion reads of its operands, and writes."""
        computation = self.computations[fusion.called_computation_ids[0]]
        values = {each.id: each for each in computation.instructions}
        total = 0.0
        for each in computation.instructions:
            if each.opcode == "parameter" and count(each.shape):
                total += self._count_reads(computation, each)
        root = values[computation.root_id]
        outputs = [values[index] for index in root.operand_ids] if root.opcode == "tuple" else []
        for each in outputs or [root]:
            while each.opcode == "bitcast":
                each = values[each.operand_ids[0]]
            is_update = each.opcode == "dynamic-update-slice"
            total += count(values[each.operand_ids[1]].shape if is_update else each.shape)
        return total

    def _count_reads(self, computation: Any, value: Any) -> float:
        """Returns the bytes that a fused computation reads of a value; at most all, once."""
        whole = measure(value.shape)
        total = whole if value.id == computation.root_id else 0.0
        for reader in computation.instructions:
            for position, index in enumerate(reader.operand_ids):
                if index != value.id:
                    continue
                if reader.opcode == "bitcast":
                    total += self._count_reads(computation, reader)
                elif reader.opcode == "fusion":
                    inside = self.computations[reader.called_computation_ids[0]]
                    total += sum(
                        self._count_reads(inside, each)
                        for each in inside.instructions
                        if each.opcode == "parameter" and each.parameter_number == position
                    )
                elif reader.opcode in _SLICES and not position:
                    total += measure(reader.shape)
                elif reader.opcode != "dynamic-update-slice" or position:  # it changes in place
                    total += whole
        return min(total, whole)


def _read_estimate(instruction: Any, operands: list[Any]) -> float:
    """Returns the FLOPs of a custom call: of a product by cuBLAS, or those that Pallas states."""
    if instruction.custom_call_target.startswith(_CUBLAS):
        config = json.loads(instruction.backend_config)["gemm_backend_config"]
        summed = config["dot_dimension_numbers"]["lhs_contracting_dimensions"]
        shape, left = instruction.shape, operands[0].shape.dimensions
        product = shape.tuple_shapes[0] if shape.tuple_shapes else shape
        return 2.0 * math.prod(product.dimensions) * math.prod(left[int(axis)] for axis in summed)
    if instruction.opcode != "custom-call" or b"cost_estimate" not in instruction.backend_config:
        return 0.0
    config = json.loads(instruction.backend_config)["custom_call_config"]
    return float(config.get("cost_estimate", {}).get("flops", 0))


# By the element types of xla_data.proto.
_BITS = {1: 8, 2: 8, 3: 16, 4: 32, 5: 64, 6: 8, 7: 16, 8: 32, 9: 64, 10: 16, 11: 32, 12: 64}
_BITS |= {15: 64, 16: 16, 18: 128, 21: 4, 22: 4}


def measure(shape: Any, *, main_only: bool = False) -> int:
    """Returns the bytes of a ShapeProto without padding.

    Args:
        shape: The shape, or a tuple of shapes.
        main_only: Whether to count only what is in the main memory.
    """
    if shape.tuple_shapes:
        return sum(measure(each, main_only=main_only) for each in shape.tuple_shapes)
    if main_only and shape.layout.memory_space != 0:
        return 0
    bits = _BITS.get(shape.element_type, 8 if shape.element_type >= 19 else 0)
    return math.ceil(math.prod(shape.dimensions) * bits / 8)
