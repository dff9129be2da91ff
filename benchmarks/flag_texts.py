"""Command lines that override some flags of a common one."""

from collections.abc import Iterable


def keep_last(arguments: Iterable[str]) -> list[str]:
    """Returns flags, `--name=value` or `--name`, with only the last one of each name.

    >>> keep_last(["--a=1", "--b", "--a=2"])
    ['--a=2', '--b']
    """
    return list({text.partition("=")[0]: text for text in arguments}.values())
