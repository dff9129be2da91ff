"""What requests may take of the server: places, bytes and time."""

import asyncio
import contextlib
from http import HTTPStatus

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from txl_tf.apps.server.api_requests import RequestError
from txl_tf.apps.server.responses import make_error

_N_PLACES = 64
_MAX_BYTES = 4 * 2**20  # of a body
# The time that a client has to send its body, or to take a part of its answer.
_CLIENT_SECONDS = 30.0


class BoundedApp:
    """An ASGI application whose POST requests take places until their answers have been sent.

    An exit stack in the scope of a request, "held", keeps what it uses for just as long.
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
    """Returns the body of a request, which may be too large or come too late."""
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
