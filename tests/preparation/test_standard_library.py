import hashlib
import subprocess
import sys

import pytest
from places import ROOT

from txl_tf.preparation import standard_library

SOURCE = '''
"""The module."""

def outer(x):
    """Outer.

        Indented once.
    Not indented.
    """
    def inner():
        """Inner."""
    return inner

class Shape:
    """A shape."""
    color = "no docstring"

    async def area(self):
        r"""\\alpha"""

if True:
    try:
        pass
    except OSError:
        def fallback():
            """Fallback."""
else:
    def undocumented():
        return "no docstring"
'''


def test_docstrings_come_in_source_order_without_indentation():
    assert standard_library.read_docstrings(SOURCE.encode()) == [
        "The module.",
        "Outer.\n\n    Indented once.\nNot indented.",
        "Inner.",
        "A shape.",
        "\\alpha",
        "Fallback.",
    ]


def test_sources_are_sorted_and_neither_tests_nor_installed(tmp_path):
    wanted = ["a.py", "a/b.py", "b/a.py", "latest.py"]
    others = [
        "__pycache__/a.py",
        "config-3.11/a.py",
        "ctypes/test/a.py",
        "dist-packages/a.py",
        "email/test_a.py",
        "idlelib/idle_test/a.py",
        "lib-dynload/a.py",
        "notes.txt",
        "site-packages/a/b.py",
        "test/a.py",
        "unittest/tests/a.py",
    ]
    for name in wanted + others:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = [
        path.relative_to(tmp_path).as_posix() for path in standard_library.find_sources(tmp_path)
    ]
    assert found == sorted(wanted, key=lambda name: name.split("/"))


def test_one_document_in_20_goes_to_valid_and_another_to_test():
    splits = standard_library.split_documents(map(str, range(41)))
    assert splits["valid"] == [b"18\n\n", b"38\n\n"]
    assert splits["test"] == [b"19\n\n", b"39\n\n"]
    assert len(splits["train"]) == 37


def test_empty_and_repeated_documents_are_dropped():
    splits = standard_library.split_documents(["é", "", "a", "é"])
    assert splits["train"] == ["é\n\n".encode(), b"a\n\n"]


def test_half_a_surrogate_pair_is_replaced():
    assert standard_library.split_documents(["\ud800"])["train"] == [b"?\n\n"]


@pytest.mark.slow
def test_two_processes_read_the_same_two_megabytes():
    corpus = standard_library.read_standard_library()
    texts = {name: b"".join(parts) for name, parts in corpus.items()}
    sizes = {name: len(text) for name, text in texts.items()}
    total = sum(sizes.values())
    assert 1.5e6 < total < 4e6
    assert all(0.02 < sizes[name] / total < 0.1 for name in ("valid", "test"))
    whole = b"".join(texts.values())
    assert b"Return a shallow copy" in whole
    assert b'The "try" statement' in whole
    code = (
        "import hashlib; from txl_tf.preparation import standard_library as s; "
        "text = b''.join(map(b''.join, s.read_standard_library().values())); "
        "print(hashlib.sha256(text).hexdigest())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert run.stdout.strip() == hashlib.sha256(whole).hexdigest()
