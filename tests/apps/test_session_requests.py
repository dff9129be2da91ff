import pytest

from txl_tf.apps.server.session_requests import read_continuation, read_seed
from txl_tf.errors import UserError

BOUNDS = {"max_length": 13, "banned": (3,)}


def test_defaults_are_those_of_generation():
    asked = read_continuation({"length": 13}, **BOUNDS)
    assert (asked.text, asked.length) == (b"", 13)
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.95, 40, None)
    assert (sampling.repetition_penalty, sampling.banned) == (1.0, (3,))


def test_settings_are_those_of_generation():
    body = {"length": 0, "text": "é", "temperature": 0, "top_k": 5, "top_p": 0.5}
    asked = read_continuation({**body, "repetition_penalty": 2}, **BOUNDS)
    assert (asked.text, asked.length) == ("é".encode(), 0)
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.0, 5, 0.5)
    assert sampling.repetition_penalty == 2.0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"length": True}, "`length` must be an integer"),
        ({"length": -1}, "`length` must be from 0 to 13. Received: -1"),
        ({"length": 1, "text": 3}, "a text must be a string"),
        ({"length": 1, "temperature": "1"}, "`temperature` must be a number"),
        ({"length": 1, "top_k": -1}, "`top_k` must be positive"),
        ({"length": 1, "seed": 3}, "the body may hold `text`, `length`, .* Received: seed"),
        ({"length": 1, "temperature": 10**400}, "`temperature` must be smaller"),
    ],
)
def test_a_wrong_request_is_refused(body, message):
    with pytest.raises(UserError, match=message):
        read_continuation(body, **BOUNDS)


def test_a_session_may_have_a_seed():
    assert (read_seed({}), read_seed({"seed": 7})) == (0, 7)
    for body in ({"seed": "7"}, {"text": "a"}):
        with pytest.raises(UserError, match="Received"):
            read_seed(body)
