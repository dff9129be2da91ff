import json

import pytest

from txl_tf.apps.server.api_requests import (
    CompletionRequest,
    ScoreRequest,
    read_completion,
    read_request,
)
from txl_tf.errors import UserError


def read(body):
    return read_completion(json.dumps(body).encode(), 100, "\n")


def test_defaults_are_those_of_generation():
    request = read({"prompt": "a", "stop": None})
    assert request == CompletionRequest(prompt=("a",))
    assert (request.temperature, request.top_k, request.top_p) == (0.95, 40, 1.0)
    assert (request.repetition_penalty, request.seed, request.max_tokens) == (1.0, 0, 16)


def test_a_text_without_a_prompt_begins_a_line():
    assert read({}) == read({"prompt": []}) == CompletionRequest(prompt=("\n",))


def test_fields_that_clients_of_openai_send_by_default_have_no_effect():
    sent = {"user": "u", "stream_options": {"include_usage": True}, "logprobs": None, "suffix": ""}
    sent |= {"best_of": 1, "frequency_penalty": 0.0, "presence_penalty": 0, "logit_bias": {}}
    assert read({"prompt": "a", **sent}) == CompletionRequest(prompt=("a",))


def test_lists_and_single_texts_are_the_same():
    request = read({"prompt": ["a"], "stop": ["b", "c"], "max_tokens": 100, "stream": True})
    expected = CompletionRequest(prompt=("a",), stop=("b", "c"), max_tokens=100, stream=True)
    assert request == expected
    body = b'{"texts": "a", "per_token": true}'
    assert read_request(body, ScoreRequest) == ScoreRequest(texts=("a",), per_token=True)


@pytest.mark.parametrize("prompt", [{}, {"prompt": ""}, {"prompt": []}, {"prompt": None}])
def test_a_session_is_continued_without_a_prompt(prompt):
    assert read({"session": "a-1", **prompt}) == CompletionRequest(session="a-1")


NAN, HUGE = float("nan"), 10**400


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "the body must be an object of JSON. Received: []"),
        ({"text": "a"}, "`text` must come with the `session` that reads it"),
        ({"prompt": "a", "text": "a", "session": "a"}, "`text` must come with the `session`"),
        ({"prompt": 3}, "`prompt` must be a text or a list of texts. Received: 3"),
        ({"prompt": ["a", 3]}, "`prompt` must be a text or a list of texts"),
        ({"prompt": ["a"] * 17}, "`prompt` must be at most 16 texts. Received: 17"),
        ({"prompt": ["a", "b"], "session": "a"}, "`prompt` must be at most 1 texts. Received: 2"),
        ({"prompt": "a", "max_tokens": 101}, "`max_tokens` must be from 0 to 100. Received: 101"),
        ({"prompt": "a", "max_tokens": True}, "`max_tokens` must be an integer"),
        ({"prompt": "a", "temperature": "1"}, "`temperature` must be a number"),
        ({"prompt": "a", "temperature": HUGE}, "`temperature` must be a number from 0 to 1000"),
        ({"prompt": "a", "top_p": NAN}, "`top_p` must be a number"),
        ({"prompt": "a", "stop": ["b"] * 5}, "`stop` must be at most 4 texts. Received: 5"),
        ({"prompt": "a", "stream": 1}, "`stream` must be true or false"),
        ({"session": "a", "top_k": 3}, "`top_k` is fixed when a session begins"),
        ({"prompt": ["a", "b"], "n": 9}, "`n` must be from 1 to 8 here. Received: 9"),
        ({"prompt": "a", "n": 0}, "`n` must be from 1 to 16 here. Received: 0"),
        ({"session": "a", "n": 2}, "`n` must be from 1 to 1 here. Received: 2"),
        ({"prompt": "a", "logprobs": 5}, "`logprobs` is not served: leave it out. Received: 5"),
        ({"prompt": "a", "best_off": 2}, "unknown field: 'best_off'"),
    ],
)
def test_a_wrong_request_is_refused(body, message):
    with pytest.raises(UserError) as raised:
        read(body)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("body", [b"[" * 100_000, b"\xff", b"1" * 5000, b"3"])
def test_a_body_that_is_no_request_is_refused(body):
    with pytest.raises(UserError, match="the body must be"):
        read_request(body, ScoreRequest)
