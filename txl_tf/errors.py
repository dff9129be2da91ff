"""What ends a program with one line instead of a traceback."""


class UserError(ValueError):
    """Wrong input, with a message that says what was expected and what was received."""


class StoppedError(Exception):
    """A run that was asked to stop and has saved: called again, it goes on.

    Args:
        message: what made it stop, and where it stands.
        status: the exit status of its program.
    """

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status
