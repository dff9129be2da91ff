"""HTTP requests and answers of bounded size, whose clients may be slow or go away."""

import asyncio
import json
from http import HTTPStatus
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Send

from txl_tf.apps.server.refusals import RefusedError

_PART_BYTES = 65_536  # the transport is told to wait between the parts of an answer
JSON, EVENTS = "application/json", "text/event-stream"


class GoneError(Exception):
    """The client went away, or takes nothing any more."""


async def read_body(request: Request, max_bytes: int, timeout: float) -> bytes:
    """Returns the body of a request.

    Args:
        request: The request.
        max_bytes: The largest size that is read.
        timeout: Seconds to wait for all of it.

    Raises:
        RefusedError: If it is larger, status 413, or does not come in time, status 408.
        GoneError: If the client went away.
    """
    parts: list[bytes] = []
    size = int(request.headers.get("content-length", 0))
    try:
        async with asyncio.timeout(timeout):
            if size <= max_bytes:
                size = 0
                async for part in request.stream():
                    size += len(part)
                    if size > max_bytes:
                        break
                    parts.append(part)
    except TimeoutError as error:
        raise RefusedError(
            HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {timeout:g} s"
        ) from error
    except ClientDisconnect as error:
        raise GoneError from error
    if size > max_bytes:
        raise RefusedError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the body must have at most {max_bytes:,} bytes. Received: {size:,} or more",
        )
    return b"".join(parts)


class Answer:
    """The answer to a request, sent part by part.

    Args:
        receive: The messages of the request.
        send: Takes the messages of the answer.
        timeout: Seconds to wait for a client that takes nothing.

    Attributes:
        has_begun: Whether the status has been sent.
    """

    def __init__(self, receive: Receive, send: Send, timeout: float):
        self._receive = receive
        self._send = send
        self._timeout = timeout
        self._gone: asyncio.Task[None] | None = None
        self.has_begun = False

    def check_wanted(self) -> None:
        """Checks that the client is there; the body of the request must have been read.

        Raises:
            GoneError: If it went away.
        """
        if self._gone is None:
            self._gone = asyncio.create_task(self._wait_until_gone())
        if self._gone.done():
            raise GoneError

    def close(self) -> None:
        """Looks for the client no more."""
        if self._gone is not None:
            self._gone.cancel()

    async def begin(
        self, kind: str, *, status: HTTPStatus = HTTPStatus.OK, length: int | None = None
    ) -> None:
        """Sends status and headers.

        Args:
            kind: The media type.
            status: The status.
            length: The number of bytes that follow; `None` if it is not known.
        """
        headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-store")]
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append((b"retry-after", b"1"))
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        message = {"type": "http.response.start", "status": int(status), "headers": headers}
        self.has_begun = True
        await self._send_message(message)

    async def write(self, part: bytes, *, is_last: bool = False) -> None:
        """Sends a part of the body.

        Raises:
            GoneError: If the client takes nothing for too long.
        """
        await self._send_message(
            {"type": "http.response.body", "body": part, "more_body": not is_last}
        )

    async def send_json(self, body: bytes, status: HTTPStatus = HTTPStatus.OK) -> None:
        """Sends a whole answer.

        Raises:
            GoneError: If the client takes nothing for too long.
        """
        await self.begin(JSON, status=status, length=len(body))
        for start in range(0, len(body), _PART_BYTES):
            await self.write(body[start : start + _PART_BYTES])
        await self.write(b"", is_last=True)

    async def send_event(self, event: dict[str, Any]) -> None:
        """Sends a server-sent event.

        Raises:
            GoneError: If the client went away, or takes nothing for too long.
        """
        self.check_wanted()
        await self.write(f"data: {json.dumps(event)}\n\n".encode())

    async def _send_message(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._send(message)
        except (TimeoutError, OSError) as error:
            raise GoneError from error

    async def _wait_until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
