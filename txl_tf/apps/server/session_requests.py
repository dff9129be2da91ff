"""The bodies of requests about sessions."""

from typing import Any, NamedTuple

from txl_tf.apps.server.tensors import check_keys, encode_text
from txl_tf.config import DEFAULT_TEMPERATURE, DEFAULT_TOP_K
from txl_tf.errors import UserError
from txl_tf.generation.sampling import SamplingConfig


class Continuation(NamedTuple):
    """What a session is asked to do.

    Args:
        text: The text to read first, UTF-8 unless the level of the vocabulary is "byte".
        length: The number of tokens to draw then.
        sampling: The sampling settings.
    """

    text: bytes
    length: int
    sampling: SamplingConfig


def read_seed(body: dict[str, Any]) -> int:
    """Returns the seed of a new session.

    Raises:
        UserError: If the body is wrong.
    """
    check_keys(body, ("seed",))
    return _read_number(body, "seed", 0, int)


def read_continuation(
    body: dict[str, Any], *, max_length: int, banned: tuple[int, ...]
) -> Continuation:
    """Returns what a session is asked to do.

    Args:
        body: The body of the request.
        max_length: The largest number of tokens.
        banned: Ids that are never drawn.

    Raises:
        UserError: If the body is wrong.
    """
    check_keys(body, ("text", "length", "temperature", "top_k", "top_p", "repetition_penalty"))
    length = _read_number(body, "length", None, int)
    if not 0 <= length <= max_length:
        raise UserError(f"`length` must be from 0 to {max_length:,}. Received: {length}")
    sampling = SamplingConfig(
        temperature=_read_number(body, "temperature", DEFAULT_TEMPERATURE, float),
        top_k=_read_number(body, "top_k", DEFAULT_TOP_K, int) or None,  # 0 for all
        top_p=_read_number(body, "top_p", 1.0, float) if "top_p" in body else None,
        repetition_penalty=_read_number(body, "repetition_penalty", 1.0, float),
        banned=banned,
    )
    return Continuation(encode_text(body.get("text", "")), length, sampling)


def _read_number(body: dict[str, Any], name: str, default: Any, kind: type) -> Any:
    """Returns a number of the body, which must be there if `default` is `None`."""
    value = body.get(name, default)
    kinds = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        rule = "an integer" if kind is int else "a number"
        raise UserError(f"`{name}` must be {rule}. Received: {str(value)[:200]}")
    try:
        return kind(value)
    except OverflowError as error:
        raise UserError(f"`{name}` must be smaller. Received: {str(value)[:200]}") from error
