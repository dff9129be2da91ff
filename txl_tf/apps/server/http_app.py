"""The server over HTTP: TensorFlow Serving's REST API, and generation in sessions."""

import json
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from txl_tf.apps.server.answers import EVENTS, Answer, GoneError, read_body
from txl_tf.apps.server.descriptions import describe_metadata, describe_status
from txl_tf.apps.server.refusals import describe, find_status
from txl_tf.apps.server.served_folder import DEFAULT_SIGNATURE, ServedFolder
from txl_tf.apps.server.session_requests import Continuation, read_continuation, read_seed
from txl_tf.apps.server.session_store import SessionStore, StoredSession
from txl_tf.apps.server.settings import ServerSettings
from txl_tf.apps.server.tensors import check_keys, parse_json, read_columns, write_columns
from txl_tf.apps.server.text_session import DrawnToken, SessionEngine, TextSession
from txl_tf.apps.server.work_queue import WorkQueue
from txl_tf.errors import UserError

Handler = Callable[[Request, Answer], Awaitable[None]]
_MODEL = "/v1/models/{name}"
_SESSION = _MODEL + "/sessions/{session_id}"


class HttpApp:
    """The requests of the server over HTTP.

    Args:
        folder: The model.
        queue: The threads and the places of requests.
        settings: The bounds.
        clock: The time in seconds, by which sessions are idle and streams end.
    """

    def __init__(
        self,
        folder: ServedFolder,
        queue: WorkQueue,
        settings: ServerSettings,
        clock: Callable[[], float],
    ):
        self._folder = folder
        self._queue = queue
        self._settings = settings
        self._clock = clock
        self.engine = SessionEngine(folder) if folder.has_sessions else None
        self.sessions = SessionStore(settings.max_sessions, settings.idle_seconds, clock)
        self.ends_at = math.inf  # when streams end, by the clock

    def make_asgi(self) -> Starlette:
        """Returns the ASGI application."""
        routes: list[tuple[str, str, Handler]] = [
            ("GET", _MODEL, self._get_status),
            ("GET", _MODEL + "/versions/{version}", self._get_status),
            ("GET", _MODEL + "/metadata", self._get_metadata),
            ("GET", _MODEL + "/versions/{version}/metadata", self._get_metadata),
            ("POST", _MODEL + ":predict", self._predict),
            ("POST", _MODEL + "/versions/{version}:predict", self._predict),
            ("POST", _MODEL + "/sessions", self._add_session),
            ("POST", _SESSION + ":generate", self._generate),
            ("GET", _SESSION, self._get_session),
            ("DELETE", _SESSION, self._delete_session),
        ]
        return Starlette(
            routes=[
                Route(path, Endpoint(handler, self._folder, self._settings), methods=[method])
                for method, path, handler in routes
            ],
            exception_handlers={HTTPException: _answer_unknown},
        )

    async def _get_status(self, request: Request, answer: Answer) -> None:
        await answer.send_json(_write(describe_status()))

    async def _get_metadata(self, request: Request, answer: Answer) -> None:
        await answer.send_json(_write(describe_metadata(self._folder)))

    async def _predict(self, request: Request, answer: Answer) -> None:
        """Calls a signature."""
        with self._queue.hold_place():
            body = await self._read_body(request)
            found = await self._queue.run(answer.check_wanted, self._compute, body)
            await answer.send_json(found)

    def _compute(self, body: bytes) -> bytes:
        """Returns the body of the answer to a request of `predict`."""
        content = parse_json(body)
        if "instances" in content:
            raise UserError(
                "`inputs` must hold the tensors, in columns. Received: `instances`, in rows, which "
                "outputs of different numbers of rows do not fit"
            )
        check_keys(content, ("signature_name", "inputs"))
        signature = content.get("signature_name", DEFAULT_SIGNATURE)
        inputs = read_columns(content.get("inputs"), self._folder.get_inputs(signature))
        return write_columns(self._folder.call(signature, inputs))

    async def _add_session(self, request: Request, answer: Answer) -> None:
        with self._queue.hold_place():
            body = await self._read_body(request)
            seed = read_seed(parse_json(body) if body else {})
            session = TextSession(self._get_engine(), seed)
            found = {"session": self.sessions.add(session)}
            await answer.send_json(_write(found), HTTPStatus.CREATED)

    async def _get_session(self, request: Request, answer: Answer) -> None:
        session = self.sessions.get(request.path_params["session_id"])
        found = {"tokens": session.text.n_read, "drawn": session.text.n_drawn}
        await answer.send_json(_write({**found, "in_use": session.in_use}))

    async def _delete_session(self, request: Request, answer: Answer) -> None:
        self.sessions.delete(request.path_params["session_id"])
        await answer.send_json(_write({}))

    async def _generate(self, request: Request, answer: Answer) -> None:
        """Reads a text and draws tokens, each of which is sent as soon as it is drawn."""
        with self._queue.hold_place():
            engine = self._get_engine()
            asked = read_continuation(
                parse_json(await self._read_body(request)),
                max_length=self._settings.max_length,
                banned=engine.banned,
            )
            with self.sessions.use(request.path_params["session_id"]) as session:
                segments = session.text.read(asked.text)
                while await self._queue.run(answer.check_wanted, _take_next, segments):
                    pass
                if asked.length:
                    session.text.check_begun()
                await answer.begin(EVENTS)
                await answer.send_event(await self._send_tokens(session, asked, answer))
                await answer.write(b"", is_last=True)

    async def _send_tokens(
        self, session: StoredSession, asked: Continuation, answer: Answer
    ) -> dict[str, Any]:
        """Draws and sends tokens; returns the last event, which tells why they end."""
        sampling = asked.sampling.make_tensors(self._get_engine().n_token)
        n_sent, reason = 0, "length"

        def draw() -> DrawnToken:
            return session.text.draw(asked.sampling, sampling)

        while n_sent < asked.length and reason == "length":
            try:
                token = await self._queue.run(answer.check_wanted, draw)
            except UserError as error:  # the status has been sent
                return {"error": describe(error), "tokens": n_sent}
            await answer.send_event(token._asdict())
            n_sent += 1
            if session.is_deleted:
                reason = "deleted"
            elif self._clock() >= self.ends_at:
                reason = "shutdown"
        return {"finished": reason, "tokens": n_sent}

    def _get_engine(self) -> SessionEngine:
        if self.engine is None:
            raise UserError(f"the model {self._folder.name!r} has no vocabulary, so no sessions")
        return self.engine

    async def _read_body(self, request: Request) -> bytes:
        settings = self._settings
        return await read_body(request, settings.max_bytes, settings.client_seconds)


