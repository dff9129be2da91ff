"""The server over HTTP: scores and completions in the style of OpenAI's API."""

import asyncio
import contextlib
import itertools
import json
import signal
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from types import FrameType
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from txl_tf.apps.server.api_requests import (
    RequestError,
    ScoreRequest,
    read_completion,
    read_request,
)
from txl_tf.apps.server.model_service import Choice, ModelService
from txl_tf.apps.server.session_store import Place, SessionStore
from txl_tf.errors import UserError, explain

_N_PLACES = 64
_MAX_BYTES = 4 * 2**20  # of a body
# The time that a client has to send its body, or to receive a part of its answer.
_CLIENT_SECONDS = 30.0
# Requests whose texts are in memory; they take turns, piece by piece.
_N_ACTIVE = 4
_GRACE_SECONDS = 30  # that requests in progress may take after a signal
_STREAM_PIECE, _WHOLE_PIECE = 8, 32  # tokens
Piece = TypeVar("Piece")


class HttpApp:
    """Answers requests: one thread computes, and the event loop's thread does everything else."""

    def __init__(
        self, service: ModelService, *, max_tokens: int, max_sessions: int, idle_seconds: float
    ):
        self._service = service
        self._max_tokens = max_tokens
        self._sessions = SessionStore(max_sessions, idle_seconds)
        self._created = int(time.time())
        self._active = asyncio.Semaphore(_N_ACTIVE)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="txl_tf")

    def make_asgi(self) -> ASGIApp:
        """Returns the ASGI application."""
        app = Starlette(
            routes=[
                Route("/health", self._report_health, methods=["GET"]),
                Route("/v1/models", self._list_models, methods=["GET"]),
                Route("/v1/models/{model:path}", self._show_model, methods=["GET"]),
                Route("/v1/score", self._score, methods=["POST"]),
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/chat/completions", self._refuse_chat, methods=["POST"]),
                Route("/v1/sessions/{session:path}", self._delete_session, methods=["DELETE"]),
            ],
            exception_handlers=dict.fromkeys((UserError, HTTPException, Exception), _answer_error),
        )
        return BoundedApp(app)

    def run(self, host: str, port: int) -> None:
        """Prints the address and listens on it until SIGTERM or SIGINT."""
        shown = f"[{host}]" if ":" in host else host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server((host, port), family=family)
        except OSError as error:  # whose text may repeat the address
            reason, *_ = explain(error).split(" (while ")
            raise UserError(f"cannot listen on {shown}:{port}: {reason}") from error
        config = uvicorn.Config(
            self.make_asgi(),
            http="h11",
            ws="none",
            lifespan="off",
            log_level="warning",
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        server = uvicorn.Server(config)

        def end(number: int, frame: FrameType | None) -> None:
            server.should_exit = True

        # When uvicorn ends, it raises the signals that it caught again, for these handlers.
        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        with listener:
            print(f"{self._service.name}: {self._service.lm.describe()}")
            print(f"HTTP at http://{shown}:{listener.getsockname()[1]}/v1")
            asyncio.run(server.serve([listener]))
        self._worker.shutdown(cancel_futures=True)

    async def _report_health(self, request: Request) -> Response:
        return _make_response({"status": "ok"})

    async def _list_models(self, request: Request) -> Response:
        return _make_response({"object": "list", "data": [self._describe_model()]})

    async def _show_model(self, request: Request) -> Response:
        self._check_model(request.path_params["model"])
        return _make_response(self._describe_model())

    def _describe_model(self) -> dict[str, Any]:
        return {
            "id": self._service.name,
            "object": "model",
            "created": self._created,
            "owned_by": "txl_tf",
            "description": self._service.lm.describe(),
        }

    async def _delete_session(self, request: Request) -> Response:
        session = request.path_params["session"]
        self._sessions.delete(session)
        return _make_response({"session": session, "deleted": True})

    async def _score(self, request: Request) -> Response:
        asked = read_request(await read_body(request), ScoreRequest)
        self._check_model(asked.model)
        await request.scope["held"].enter_async_context(self._active)
        pieces = self._take_turns(request, self._service.score(asked))
        scores = [score async for piece in pieces for score in piece]
        return _make_response({"model": self._service.name, "scores": scores})

    async def _complete(self, request: Request) -> Response:
        body, default = await read_body(request), self._service.default_prompt
        asked = read_completion(body, self._max_tokens, default)
        self._check_model(asked.model)
        held, begins, place = request.scope["held"], bool(asked.prompt), Place()
        if asked.session is not None:
            place = held.enter_context(self._sessions.use(asked.session, begins=begins))
        await held.enter_async_context(self._active)
        if begins:
            place.texts = await self._compute(request, self._service.start, asked)
        texts = place.texts
        assert texts is not None
        n_read = texts.n_prompt_tokens if begins else 0
        async for n_tokens in self._take_turns(request, texts.read(asked.text)):
            n_read += n_tokens
        pieces = texts.draw(asked.max_tokens, _STREAM_PIECE if asked.stream else _WHOLE_PIECE)
        if asked.echo:
            pieces = itertools.chain([[Choice(text, 0, None) for text in asked.rows]], pieces)
        drawn = self._take_turns(request, pieces)
        head = _make_head(self._service.name, asked.session)
        if asked.stream:
            headers = {"cache-control": "no-store"}
            events = _stream(head, drawn, n_read)
            return StreamingResponse(events, headers=headers, media_type="text/event-stream")
        parts = [choices async for choices in drawn]
        choices = [
            row[-1]._replace(text="".join(choice.text for choice in row))
            for row in zip(*parts, strict=True)
        ]
        return _make_response({**head, **_describe_choices(choices, n_read)})

    async def _refuse_chat(self, request: Request) -> Response:
        message = "this is a plain language model: use /v1/completions instead of a chat"
        raise RequestError(HTTPStatus.NOT_FOUND, message)

    async def _take_turns(self, request: Request, pieces: Iterator[Piece]) -> AsyncIterator[Piece]:
        """Yields the pieces of texts; other requests take their turns between them."""
        while (piece := await self._compute(request, next, pieces, None)) is not None:
            yield piece

    async def _compute(
        self, request: Request, function: Callable[..., Any], *arguments: object
    ) -> Any:
        """Calls a function in the computing thread, if the client is still connected."""
        if await request.is_disconnected():
            raise ClientDisconnect
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, function, *arguments)

    def _check_model(self, name: str | None) -> None:
        if name not in (None, self._service.name):
            message = f"there is no model {name!r}, only {self._service.name!r}"
            raise RequestError(HTTPStatus.NOT_FOUND, message)


