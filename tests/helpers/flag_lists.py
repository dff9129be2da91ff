"""Command lines of tests that change some flags of a common one."""


def keep_last(arguments):
    """Returns flags, `--name=value` or `--name`, with only the last one of each name.

    >>> keep_last(["--a=1", "--b", "--a=2"])
    ['--a=2', '--b']
    """
    return list({text.partition("=")[0]: text for text in arguments}.values())
