"""The server over HTTP: scores, and completions in the manner of OpenAI."""

import asyncio
import json
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from txl_tf.apps.server.api_requests import (
    RequestError,
    ScoreRequest,
    read_completion,
    read_request,
)
from txl_tf.apps.server.bounds import BoundedApp, read_body
from txl_tf.apps.server.model_service import Choice, ModelService
from txl_tf.apps.server.responses import describe_choices, make_error, make_head, make_response
from txl_tf.apps.server.session_store import SessionStore, Slot
from txl_tf.errors import UserError, explain_errors

# Requests whose texts are in memory; they take turns, piece by piece.
_N_DRAWING = 4
_GRACE_SECONDS = 30  # that requests in progress may take after a signal
_STREAM_PIECE, _WHOLE_PIECE = 8, 32  # tokens


class HttpApp:
    """Answers requests; one thread computes, and only the event loop's thread touches the rest."""

    def __init__(
        self, service: ModelService, *, max_tokens: int, max_sessions: int, idle_seconds: float
    ):
        self._service = service
        self._max_tokens = max_tokens
        self._sessions = SessionStore(max_sessions, idle_seconds)
        self._created = int(time.time())
        self._drawing = asyncio.Semaphore(_N_DRAWING)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="txl_tf")

    def make_asgi(self) -> ASGIApp:
        """Returns the ASGI application."""
        app = Starlette(
            routes=[
                Route("/health", self._report_health, methods=["GET"]),
                Route("/v1/models", self._list_models, methods=["GET"]),
                Route("/v1/score", self._score, methods=["POST"]),
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/sessions/{session}", self._delete_session, methods=["DELETE"]),
            ],
            exception_handlers=dict.fromkeys((UserError, HTTPException, Exception), _answer_error),
        )
        return BoundedApp(app)

    def run(self, host: str, port: int) -> None:
        """Listens at an address until SIGTERM or SIGINT, and prints it."""
        shown = f"[{host}]" if ":" in host else host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with explain_errors(f"{shown}:{port} cannot be listened at", OSError):
            listener = socket.create_server((host, port), family=family)
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

        # uvicorn raises the signals that it caught again when it ends, for these handlers.
        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        with listener:
            print(f"HTTP at http://{shown}:{listener.getsockname()[1]}/v1")
            asyncio.run(server.serve([listener]))
        self._worker.shutdown(cancel_futures=True)

    async def _report_health(self, request: Request) -> Response:
        return make_response({"status": "ok"})

    async def _list_models(self, request: Request) -> Response:
        model = {
            "id": self._service.name,
            "object": "model",
            "created": self._created,
            "owned_by": "txl_tf",
            "description": self._service.lm.describe(),
        }
        return make_response({"object": "list", "data": [model]})

    async def _delete_session(self, request: Request) -> Response:
        session = request.path_params["session"]
        self._sessions.delete(session)
        return make_response({"session": session, "deleted": True})

    async def _score(self, request: Request) -> Response:
        asked = read_request(await read_body(request), ScoreRequest)
        self._check_model(asked.model)
        found = await self._compute(request, self._service.score, asked)
        return Response(found, media_type="application/json")

    async def _complete(self, request: Request) -> Response:
        asked = read_completion(await read_body(request), self._max_tokens)
        self._check_model(asked.model)
        held, begins, slot = request.scope["held"], bool(asked.prompt), Slot()
        if asked.session is not None:
            slot = held.enter_context(self._sessions.use(asked.session, begins=begins))
        await held.enter_async_context(self._drawing)
        if begins:
            slot.texts = await self._compute(request, self._service.start, asked)
        texts = slot.texts
        assert texts is not None
        n_read = texts.n_prompt_tokens if begins else 0
        pieces = texts.draw(asked.max_tokens, _STREAM_PIECE if asked.stream else _WHOLE_PIECE)
        head, drawn = make_head(self._service.name, asked.session), self._draw(request, pieces)
        if asked.stream:
            headers = {"cache-control": "no-store"}
            events = _stream(head, drawn, n_read)
            return StreamingResponse(events, headers=headers, media_type="text/event-stream")
        parts = [choices async for choices in drawn]
        choices = [
            row[-1]._replace(text="".join(choice.text for choice in row))
            for row in zip(*parts, strict=True)
        ]
        return make_response({**head, **describe_choices(choices, n_read)})

    async def _draw(
        self, request: Request, pieces: Iterator[list[Choice]]
    ) -> AsyncIterator[list[Choice]]:
        """Yields the pieces of texts, between which other requests have their turns."""
        while (choices := await self._compute(request, next, pieces, None)) is not None:
            yield choices

    async def _compute(
        self, request: Request, function: Callable[..., Any], *arguments: object
    ) -> Any:
        """Returns the result of a function of the thread that computes, if the client is there."""
        if await request.is_disconnected():
            raise ClientDisconnect
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, function, *arguments)

    def _check_model(self, name: str | None) -> None:
        """Checks that a request is for the model that there is."""
        if name not in (None, self._service.name):
            message = f"there is no model {name!r}, only {self._service.name!r}"
            raise RequestError(HTTPStatus.NOT_FOUND, message)


async def _stream(
    head: dict[str, Any], drawn: AsyncIterator[list[Choice]], n_read: int
) -> AsyncIterator[str]:
    """Yields the events of a stream; Starlette cancels it if the client goes away."""
    async for choices in drawn:
        yield f"data: {json.dumps({**head, **describe_choices(choices, n_read)})}\n\n"
    yield "data: [DONE]\n\n"


async def _answer_error(request: Request, error: Exception) -> Response:
    """Answers a request that failed; uvicorn logs what is a fault of the server."""
    if isinstance(error, HTTPException):  # no such route, or not with this method
        place = f"{request.method} {request.url.path}"
        return make_error(HTTPStatus(error.status_code), f"{error.detail}: {place}")
    if isinstance(error, UserError):
        status = error.status if isinstance(error, RequestError) else HTTPStatus.BAD_REQUEST
        return make_error(status, str(error))
    return make_error(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed; its log says why")
