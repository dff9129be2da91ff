"""Models that come with the package, each in a folder that `txl_tf.load` takes by its name."""

import os

DEFAULT = "pydoc"
_NAMES = (DEFAULT,)


def find_pretrained(path: str) -> str:
    """Returns the folder of the model with this name; another path, or one that exists, as it is.

    >>> os.path.basename(find_pretrained("pydoc")), find_pretrained("runs/pydoc")
    ('pydoc', 'runs/pydoc')
    """
    is_name = path in _NAMES and not os.path.exists(path)
    return os.path.join(os.path.dirname(__file__), path) if is_name else path


def is_pretrained(path: str) -> bool:
    """Returns whether a path is the folder of such a model, in which nothing may be written."""
    return os.path.dirname(os.path.realpath(path)) == os.path.realpath(os.path.dirname(__file__))
