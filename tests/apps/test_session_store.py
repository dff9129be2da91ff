import pytest

from txl_tf.apps.server.refusals import RefusedError
from txl_tf.apps.server.session_store import SessionStore


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    return SessionStore(3, 7.0, clock)


def refuses(status):
    return pytest.raises(RefusedError, check=lambda error: error.status == status)


def test_a_session_too_many_is_refused(store):
    ids = [store.add(name) for name in "abc"]
    assert [store.get(key).text for key in ids] == ["a", "b", "c"]
    with refuses(429):
        store.add("d")
    store.delete(ids[1])
    assert store.get(store.add("d")).text == "d"
    assert [store.get(ids[0]).text, store.get(ids[2]).text] == ["a", "c"]


def test_a_session_is_kept_until_it_was_idle_for_long_enough(store, clock):
    key = store.add("a")
    for clock.now in (7.0, 14.0):
        with store.use(key):
            pass
    clock.now = 21.5
    with refuses(404):
        store.get(key)
    assert len(store) == 0


def test_a_session_in_use_is_not_idle(store, clock):
    key = store.add("a")
    with store.use(key):
        clock.now = 100.0
        store.drop_idle()
        assert len(store) == 1
    clock.now = 106.0
    assert store.get(key).text == "a"


def test_a_session_serves_one_request_at_a_time(store):
    key, other = store.add("a"), store.add("b")
    with store.use(key), store.use(other):
        with refuses(409), store.use(key):
            pass
        assert store.get(key).in_use
    with store.use(key):
        pass


def test_a_session_that_is_deleted_is_gone_and_says_so(store):
    key = store.add("a")
    with store.use(key) as session:
        store.delete(key)
        assert session.is_deleted
        with refuses(404):
            store.get(key)
    with refuses(404):
        store.delete(key)
