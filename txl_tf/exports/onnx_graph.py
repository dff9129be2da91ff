"""The stateless step as an ONNX file, for servers in other languages and for browsers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

from txl_tf.exports.stateless_step import StatelessStep, StepInputs, StepOutputs
from txl_tf.exports.step_operations import MIN_INT8_SIZE, Matrix, Norm
from txl_tf.layers.packed_kernel import quantize_rows
from txl_tf.version import __version__

OPSET = 17  # the first with LayerNormalization
IR_VERSION = 8  # of the same time


def make_onnx(step: StatelessStep, precision: str) -> bytes:
    """Returns the content of an ONNX file.

    With "int8" the inputs of each product are rounded to 8 bits, too, with one scale for all rows.

    Args:
        step: The step.
        precision: The dtype in which matrices are stored: "float32", "float16" or "int8".
    """
    operations = OnnxOperations(precision)
    outputs = step.build(operations, StepInputs(*StepInputs._fields))
    for name, tensor in zip(StepOutputs._fields, outputs, strict=True):
        operations.add_node("Identity", [tensor], output=name)

    graph = helper.make_graph(
        operations.nodes,
        "step",
        _describe_tensors(step.inputs),
        _describe_tensors(step.outputs),
        operations.initializers,
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="txl_tf",
        producer_version=__version__,
    )
    onnx.checker.check_model(model)
    return model.SerializeToString()


def _describe_tensors(shapes: StepInputs | StepOutputs) -> list[Any]:
    dtypes = dict.fromkeys(("ids", "length", "new_length"), TensorProto.INT32)
    return [
        helper.make_tensor_value_info(name, dtypes.get(name, TensorProto.FLOAT), shape)
        for name, shape in shapes._asdict().items()
    ]


class OnnxOperations:
    """The operations of a step, as nodes of an ONNX graph; tensors are their names.

    Args:
        precision: The dtype of the matrices.

    Attributes:
        nodes: The nodes, in order.
        initializers: The constants.
    """

    def __init__(self, precision: str):
        self.precision = precision
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._matrices: dict[str, tuple[str, ...]] = {}

    def add_node(
        self, kind: str, inputs: Sequence[str], *, output: str | None = None, **attributes: Any
    ) -> str:
        """Adds a node and returns the name of its output."""
        output = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, value: ArrayLike, name: str | None = None) -> str:
        """Adds a constant and returns its name."""
        name = name or f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _indices(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def store(self, matrix: Matrix) -> tuple[str, ...]:
        """Returns the names of the rows and, in int8, of their scales, (..., L, 1)."""
        if matrix.name not in self._matrices:
            arrays = [matrix.rows]
            if self.precision == "int8" and matrix.rows.size >= MIN_INT8_SIZE:
                arrays = list(map(np.asarray, quantize_rows(matrix.rows)))
            elif self.precision == "float16":
                arrays = [matrix.rows.astype(np.float16)]
            names = (matrix.name, f"{matrix.name}/scales")
            self._matrices[matrix.name] = tuple(map(self.constant, arrays, names))
        return self._matrices[matrix.name]

    def multiply_rows(self, inputs: str, matrix: Matrix) -> str:
        rows, *scales = self.store(matrix)
        axes = (1, 0) if matrix.rows.ndim == 2 else (0, 2, 1)
        # Runtimes transpose and widen constants once, when they load the file.
        columns = self.add_node("Transpose", [rows], perm=axes)
        if not scales:
            if self.precision == "float16":
                columns = self.add_node("Cast", [columns], to=TensorProto.FLOAT)
            return self.add_node("MatMul", [inputs, columns])
        base = f"quantized_{len(self.nodes)}"
        quantized = [f"{base}/values", f"{base}/scale", f"{base}/zero"]
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [inputs], quantized))
        product = self.add_node("MatMulInteger", [quantized[0], columns, quantized[2]])
        product = self.add_node("Cast", [product], to=TensorProto.FLOAT)
        factors = self.add_node("Transpose", scales, perm=axes)  # (1, L)
        factors = self.multiply(factors, quantized[1])
        return self.multiply(product, factors)

    def take_rows(self, matrix: Matrix, indices: str) -> str:
        rows, *scales = self.store(matrix)
        taken = self.add_node("Gather", [rows, indices], axis=0)
        if scales or self.precision == "float16":
            taken = self.add_node("Cast", [taken], to=TensorProto.FLOAT)
        if scales:
            taken = self.multiply(taken, self.add_node("Gather", [*scales, indices], axis=0))
        return taken

    def take_columns(self, inputs: str, indices: np.ndarray) -> str:
        return self.add_node("Gather", [inputs, self.constant(indices)], axis=-1)

    def matmul(self, left: str, right: str, *, transpose_right: bool = False) -> str:
        if transpose_right:
            right = self.add_node("Transpose", [right], perm=(0, 1, 3, 2))
        return self.add_node("MatMul", [left, right])

    def add(self, left: str, right: str) -> str:
        return self.add_node("Add", [left, right])

    def multiply(self, left: str, right: str) -> str:
        return self.add_node("Mul", [left, right])

    def minimum(self, left: str, right: str) -> str:
        return self.add_node("Min", [left, right])

    def maximum(self, left: str, right: str) -> str:
        return self.add_node("Max", [left, right])

    def equal(self, left: str, right: str) -> str:
        return self.to_float(self.add_node("Equal", [left, right]))

    def to_float(self, integers: str) -> str:
        return self.add_node("Cast", [integers], to=TensorProto.FLOAT)

    def softmax(self, scores: str) -> str:
        return self.add_node("Softmax", [scores], axis=-1)

    def log_softmax(self, logits: str) -> str:
        return self.add_node("LogSoftmax", [logits], axis=-1)

    def normalize(self, states: str, norm: Norm) -> str:
        weights = [self.constant(norm.gain), self.constant(norm.offset)]
        return self.add_node(
            "LayerNormalization", [states, *weights], axis=-1, epsilon=norm.epsilon
        )

    def reshape(self, tensor: str, shape: Sequence[int]) -> str:
        return self.add_node("Reshape", [tensor, self._indices(*shape)])

    def transpose(self, tensor: str, axes: Sequence[int]) -> str:
        return self.add_node("Transpose", [tensor], perm=axes)

    def concat(self, tensors: Sequence[str], axis: int) -> str:
        return self.add_node("Concat", tensors, axis=axis)

    def slice(self, tensor: str, axis: int, start: int, stop: int) -> str:
        return self.add_node("Slice", [tensor, *map(self._indices, (start, stop, axis))])
