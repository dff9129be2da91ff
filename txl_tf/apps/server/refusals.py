"""Requests that are refused, each with its status."""

from http import HTTPStatus

from txl_tf.errors import UserError


class RefusedError(UserError):
    """A request that the server does not answer; a plain `UserError` is a wrong request, 400.

    Args:
        status: The status of the answer over HTTP.
        message: The reason.
    """

    def __init__(self, status: HTTPStatus, message: str):
        super().__init__(message)
        self.status = status


def find_status(error: UserError) -> HTTPStatus:
    """Returns the status over HTTP of an error."""
    return error.status if isinstance(error, RefusedError) else HTTPStatus.BAD_REQUEST


def describe(error: Exception) -> str:
    r"""Returns the message of an error on one line.

    >>> describe(UserError("`texts` must\n be texts"))
    '`texts` must be texts'
    """
    return " ".join(str(error).split())
