"""The server over gRPC: the services of TensorFlow Serving that its clients call."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    predict_pb2,
)

from txl_tf.apps.server.descriptions import make_metadata, make_status
from txl_tf.apps.server.refusals import describe, find_status
from txl_tf.apps.server.served_folder import DEFAULT_SIGNATURE, VERSION, ServedFolder
from txl_tf.apps.server.settings import ServerSettings
from txl_tf.apps.server.tensors import read_protos
from txl_tf.apps.server.work_queue import WorkQueue
from txl_tf.errors import UserError

_CODES = {
    HTTPStatus.BAD_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    HTTPStatus.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
Function = Callable[[Any], Awaitable[Any]]


class GrpcService:
    """The requests of the server over gRPC.

    Args:
        folder: The model.
        queue: The threads and the places of requests, those of HTTP, too.
        settings: The bounds.
    """

    def __init__(self, folder: ServedFolder, queue: WorkQueue, settings: ServerSettings):
        self._folder = folder
        self._queue = queue
        self._settings = settings

    def make_server(self) -> grpc.aio.Server:
        """Returns the server, without a port."""
        server = grpc.aio.server(
            maximum_concurrent_rpcs=self._queue.n_places,
            options=[
                ("grpc.max_receive_message_length", self._settings.max_bytes),
                ("grpc.so_reuseport", 0),  # otherwise two servers would share a port unnoticed
            ],
        )
        predict, metadata, status = (
            grpc.unary_unary_rpc_method_handler(
                _refuse(function), kind.FromString, lambda answer: answer.SerializeToString()
            )
            for function, kind in [
                (self._predict, predict_pb2.PredictRequest),
                (self._get_metadata, get_model_metadata_pb2.GetModelMetadataRequest),
                (self._get_status, get_model_status_pb2.GetModelStatusRequest),
            ]
        )
        services = {
            "PredictionService": {"Predict": predict, "GetModelMetadata": metadata},
            "ModelService": {"GetModelStatus": status},
        }
        server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(f"tensorflow.serving.{name}", methods)
                for name, methods in services.items()
            ]
        )
        return server

    async def _predict(self, request: Any) -> Any:
        self._check_name(request.model_spec)
        with self._queue.hold_place():
            # A client that goes away cancels the call, which then leaves the queue.
            return await self._queue.run(lambda: None, self._compute, request)

    def _compute(self, request: Any) -> Any:
        """Returns the answer to a request of `Predict`."""
        signature = request.model_spec.signature_name or DEFAULT_SIGNATURE
        specs = self._folder.get_inputs(signature)
        inputs = read_protos(dict(request.inputs), specs, self._settings.max_bytes)
        outputs = self._folder.call(signature, inputs)
        names = list(request.output_filter) or list(outputs)
        if not set(names) <= set(outputs):
            raise UserError(f"`output_filter` must be some of {sorted(outputs)}. Received: {names}")
        answer = predict_pb2.PredictResponse()
        answer.model_spec.name = self._folder.name
        answer.model_spec.version.value = VERSION
        answer.model_spec.signature_name = signature
        for name in names:
            answer.outputs[name].CopyFrom(tf.make_tensor_proto(outputs[name]))
        return answer

    async def _get_metadata(self, request: Any) -> Any:
        self._check_name(request.model_spec)
        return make_metadata(self._folder)

    async def _get_status(self, request: Any) -> Any:
        self._check_name(request.model_spec)
        return make_status()

    def _check_name(self, spec: Any) -> None:
        version = spec.version.value if spec.HasField("version") else spec.version_label
        self._folder.check_name(spec.name, version or None)


def _refuse(function: Function) -> Callable[[Any, grpc.aio.ServicerContext], Awaitable[Any]]:
    """Returns a method whose errors are the status of the call."""

    async def answer(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            return await function(request)
        except UserError as error:
            code = _CODES.get(find_status(error), grpc.StatusCode.INTERNAL)
            return await context.abort(code, describe(error)[:2000])

    return answer