class BoundedApp:
    """An ASGI application that limits the number of POST requests in progress.

    The exit stack "held" in the scope of a request is closed after its answer has been sent.
    """

    def __init__(self, app: ASGIApp):
        self._app = app
        self._n_free = _N_PLACES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(_CLIENT_SECONDS):
                await send(message)

        n_taken = int(scope["method"] == "POST")
        if n_taken > self._n_free:
            message = f"the server is busy: {_N_PLACES} requests are in progress"
            response = make_error(HTTPStatus.SERVICE_UNAVAILABLE, message)
            await response(scope, receive, send)
            return
        self._n_free -= n_taken
        try:
            async with contextlib.AsyncExitStack() as held:
                scope["held"] = held
                await self._app(scope, receive, send_in_time)
        except (ClientDisconnect, TimeoutError):
            pass  # the answer is not complete, so uvicorn closes the connection
        finally:
            self._n_free += n_taken


async def read_body(request: Request) -> bytes:
    """Returns the body of a request; rejects one that is too large or too late."""
    body = bytearray()
    try:
        async with asyncio.timeout(_CLIENT_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > _MAX_BYTES:
                    message = f"the body must have at most {_MAX_BYTES:,} bytes"
                    raise RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
    except TimeoutError as error:
        message = f"the body did not come within {_CLIENT_SECONDS:g} s"
        raise RequestError(HTTPStatus.REQUEST_TIMEOUT, message) from error
    return bytes(body)


async def _stream(
    head: dict[str, Any], drawn: AsyncIterator[list[Choice]], n_read: int
) -> AsyncIterator[str]:
    """Yields the events of a stream; Starlette cancels it if the client disconnects."""
    async for choices in drawn:
        yield f"data: {json.dumps({**head, **_describe_choices(choices, n_read)})}\n\n"
    yield "data: [DONE]\n\n"


async def _answer_error(request: Request, error: Exception) -> Response:
    """Answers a request that failed; uvicorn logs the server's own errors."""
    if isinstance(error, HTTPException):  # no such route, or not with this method
        place = f"{request.method} {request.url.path}"
        return make_error(HTTPStatus(error.status_code), f"{error.detail}: {place}")
    if isinstance(error, UserError):
        status = error.status if isinstance(error, RequestError) else HTTPStatus.BAD_REQUEST
        return make_error(status, str(error))
    return make_error(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed; its log says why")


def _make_response(content: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
    # Starlette's JSON response rejects the lone surrogates that a vocabulary may hold.
    return Response(json.dumps(content), status, media_type="application/json")


def make_error(status: HTTPStatus, message: str) -> Response:
    """Returns the answer to a request that failed, with the message on one line."""
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    error = {"message": " ".join(message.split()), "type": kind, "param": None, "code": None}
    response = _make_response({"error": error}, status)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        response.headers["retry-after"] = "1"
    return response


def _make_head(model: str, session: str | None) -> dict[str, Any]:
    """Returns the first fields of an answer with texts, or of each event of its stream."""
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "session": session,
    }


def _describe_choices(choices: Sequence[Choice], n_prompt_tokens: int) -> dict[str, Any]:
    """Returns the texts of an answer or an event, and the usage with the last texts."""
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
