"""`python -m txl_tf.serve` in a process of its own, and clients that behave and that do not."""

import concurrent.futures
import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.parse

import numpy as np
import pytest
import tensorflow as tf
from places import ROOT
from small_language_model import WORDS, make_model

for name in ("grpc", "starlette", "tensorflow_serving", "uvicorn"):
    pytest.importorskip(name, reason="pip install -e '.[serve]'")

import grpc  # noqa: E402  after what it needs
from tensorflow_serving.apis import (  # noqa: E402
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

import txl_tf.serve  # noqa: E402
from benchmarks.served_process import start_server  # noqa: E402

# Requests that may be in progress at once: for each thread one, and those that wait.
N_PLACES, MAX_BYTES, MANY = 5, 50 * 1024, 100_000
GENERATION = {"text": "the cat", "length": 13, "temperature": 0.0, "top_k": 0, "seed": 0}
WAIT = 300  # seconds that nothing takes, however slow the machine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "mats"
    make_model(7, vocabulary=WORDS, same_length=True).export(path)
    return path


@pytest.fixture(scope="module")
def server(folder):
    bounds = [f"--max_body={MAX_BYTES / 2**20}", f"--max_length={MANY}", "--threads=2"]
    bounds += [f"--queue={N_PLACES - 2}"]
    with start_server(folder, *bounds, f"--client_timeout={WAIT}") as server:
        yield server


@pytest.fixture(scope="module")
def signatures(folder):
    loaded = tf.saved_model.load(str(folder))
    yield loaded.signatures
    del loaded


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.address) as channel:
        yield channel


@pytest.fixture(scope="module")
def inputs(signatures):
    """Arguments of all signatures."""
    memory = signatures["initial_memory"](batch_size=tf.constant(2))
    ids = {"ids": [[1, 2, 3], [6, 2, 0]], "lengths": [3, 2]}
    memory = {key: value.numpy().tolist() for key, value in memory.items()}
    return {
        "score_text": {"texts": ["the cat sat on the mat\na cat", "", "a cat"]},
        "score_ids": ids,
        "initial_memory": {"batch_size": 2},
        "step": {**ids, "reset": [False, True], **memory},
        "generate_text": GENERATION,
    }


def connect(server):
    parts = urllib.parse.urlsplit(server.url)
    return http.client.HTTPConnection(parts.netloc, timeout=WAIT), parts.path


def send(server, method, path, body=None, headers=()):
    """Returns the response to a request, and the connection."""
    connection, root = connect(server)
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection.request(method, path if path.startswith("/v1") else root + path, data, dict(headers))
    return connection.getresponse(), connection


def call(server, method, path, body=None):
    """Returns the status and the content of the answer to a request."""
    response, connection = send(server, method, path, body)
    with contextlib.closing(connection):
        return response.status, json.load(response)


def predict(server, signature, inputs):
    body = {"signature_name": signature, "inputs": inputs}
    status, answer = call(server, "POST", ":predict", body)
    assert status == 200, answer
    return answer["outputs"]


def make_tensor(value, spec):
    return tf.constant(value, spec.dtype)


def predict_by_grpc(channel, signature, inputs, specs):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "mats"
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        tensor = make_tensor(value, specs[name])
        request.inputs[name].CopyFrom(tf.make_tensor_proto(tensor.numpy(), tensor.dtype))
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    answer = stub.Predict(request, timeout=WAIT)
    return {name: tf.make_ndarray(proto) for name, proto in answer.outputs.items()}


def call_signature(signatures, name, inputs):
    function = signatures[name]
    specs = function.structured_input_signature[1]
    found = function(**{key: make_tensor(value, specs[key]) for key, value in inputs.items()})
    return {key: value.numpy() for key, value in found.items()}


def test_the_example_is_a_client(server, signatures):
    texts = ["the cat sat", "a cat"]
    command = [sys.executable, ROOT / "examples" / "serving_client.py", server.url, *texts]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split(maxsplit=1) for line in ran.stdout.splitlines()]
    expected = call_signature(signatures, "score_text", {"texts": texts})["bpc"]
    np.testing.assert_allclose([float(row[0]) for row in rows], expected, atol=1e-4)
    assert [row[1] for row in rows] == texts


def test_both_protocols_give_the_answers_of_the_signatures(server, channel, signatures, inputs):
    """The same to the bit: JSON holds all digits."""
    for name, given in inputs.items():
        expected = call_signature(signatures, name, given)
        specs = signatures[name].structured_input_signature[1]
        arrays = predict_by_grpc(channel, name, given, specs)
        found = predict(server, name, given)
        if name == "generate_text":
            assert arrays["text"].item().decode() == found == expected["text"].decode()
            continue
        found = found if len(arrays) > 1 else {next(iter(arrays)): found}
        assert set(found) == set(arrays) == set(expected)
        for key, array in arrays.items():
            np.testing.assert_allclose(array, expected[key], rtol=0, atol=2e-6, err_msg=key)
            np.testing.assert_array_equal(np.array(found[key], array.dtype), array, err_msg=key)


