"""The sessions of all clients: bounded in number, and forgotten when they are idle."""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus

from txl_tf.apps.server.refusals import RefusedError
from txl_tf.apps.server.text_session import TextSession


@dataclass
class StoredSession:
    """A session in the store.

    Args:
        text: The session.
        used_at: When it was last used, in seconds.
        in_use: Whether a request uses it.
        is_deleted: Whether it was deleted; a request that uses it ends.
    """

    text: TextSession
    used_at: float
    in_use: bool = field(default=False)
    is_deleted: bool = field(default=False)


class SessionStore:
    """Sessions by id. All methods must be called in the thread of the event loop.

    An id is random and long: it cannot be guessed, so only its client reaches a session. If the
    store is full, a new session is refused: to drop another client's would lose its text.

    Args:
        max_sessions: The largest number of sessions.
        idle_seconds: How long a session is kept after its last request.
        clock: The time in seconds.
    """

    def __init__(
        self,
        max_sessions: int,
        idle_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._max_sessions = max_sessions
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._sessions: dict[str, StoredSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, text: TextSession) -> str:
        """Adds a session and returns its id.

        Raises:
            RefusedError: If there are too many sessions, status 429.
        """
        self.drop_idle()
        if len(self) >= self._max_sessions:
            raise RefusedError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"there are {len(self)} sessions, as many as may be: delete one, or try later",
            )
        session_id = secrets.token_urlsafe(16)
        self._sessions[session_id] = StoredSession(text, self._clock())
        return session_id

    def get(self, session_id: str) -> StoredSession:
        """Returns a session.

        Raises:
            RefusedError: If there is none with this id, status 404.
        """
        self.drop_idle()
        if session_id not in self._sessions:
            raise RefusedError(
                HTTPStatus.NOT_FOUND,
                f"there is no such session; one ends after {self._idle_seconds:g} idle seconds",
            )
        return self._sessions[session_id]

    @contextlib.contextmanager
    def use(self, session_id: str) -> Iterator[StoredSession]:
        """Uses a session in a request.

        Raises:
            RefusedError: If there is none with this id, status 404, or another request uses it,
                status 409.
        """
        session = self.get(session_id)
        if session.in_use:
            raise RefusedError(HTTPStatus.CONFLICT, "another request uses this session")
        session.in_use = True
        try:
            yield session
        finally:
            session.in_use = False
            session.used_at = self._clock()

    def delete(self, session_id: str) -> None:
        """Forgets a session, whose memory is then free; a request that uses it ends.

        Raises:
            RefusedError: If there is none with this id, status 404.
        """
        self.get(session_id).is_deleted = True
        del self._sessions[session_id]

    def drop_idle(self) -> None:
        """Forgets the sessions that no request has used for long enough."""
        oldest = self._clock() - self._idle_seconds
        idle = [
            key
            for key, session in self._sessions.items()
            if not session.in_use and session.used_at < oldest
        ]
        for key in idle:
            del self._sessions[key]
