import base64
import json

import numpy as np
import pytest
import tensorflow as tf

from txl_tf.apps.server.tensors import (
    parse_json,
    read_columns,
    read_protos,
    write_columns,
)
from txl_tf.errors import UserError

IDS = {"ids": tf.TensorSpec((None, None), tf.int32)}
TEXTS = {"texts": tf.TensorSpec((None,), tf.string)}
TEMPERATURE = {"temperature": tf.TensorSpec((), tf.float32)}
RESET = {"reset": tf.TensorSpec((None,), tf.bool)}


@pytest.mark.parametrize("body", [b"\xff", b"[" * 100_000, b"[3]"])
def test_a_body_that_is_no_object_is_refused(body):
    with pytest.raises(UserError, match="the body must be"):
        parse_json(body)


@pytest.mark.parametrize(
    ("value", "specs", "expected"),
    [
        ([[3, 1, 4], [1, 5, 9]], IDS, np.array([[3, 1, 4], [1, 5, 9]], np.int32)),
        ([[], []], IDS, np.zeros((2, 0), np.int32)),
        (2, TEMPERATURE, np.float32(2)),
        ([True, False], RESET, np.array([True, False])),
    ],
)
def test_numbers_have_the_dtype_of_the_signature(value, specs, expected):
    (found,) = read_columns(dict.fromkeys(specs, value), specs).values()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_texts_may_be_any_bytes():
    data = b"a\xff\0"
    texts = ["é", {"b64": base64.b64encode(data).decode()}]
    for inputs in ({"texts": texts}, texts):  # a single tensor needs no name
        assert read_columns(inputs, TEXTS)["texts"].tolist() == ["é".encode(), data]


@pytest.mark.parametrize(
    ("value", "specs", "message"),
    [
        ([[1.5]], IDS, "`ids` must be int32 .* other values"),
        ([[1], [2, 3]], IDS, "`ids` must be int32"),
        ([[2**31]], IDS, "`ids` must be int32 .* too large"),
        ([1], IDS, r"`ids` must have the shape \(None, None\)\. Received: \[1\]"),
        (1e39, TEMPERATURE, "`temperature` must be float32 .* too large"),
        ([["a"]], TEXTS, "`texts` must have the shape"),
        (["\ud800"], TEXTS, "a text must be Unicode or base64"),
        ([{"b64": "", "a": 1}], TEXTS, "a text must be a string"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(value, specs, message):
    with pytest.raises(UserError, match=message) as raised:
        read_columns(dict.fromkeys(specs, value), specs)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("inputs", [[], {"ids": [[1]]}, {"ids": [[1]], "a": 1}])
def test_all_tensors_and_no_others_are_given(inputs):
    specs = {**IDS, "lengths": tf.TensorSpec((None,), tf.int32)}
    with pytest.raises(UserError, match=r"`inputs` must be \['ids', 'lengths'\]\. Received: "):
        read_columns(inputs, specs)
    with pytest.raises(UserError, match=r"`inputs` must be \['ids', 'lengths'\]\. Received: \[\]"):
        read_protos({}, specs, 1000)


def test_floats_are_written_without_rounding():
    nats = np.array([0.1, 1e-30, np.inf, 3], np.float32)
    found = json.loads(write_columns({"nats": nats, "tokens": np.int32([1])}))["outputs"]
    np.testing.assert_array_equal(np.array(found["nats"], np.float32), nats)
    assert found["tokens"] == [1]


def test_bytes_that_are_no_text_are_written_as_base64():
    texts = np.array([b"a", b"\xff\0"], object)
    found = json.loads(write_columns({"texts": texts}))["outputs"]
    assert found == ["a", {"b64": base64.b64encode(b"\xff\0").decode()}]


def test_protocol_buffers_are_tensors():
    ids = np.array([[3, 1, 4]], np.int32)
    found = read_protos({"ids": tf.make_tensor_proto(ids)}, IDS, 12)
    np.testing.assert_array_equal(found["ids"], ids)
    texts = read_protos({"texts": tf.make_tensor_proto([b"a\0", b""])}, TEXTS, 100)
    assert texts["texts"].tolist() == [b"a\0", b""]


def make_proto(shape, **values):
    proto = tf.make_tensor_proto(np.zeros((1,) * len(shape), np.int32))
    proto.Clear()
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    for name, value in values.items():
        if isinstance(value, list):
            getattr(proto, name).extend(value)
        else:
            setattr(proto, name, value)
    return proto


INT32, STRING = tf.int32.as_datatype_enum, tf.string.as_datatype_enum


@pytest.mark.parametrize(
    ("proto", "specs", "message"),
    [
        (make_proto((10**5, 10**5), dtype=INT32, int_val=[1]), IDS, "at most 1,000 bytes"),
        (make_proto((-1, -1), dtype=INT32, int_val=[1]), IDS, "must have"),
        (make_proto((3,), dtype=STRING, string_val=[b"a"]), TEXTS, "as many texts"),
        (make_proto((1, 1), dtype=STRING, string_val=[b"a"]), IDS, "`ids` must be int32"),
        (make_proto((2, 2), dtype=INT32, tensor_content=b"abc"), IDS, "`ids` must be a tensor"),
    ],
)
def test_a_protocol_buffer_that_does_not_fit_is_refused(proto, specs, message):
    """Also one of few bytes that stands for a large tensor."""
    with pytest.raises(UserError, match=message):
        read_protos(dict.fromkeys(specs, proto), specs, 1000)