def test_the_model_is_available(server, channel):
    for path in ("", "/versions/1"):
        status, answer = call(server, "GET", path)
        assert status == 200
        (version,) = answer["model_version_status"]
        assert (version["version"], version["state"]) == ("1", "AVAILABLE")
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "mats"
    stub = model_service_pb2_grpc.ModelServiceStub(channel)
    (version,) = stub.GetModelStatus(request, timeout=WAIT).model_version_status
    assert (version.version, version.state) == (1, version.AVAILABLE)


def test_metadata_tell_inputs_and_outputs(server, channel, folder):
    described = json.loads((folder / "txl_tf.json").read_text())["signatures"]
    _, answer = call(server, "GET", "/metadata")
    found = answer["metadata"]["signature_def"]["signature_def"]
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "mats"
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    packed = stub.GetModelMetadata(request, timeout=WAIT).metadata["signature_def"]
    by_grpc = get_model_metadata_pb2.SignatureDefMap()
    assert packed.Unpack(by_grpc)
    assert set(found) == set(described) == set(by_grpc.signature_def)
    for name, tensors in described.items():
        for side in ("inputs", "outputs"):
            assert set(found[name][side]) == set(tensors[side])
            for key, tensor in tensors[side].items():
                sizes = [int(dim["size"]) for dim in found[name][side][key]["tensor_shape"]["dim"]]
                assert sizes == tensor["shape"]


LARGE = b" " * (MAX_BYTES + 1)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", ":predict", b"{", 400, "the body must be JSON"),
        ("POST", ":predict", {"signature_name": "score_text"}, 400, "a text must be a string"),
        ("POST", "/versions/2:predict", {}, 404, "the server has version 1 of the model 'mats'"),
        ("POST", ":predict", LARGE, 413, "the body must have at most 51,200 bytes. Received: 51,2"),
        ("DELETE", ":predict", None, 405, "Method Not Allowed"),
        ("POST", "/sessions", {"seed": -1}, 400, "`seed` must be from 0 to"),
        ("GET", "/sessions/a", None, 404, "there is no such session"),
        ("POST", "/sessions/a:generate", {"length": 3}, 404, "there is no such session"),
    ],
)
def test_a_wrong_request_is_one_line(method, path, body, status, message, server):
    found, answer = call(server, method, path, body)
    assert (found, list(answer)) == (status, ["error"])
    assert answer["error"].startswith(message)
    assert "\n" not in answer["error"]


def test_a_body_of_unknown_length_is_read_up_to_the_bound(server):
    connection, root = connect(server)
    with contextlib.closing(connection):
        parts = iter([LARGE[:1000]] * (MAX_BYTES // 1000 + 2))
        connection.request("POST", f"{root}:predict", parts, encode_chunked=True)
        response = connection.getresponse()
        assert (response.status, "at most 51,200" in json.load(response)["error"]) == (413, True)


def make_request(name="mats", texts=("a",)):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = name
    request.model_spec.signature_name = "score_text"
    request.inputs["texts"].CopyFrom(tf.make_tensor_proto(list(texts)))
    return request


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (make_request(texts=["the dog"]), "INVALID_ARGUMENT", "a text holds a symbol that the voc"),
        (make_request("dogs"), "NOT_FOUND", "the server has version 1 of the model 'mats'"),
        (make_request(texts=["a " * MAX_BYTES]), "RESOURCE_EXHAUSTED", ""),
    ],
)
def test_a_wrong_call_has_its_code(request_, code, message, channel):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    with pytest.raises(grpc.RpcError) as raised:
        stub.Predict(request_, timeout=WAIT)
    assert raised.value.code().name == code
    assert raised.value.details().startswith(message)


@contextlib.contextmanager
def begin_session(server, **body):
    """Yields the path of a new session, which is deleted in the end."""
    status, answer = call(server, "POST", "/sessions", body)
    assert status == 201, answer
    path = f"/sessions/{answer['session']}"
    try:
        yield path
    finally:
        send(server, "DELETE", path)[1].close()


@contextlib.contextmanager
def stream(server, session, **body):
    """Yields the events of a stream; the connection is closed in the end."""
    response, connection = send(server, "POST", f"{session}:generate", body)
    assert response.status == 200, response.read()
    assert response.headers["Content-Type"] == "text/event-stream"
    lines = (line for line in response if line != b"\n")
    try:
        yield (json.loads(line.removeprefix(b"data: ")) for line in lines)
    finally:
        response.close()
        connection.close()


