"""The error that a user can mend: programs print it as one line, without a traceback."""


class UserError(ValueError):
    """Wrong input, with a message that says what was expected and what was received."""
