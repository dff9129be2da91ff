"""Answers in the form of OpenAI's API."""

import json
import time
import uuid
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from txl_tf.apps.server.model_service import Choice


def make_response(content: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Returns an answer of JSON."""
    # Starlette's own does not take the lone surrogates that a vocabulary may hold.
    return Response(json.dumps(content), status, media_type="application/json")


def make_error(status: HTTPStatus, message: str) -> Response:
    """Returns the answer to a request that failed, with the message on one line."""
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    error = {"message": " ".join(message.split()), "type": kind, "param": None, "code": None}
    response = make_response({"error": error}, status)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        response.headers["retry-after"] = "1"
    return response


def make_head(model: str, session: str | None) -> dict[str, Any]:
    """Returns what an answer to a request for texts, or all events of its stream, begin with."""
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "session": session,
    }


def describe_choices(choices: Sequence[Choice], n_prompt_tokens: int) -> dict[str, Any]:
    """Returns the texts of an answer or an event, and if they are the last ones the usage."""
    described = [
        {
            "index": index,
            "text": choice.text,
            "logprobs": None,
            "finish_reason": choice.finish_reason,
        }
        for index, choice in enumerate(choices)
    ]
    if choices[0].finish_reason is None:
        return {"choices": described}
    n_drawn = sum(choice.n_tokens for choice in choices)
    usage = {
        "prompt_tokens": n_prompt_tokens,
        "completion_tokens": n_drawn,
        "total_tokens": n_prompt_tokens + n_drawn,
    }
    return {"choices": described, "usage": usage}
