"""A traced step as an ONNX file, for servers in other languages and for browsers."""

from typing import Any

import numpy as np
import onnx
import tensorflow as tf
import tf2onnx
from onnx import TensorProto, helper, numpy_helper

from txl_tf.layers.packed_kernel import quantize_rows
from txl_tf.version import __version__

OPSET = 17
_MIN_INT8_SIZE = 1024  # matrices with fewer entries stay float32, as in LiteRT's converter


def make_onnx(function: tf.function, output_names: list[str], precision: str) -> bytes:
    """Returns the content of an ONNX file, with the outputs of a function in the given order.

    With "int8", the inputs of each product are also rounded to 8 bits, with one scale for all rows.
    """
    signature = function.input_signature
    model, _ = tf2onnx.convert.from_function(function, input_signature=signature, opset=OPSET)
    outputs = {output.name: output for output in model.graph.output}
    del model.graph.output[:]
    model.graph.output.extend(outputs[name] for name in output_names)
    _Matrices(precision).replace(model.graph)
    model.producer_name, model.producer_version = "txl_tf", __version__
    onnx.checker.check_model(model)
    return model.SerializeToString()


class _Matrices:
    """The matrices of a graph, each stored once, by rows.

    With tied weights, the embedding and the softmax share a table. Runtimes transpose and widen
    constants once, when they load the file.
    """

    def __init__(self, precision: str):
        self._precision = precision
        self._nodes: list[Any] = []
        self._stored: dict[tuple[Any, ...], Any] = {}  # by content

    def replace(self, graph: Any) -> None:
        """Replaces the matrices by which the nodes of a graph multiply, or whose rows they take."""
        arrays = {
            tensor.name: numpy_helper.to_array(tensor)
            for tensor in graph.initializer
            if len(tensor.dims) > 1 and tensor.data_type in (TensorProto.FLOAT, TensorProto.INT8)
        }
        for node in graph.node:
            if node.op_type == "MatMul" and node.input[1] in arrays:
                self._multiply(node, np.swapaxes(arrays[node.input[1]], -1, -2))
                continue
            if node.op_type in ("MatMul", "Gather") and node.input[0] in arrays:
                node.input[0] = self._store(arrays[node.input[0]])
            self._nodes.append(node)
        used = {name for node in self._nodes for name in node.input}
        others = [tensor for tensor in graph.initializer if tensor.name in used]
        del graph.node[:], graph.initializer[:]
        graph.node.extend(self._nodes)
        graph.initializer.extend([*others, *self._stored.values()])

    def _multiply(self, node: Any, rows: np.ndarray) -> None:
        """Replaces a node by one or more nodes that multiply its input by rows (..., L, K)."""
        (inputs, _), (output,) = node.input, node.output
        axes = (*range(rows.ndim - 2), rows.ndim - 1, rows.ndim - 2)
        if self._precision != "int8" or rows.size < _MIN_INT8_SIZE:
            columns = self._add("Transpose", [self._store(rows)], perm=axes)
            self._add("MatMul", [inputs, columns], output)
            return
        rows, scales = map(np.asarray, quantize_rows(rows))
        columns = self._add("Transpose", [self._store(rows)], perm=axes)
        factors = self._store(np.swapaxes(scales, -1, -2))
        values, scale, zero = (f"{output}/{name}" for name in ("values", "scale", "zero"))
        quantize = helper.make_node("DynamicQuantizeLinear", [inputs], [values, scale, zero])
        self._nodes.append(quantize)
        product = self._add("MatMulInteger", [values, columns, zero])
        product = self._add("Cast", [product], to=TensorProto.FLOAT)
        self._add("Mul", [product, self._add("Mul", [factors, scale])], output)

    def _store(self, array: np.ndarray) -> str:
        """Stores an array once, and returns its name, or that of its cast from float16."""
        is_narrow = self._precision == "float16"
        array = np.ascontiguousarray(array, np.float16 if is_narrow else None)
        key = (array.dtype, array.shape, array.tobytes())
        if key not in self._stored:
            self._stored[key] = numpy_helper.from_array(array, f"matrix_{len(self._stored)}")
        name = self._stored[key].name
        return self._add("Cast", [name], to=TensorProto.FLOAT) if is_narrow else name

    def _add(self, kind: str, inputs: list[str], output: str | None = None, **options: Any) -> str:
        output = output or f"{kind.lower()}_matrix_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [output], **options))
        return output
