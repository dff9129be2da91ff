"""The sessions of all clients: limited in number, and dropped when they are idle."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus

from txl_tf.apps.server.api_requests import RequestError
from txl_tf.apps.server.model_service import ServedTexts


@dataclass
class Place:
    """A session in the store."""

    texts: ServedTexts | None = None  # until the session has begun
    in_use: bool = False
    used_at: float = 0.0  # when the last request that used it ended


class SessionStore:
    """Sessions by the ids that clients chose; only the thread of the event loop may use it.

    If the store is full, a new session is rejected: dropping another one would lose its text.
    """

    def __init__(self, max_sessions: int, idle_seconds: float):
        self._max_sessions = max_sessions
        self._idle_seconds = idle_seconds
        self._places: dict[str, Place] = {}

    @contextlib.contextmanager
    def use(self, session: str, *, begins: bool) -> Iterator[Place]:
        """Yields the place of a session, and removes it if the session did not begin.

        Raises:
            RequestError: If there is no such session (status 404), it already exists or another
                request uses it (409), or there are too many (429).
        """
        self._drop_idle()
        if begins and session in self._places:
            raise RequestError(
                HTTPStatus.CONFLICT,
                f"session {session!r} exists: continue it without `prompt`, or delete it",
            )
        if begins and len(self._places) >= self._max_sessions:
            message = f"there are {len(self._places)} sessions, the most that there may be"
            raise RequestError(HTTPStatus.TOO_MANY_REQUESTS, message)
        place = self._places.setdefault(session, Place()) if begins else self._get(session)
        if place.in_use:
            raise RequestError(HTTPStatus.CONFLICT, f"another request uses session {session!r}")
        place.in_use = True
        try:
            yield place
        finally:
            place.in_use = False
            place.used_at = time.monotonic()
            if place.texts is None and self._places.get(session) is place:
                del self._places[session]

    def delete(self, session: str) -> None:
        """Drops a session; a request that uses it is still answered."""
        self._drop_idle()
        self._get(session)
        del self._places[session]

    def _get(self, session: str) -> Place:
        if session not in self._places:
            raise RequestError(
                HTTPStatus.NOT_FOUND,
                f"there is no session {session!r}: one begins with a `prompt`, and is kept for "
                f"{self._idle_seconds:g} idle seconds",
            )
        return self._places[session]

    def _drop_idle(self) -> None:
        """Drops the sessions that no request has used for too long."""
        oldest = time.monotonic() - self._idle_seconds
        self._places = {
            session: place
            for session, place in self._places.items()
            if place.in_use or place.used_at >= oldest
        }
