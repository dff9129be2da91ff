"""Status and metadata of a model as TensorFlow Serving gives them."""

from typing import Any

from google.protobuf import json_format
from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2

from txl_tf.apps.server.served_folder import VERSION, ServedFolder


def make_status() -> get_model_status_pb2.GetModelStatusResponse:
    """Returns the status of the model, which is available as soon as the server listens."""
    answer = get_model_status_pb2.GetModelStatusResponse()
    version = answer.model_version_status.add(
        version=VERSION, state=get_model_status_pb2.ModelVersionStatus.AVAILABLE
    )
    version.status.error_code = 0
    return answer


def describe_status() -> dict[str, Any]:
    """Returns the status as JSON."""
    version = {"error_code": "OK", "error_message": ""}
    return {
        "model_version_status": [{"version": str(VERSION), "state": "AVAILABLE", "status": version}]
    }


def make_metadata(folder: ServedFolder) -> get_model_metadata_pb2.GetModelMetadataResponse:
    """Returns the inputs and outputs of all signatures."""
    answer = get_model_metadata_pb2.GetModelMetadataResponse()
    answer.model_spec.name = folder.name
    answer.model_spec.version.value = VERSION
    signatures = _collect_signatures(folder)
    answer.metadata["signature_def"].Pack(signatures)
    return answer


def describe_metadata(folder: ServedFolder) -> dict[str, Any]:
    """Returns the same as JSON."""
    signatures = json_format.MessageToDict(
        _collect_signatures(folder),
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    spec = {"name": folder.name, "signature_name": "", "version": str(VERSION)}
    return {"model_spec": spec, "metadata": {"signature_def": signatures}}


def _collect_signatures(folder: ServedFolder) -> get_model_metadata_pb2.SignatureDefMap:
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for name in folder.functions:
        signatures.signature_def[name].CopyFrom(folder.signature_defs[name])
    return signatures
