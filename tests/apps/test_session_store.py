import pytest

from txl_tf.apps.server.api_requests import RequestError
from txl_tf.apps.server.session_store import SessionStore


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    return clock


@pytest.fixture
def store():
    return SessionStore(3, 7.0)


def begin(store, session):
    with store.use(session, begins=True) as slot:
        slot.texts = session


def refuses(status):
    return pytest.raises(RequestError, check=lambda error: error.status == status)


def test_a_session_too_many_is_refused(store):
    for session in "abc":
        begin(store, session)
    with refuses(429):
        begin(store, "d")
    store.delete("b")
    begin(store, "d")
    with store.use("a", begins=False) as slot:
        assert slot.texts == "a"


def test_a_session_begins_once(store):
    begin(store, "a")
    with refuses(409):
        begin(store, "a")
    with refuses(404), store.use("b", begins=False):
        pass


def test_a_session_that_has_not_begun_is_not_kept(store):
    with pytest.raises(ZeroDivisionError), store.use("a", begins=True):
        raise ZeroDivisionError
    begin(store, "a")


def test_a_session_is_kept_until_it_was_idle_for_long_enough(store, clock):
    begin(store, "a")
    for clock.now in (7.0, 14.0):
        with store.use("a", begins=False):
            pass
    clock.now = 21.5
    with refuses(404), store.use("a", begins=False):
        pass


def test_a_session_in_use_is_not_idle(store, clock):
    with store.use("a", begins=True) as slot:
        slot.texts = "a"
        clock.now = 100.0
        begin(store, "b")
    clock.now = 106.0
    with store.use("a", begins=False):
        pass


def test_a_session_serves_one_request_at_a_time(store):
    begin(store, "a")
    with store.use("a", begins=False), refuses(409), store.use("a", begins=False):
        pass
    with store.use("a", begins=False):
        pass


def test_a_session_that_is_deleted_may_begin_again_at_once(store):
    with store.use("a", begins=True):
        store.delete("a")
        begin(store, "a")
    with store.use("a", begins=False) as slot:
        assert slot.texts == "a"
    store.delete("a")
    with refuses(404):
        store.delete("a")