class Endpoint:
    """Answers the requests of a route, an ASGI application.

    Args:
        handle: Answers a request, or raises an error that is its answer.
        folder: The model, whose name is a part of the route.
        settings: The bounds.
    """

    def __init__(self, handle: Handler, folder: ServedFolder, settings: ServerSettings):
        self._handle = handle
        self._folder = folder
        self._timeout = settings.client_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        request, answer = Request(scope, receive), Answer(receive, send, self._timeout)
        try:
            try:
                name, version = (request.path_params.get(key) for key in ("name", "version"))
                self._folder.check_name(str(name), version)
                await self._handle(request, answer)
            except UserError as error:
                await answer.send_json(_write({"error": describe(error)}), find_status(error))
            except GoneError:
                raise
            except Exception:
                if answer.has_begun:  # all that is left is to close the connection
                    raise
                logging.exception("a request failed")
                status = HTTPStatus.INTERNAL_SERVER_ERROR
                await answer.send_json(_write({"error": "the server failed; see its log"}), status)
        except GoneError:
            pass  # nobody waits for an answer
        finally:
            answer.close()


def _answer_unknown(request: Request, error: Exception) -> JSONResponse:
    """Answers a request of no route."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


def _write(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


def _take_next(iterator: Iterator[None]) -> bool:
    """Advances an iterator; returns whether it goes on."""
    try:
        next(iterator)
    except StopIteration:
        return False
    return True
