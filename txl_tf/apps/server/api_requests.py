"""The JSON bodies of requests, checked field by field."""

import json
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, TypeVar

from txl_tf.config import DEFAULT_TEMPERATURE, DEFAULT_TOP_K
from txl_tf.errors import UserError

DEFAULT_TOKENS = 16
_MAX_PROMPTS, _MAX_STOPS = 16, 4
_MAX_NUMBER = 1000
_SAMPLING = ("temperature", "top_k", "top_p", "repetition_penalty", "seed", "stop")
# Fields of OpenAI's API that have no effect here, and those that must have their default value,
# which clients such as LangChain send.
_IGNORED = ("user", "stream_options")  # the last event reports the usage anyway
_FIXED = {"best_of": 1, "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}}
_FIXED |= {"logprobs": None, "suffix": ""}
Kind = TypeVar("Kind")


class RequestError(UserError):
    """A request is rejected with its own HTTP status; a plain `UserError` has status 400."""

    def __init__(self, status: HTTPStatus, message: str):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class ScoreRequest:
    """The body of a request for scores."""

    model: str | None = None
    texts: tuple[str, ...] = ()
    prefix: str = ""
    carry_memory: bool = False
    per_token: bool = False


@dataclass(frozen=True)
class CompletionRequest:
    """The body of a request for completions; without a prompt, it continues a session."""

    model: str | None = None
    prompt: tuple[str, ...] = ()
    max_tokens: int = DEFAULT_TOKENS
    temperature: float = DEFAULT_TEMPERATURE
    top_k: int = DEFAULT_TOP_K
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    n: int = 1
    echo: bool = False
    session: str | None = None
    text: str = ""  # to read first, in a session
    stream: bool = False

    @property
    def rows(self) -> list[str]:
        """The text to read for each completion: `n` times each prompt, or `text`."""
        return [prompt for prompt in self.prompt for _ in range(self.n)] or [self.text]


# The rule for a value, by the type of its field. `LanguageModel.start` checks the ranges.
_RULES: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    str: ("a text", lambda value: isinstance(value, str)),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("an integer", lambda value: type(value) is int),
    float: (
        f"a number from 0 to {_MAX_NUMBER}",
        lambda value: type(value) in (int, float) and 0 <= value <= _MAX_NUMBER,
    ),
    tuple[str, ...]: (
        "a text or a list of texts",
        lambda value: (
            isinstance(value, str)
            or (isinstance(value, list) and all(isinstance(item, str) for item in value))
        ),
    ),
}
_RULES[str | None] = _RULES[str]


def read_completion(body: bytes, max_tokens: int, default_prompt: str) -> CompletionRequest:
    """Reads the body of a request for texts of at most `max_tokens` tokens."""
    request = read_request(body, CompletionRequest)
    if not 0 <= request.max_tokens <= max_tokens:
        raise UserError(
            f"`max_tokens` must be from 0 to {max_tokens:,}. Received: {request.max_tokens}"
        )
    if request.text and (request.session is None or request.prompt):
        raise UserError("`text` must come with the `session` that reads it, without `prompt`")
    if request.session is None and not request.prompt:
        request = replace(request, prompt=(default_prompt,))
    max_prompts = _MAX_PROMPTS if request.session is None else 1
    for name, texts, most in (
        ("prompt", request.prompt, max_prompts),
        ("stop", request.stop, _MAX_STOPS),
    ):
        if len(texts) > most:
            raise UserError(f"`{name}` must be at most {most} texts. Received: {len(texts)}")
    most_each = max_prompts // max(len(request.prompt), 1)
    if not 1 <= request.n <= most_each:
        raise UserError(f"`n` must be from 1 to {most_each} here. Received: {request.n}")
    return request


def read_request(body: bytes, kind: type[Kind]) -> Kind:
    """Returns the request in a body; a field that is null counts as not given."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the body must be JSON: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"the body must be an object of JSON. Received: {reprlib.repr(found)}")
    given = {name: value for name, value in found.items() if value is not None}
    for name in [name for name in given if name in _IGNORED or name in _FIXED]:
        value = given.pop(name)
        if name in _FIXED and value != _FIXED[name]:
            rule = f"is not served: leave it out. Received: {reprlib.repr(value)}"
            raise UserError(f"`{name}` {rule}")
    for name, value in given.items():
        if name not in kind.__annotations__:
            raise UserError(f"unknown field: {reprlib.repr(name)}")
        rule, is_valid = _RULES[kind.__annotations__[name]]
        if not is_valid(value):
            raise UserError(f"`{name}` must be {rule}. Received: {reprlib.repr(value)}")
    if "session" in given and not given.get("prompt"):
        given.pop("prompt", None)
        if late := [name for name in _SAMPLING if name in given]:
            raise UserError(f"`{late[0]}` is fixed when a session begins: leave it out here")
    for name in {"prompt", "stop", "texts"} & set(given):
        value = given[name]
        given[name] = (value,) if isinstance(value, str) else tuple(value)
    return kind(**given)
