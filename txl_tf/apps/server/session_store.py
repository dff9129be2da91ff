"""The sessions of all clients: bounded in number, and forgotten when they are idle."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus

from txl_tf.apps.server.api_requests import RequestError
from txl_tf.apps.server.model_service import ServedTexts


@dataclass
class Slot:
    """The place of a session."""

    texts: ServedTexts | None = None  # until the session has begun
    in_use: bool = False
    used_at: float = 0.0  # when the last request that used it ended


class SessionStore:
    """Sessions by the ids that clients have given them, for the thread of the event loop only.

    If the store is full, a new session is refused: to drop another client's would lose its text.
    """

    def __init__(self, max_sessions: int, idle_seconds: float):
        self._max_sessions = max_sessions
        self._idle_seconds = idle_seconds
        self._slots: dict[str, Slot] = {}

    @contextlib.contextmanager
    def use(self, session: str, *, begins: bool) -> Iterator[Slot]:
        """Yields the slot of a session, and removes it if the session has not begun at the end.

        Raises:
            RequestError: If there is no such session, status 404; if it exists already or another
                request uses it, 409; or if there are too many, 429.
        """
        self._drop_idle()
        if begins and session in self._slots:
            raise RequestError(
                HTTPStatus.CONFLICT,
                f"session {session!r} exists: continue it without `prompt`, or delete it",
            )
        if begins and len(self._slots) >= self._max_sessions:
            message = f"there are {len(self._slots)} sessions, the most that there may be"
            raise RequestError(HTTPStatus.TOO_MANY_REQUESTS, message)
        slot = self._slots.setdefault(session, Slot()) if begins else self._get(session)
        if slot.in_use:
            raise RequestError(HTTPStatus.CONFLICT, f"another request uses session {session!r}")
        slot.in_use = True
        try:
            yield slot
        finally:
            slot.in_use = False
            slot.used_at = time.monotonic()
            if slot.texts is None and self._slots.get(session) is slot:
                del self._slots[session]

    def delete(self, session: str) -> None:
        """Forgets a session; a request that uses it is still answered."""
        self._drop_idle()
        self._get(session)
        del self._slots[session]

    def _get(self, session: str) -> Slot:
        if session not in self._slots:
            raise RequestError(
                HTTPStatus.NOT_FOUND,
                f"there is no session {session!r}: one begins with a `prompt`, and is kept for "
                f"{self._idle_seconds:g} idle seconds",
            )
        return self._slots[session]

    def _drop_idle(self) -> None:
        """Forgets the sessions that no request has used for long enough."""
        oldest = time.monotonic() - self._idle_seconds
        self._slots = {
            session: slot
            for session, slot in self._slots.items()
            if slot.in_use or slot.used_at >= oldest
        }