def generate(server, session, **body):
    """Returns the text that a request adds to a session."""
    with stream(server, session, **body) as events:
        *tokens, last = events
    assert last == {"finished": "length", "tokens": body["length"]}
    return "".join(token["text"] for token in tokens)


def test_sessions_know_nothing_of_each_other(server):
    prompts = ["the cat", "a mat", "sat on the cat"]
    settings = {"temperature": 1.0, "top_k": 0}
    alone = []
    for seed, text in enumerate(prompts):
        given = {**settings, "length": 28, "seed": seed, "text": text}
        alone.append(predict(server, "generate_text", given))

    def draw_rest(session):
        return generate(server, session, length=21, **settings)

    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(begin_session(server, seed=seed)) for seed in range(3)]
        found = [
            generate(server, session, text=text, length=7, **settings)
            for session, text in zip(sessions, prompts, strict=True)
        ]
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            rest = list(pool.map(draw_rest, sessions))
    assert [one + other for one, other in zip(found, rest, strict=True)] == alone


def wait_until_free(server, session):
    for _ in range(WAIT * 10):
        _, answer = call(server, "GET", session)
        if not answer["in_use"]:
            return answer
        time.sleep(0.1)
    raise AssertionError("the session is still in use")


def test_a_client_that_goes_away_ends_its_stream(server):
    """And its session goes on where the stream has ended."""
    with begin_session(server) as session:
        with stream(server, session, text="the cat", length=MANY) as events:
            for _ in range(3):
                next(events)
        ended = wait_until_free(server, session)
        assert 3 <= ended["drawn"] < MANY
        generate(server, session, length=5)
        drawn = ended["drawn"] + 5
        expected = {"tokens": 2 + drawn, "drawn": drawn, "in_use": False}
        assert call(server, "GET", session)[1] == expected


def hold_place(server):
    """Returns a connection whose request never sends its body."""
    parts = urllib.parse.urlsplit(server.url)
    connection = socket.create_connection((parts.hostname, parts.port), WAIT)
    head = f"POST {parts.path}:predict HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"
    connection.sendall(head.encode())
    return connection


def wait_until_refused(server, refused):
    """Waits until the server refuses a request, or takes one."""
    for _ in range(WAIT * 10):
        response, connection = send(server, "POST", ":predict", {})
        with contextlib.closing(connection):
            answer = json.load(response)
        if (response.status == 503) is refused:
            return response, answer
        time.sleep(0.1)
    raise AssertionError("the server did not change its mind")


def test_a_request_too_many_is_refused_until_a_place_is_free(server, channel):
    with contextlib.ExitStack() as stack:
        for _ in range(N_PLACES):
            stack.enter_context(hold_place(server))
        response, answer = wait_until_refused(server, True)
        assert response.headers["Retry-After"] == "1"
        assert answer["error"] == "the server is busy: 5 requests are in progress"
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        with pytest.raises(grpc.RpcError) as raised:
            stub.Predict(make_request(), timeout=WAIT)
        assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call(server, "GET", "")[0] == 200
    wait_until_refused(server, False)
    assert predict(server, "score_text", ["a"])["tokens"] == [0]


@pytest.fixture(scope="module")
def impatient(folder):
    with start_server(folder, "--client_timeout=1") as server:
        yield server


def test_a_client_that_sends_no_body_is_told_so(impatient):
    with hold_place(impatient) as connection:
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 408
        assert json.load(answer) == {"error": "the body did not come within 1 s"}


def test_a_port_that_is_taken_is_one_line(folder, server, capsys):
    port = urllib.parse.urlsplit(server.url).port
    arguments = ["serve", str(folder), f"--port={port}", "--grpc_port=0"]
    assert txl_tf.serve.main(arguments) == 1
    error = capsys.readouterr().err
    assert error == f"serve: 127.0.0.1:{port} cannot be listened at: Address already in use\n"


def test_sigterm_finishes_what_is_in_progress(server):
    """The last test of this server."""
    _, answer = call(server, "POST", "/sessions", {})
    session = f"/sessions/{answer['session']}"
    with stream(server, session, text="the cat", length=101) as events:
        next(events)
        server.process.send_signal(signal.SIGTERM)
        *tokens, last = events
    assert len(tokens) == 100
    assert last == {"finished": "length", "tokens": 101}
    assert server.process.wait(WAIT) == 0
    with pytest.raises(ConnectionRefusedError):
        call(server, "GET", "")
