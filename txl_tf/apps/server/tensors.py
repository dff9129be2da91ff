"""Tensors as JSON in the columns of TensorFlow Serving's REST API, and as protocol buffers."""

import base64
import json
import math
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf.errors import UserError

# Kinds of NumPy dtypes that JSON numbers of a tensor may have.
_KINDS = {tf.bool: "b", tf.int32: "iu", tf.int64: "iu", tf.float32: "iuf", tf.float64: "iuf"}


def parse_json(body: bytes) -> dict[str, Any]:
    """Returns the object that the body of a request holds.

    Raises:
        UserError: If it is not JSON in UTF-8, or not an object.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the body must be JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"the body must be an object. Received: {type(content).__name__}")
    return content


def check_keys(content: dict[str, Any], known: tuple[str, ...]) -> None:
    """Checks that an object has only known keys.

    Raises:
        UserError: If it has another one.
    """
    unknown = sorted(set(content) - set(known))
    if unknown:
        names = ", ".join(f"`{name}`" for name in known) or "nothing"
        raise UserError(f"the body may hold {names}. Received: {', '.join(unknown)[:200]}")


def read_columns(inputs: Any, specs: dict[str, tf.TensorSpec]) -> dict[str, np.ndarray]:
    """Converts the value of `inputs` to the arguments of a signature.

    Args:
        inputs: An object of nested lists by name, or the tensor alone if there is only one.
        specs: The inputs of the signature by name.

    Raises:
        UserError: If a tensor is missing, is not known, or has another dtype or shape.
    """
    if len(specs) == 1 and (not isinstance(inputs, dict) or set(inputs) == {"b64"}):
        inputs = {name: inputs for name in specs}
    if not isinstance(inputs, dict) or set(inputs) != set(specs):
        given = sorted(inputs) if isinstance(inputs, dict) else type(inputs).__name__
        raise UserError(f"`inputs` must be {sorted(specs)}. Received: {str(given)[:200]}")
    return {name: _read_array(name, inputs[name], spec) for name, spec in specs.items()}


def _read_array(name: str, value: Any, spec: tf.TensorSpec) -> np.ndarray:
    """Converts nested lists to an array of the spec's dtype and a shape that it allows."""
    rule = f"`{name}` must be {spec.dtype.name} of shape {spec.shape}"
    try:
        if spec.dtype == tf.string:
            array = np.array(_encode_texts(value), object)
            if not all(isinstance(text, bytes) for text in array.flat):
                raise UserError(f"{rule}. Received: rows of different lengths")
        else:
            found = np.asarray(value)
            if found.size and found.dtype.kind not in _KINDS.get(spec.dtype, ""):
                raise UserError(f"{rule}. Received: other values")
            with np.errstate(over="ignore"):
                array = found.astype(spec.dtype.as_numpy_dtype)
            if not np.array_equal(np.isfinite(array), np.isfinite(found)) or (
                array.dtype.kind == "i" and not np.array_equal(array, found)
            ):
                raise UserError(f"{rule}. Received: a number that is too large")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{rule}. Received: {str(error)[:200]}") from error
    check_shape(name, array.shape, spec)
    return array


def check_shape(name: str, shape: tuple[int, ...], spec: tf.TensorSpec) -> None:
    """Checks that a tensor has a shape that its spec allows.

    Raises:
        UserError: If it has another one.
    """
    if not spec.shape.is_compatible_with(shape):
        raise UserError(f"`{name}` must have the shape {spec.shape}. Received: {list(shape)}")


def encode_text(value: Any) -> bytes:
    """Returns a text of JSON as bytes; {"b64": "..."} stands for any bytes.

    Raises:
        UserError: If it is no text.
    """
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str):
            return base64.b64decode(value["b64"], validate=True)
    except ValueError as error:  # half a surrogate pair, or not base64
        raise UserError(f"a text must be Unicode or base64: {error}") from error
    raise UserError(f'a text must be a string or {{"b64": "..."}}. Received: {str(value)[:200]}')


def _encode_texts(value: Any) -> Any:
    """Returns nested lists of texts as bytes."""
    return list(map(_encode_texts, value)) if isinstance(value, list) else encode_text(value)


def write_columns(outputs: dict[str, np.ndarray]) -> bytes:
    """Returns the body of an answer: the tensors by name, or the tensor alone if there is one."""
    lists = {name: _decode_texts(array.tolist()) for name, array in outputs.items()}
    answer = lists if len(lists) > 1 else next(iter(lists.values()))
    return json.dumps({"outputs": answer}, separators=(",", ":")).encode()


def _decode_texts(value: Any) -> Any:
    """Returns nested lists with texts instead of bytes; bytes that are not UTF-8 as "b64"."""
    if isinstance(value, list) and value and isinstance(value[0], list | bytes):
        return [_decode_texts(item) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(value).decode()}
    return value


def read_protos(
    protos: dict[str, Any], specs: dict[str, tf.TensorSpec], max_bytes: int
) -> dict[str, np.ndarray]:
    """Converts `TensorProto`s to the arguments of a signature.

    Args:
        protos: The tensors by name.
        specs: The inputs of the signature by name.
        max_bytes: The largest size of a tensor; a proto of few bytes may stand for a large one.

    Raises:
        UserError: If a tensor is missing, is not known, has another dtype or shape, or is too
            large.
    """
    if set(protos) != set(specs):
        raise UserError(f"`inputs` must be {sorted(specs)}. Received: {sorted(protos)}"[:400])
    arrays = {}
    for name, spec in specs.items():
        proto = protos[name]
        if proto.dtype != spec.dtype.as_datatype_enum:
            raise UserError(f"`{name}` must be {spec.dtype.name}. Received: another dtype")
        shape = tuple(dim.size for dim in proto.tensor_shape.dim)
        n_elements = math.prod(shape)
        if min(shape, default=0) < 0 or n_elements * spec.dtype.size > max_bytes:
            raise UserError(f"`{name}` must have at most {max_bytes:,} bytes. Received: {shape}")
        check_shape(name, shape, spec)
        if spec.dtype == tf.string and n_elements != len(proto.string_val):
            raise UserError(f"`{name}` must hold as many texts as its shape says: {n_elements}")
        try:
            arrays[name] = tf.make_ndarray(proto)
        except (TypeError, ValueError) as error:
            raise UserError(f"`{name}` must be a tensor: {error}") from error
    return arrays
