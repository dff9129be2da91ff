"""The `pydoc` corpus: the English documentation that is part of every Python.

Its documents are the docstrings in the standard library and the language topics of `help()`. They
need no download, and are the same for the same version of Python.
"""

import ast
import functools
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from txl_tf.data.text.text_files import Chunk, TextSource
from txl_tf.preparation.corpus import SPLITS, Corpus, Texts

_SKIPPED_FOLDERS = {
    "__pycache__",
    "dist-packages",
    "idle_test",
    "lib-dynload",
    "site-packages",
    "test",
    "tests",
    # Some systems ship these separately, so the same Python would give different bytes.
    "distutils",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "tkinter",
    "turtledemo",
}
# Tests, and files that a build or a system adds.
_SKIPPED_FILES = ("test_", "_sysconfigdata", "sitecustomize", "usercustomize", "turtle.py")
_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class StandardLibrary(Corpus):
    """The documents of the standard library, which are read when they are first needed."""

    def locate(self, raw_dir: Path) -> Texts:
        """Returns the documents of each split; they need no files in `raw_dir`."""
        read = functools.cache(read_standard_library)
        sources = {split: Documents((), self.level, split=split, read=read) for split in SPLITS}
        return Texts(sources, self.vocabulary_file)


@dataclass(frozen=True)
class Documents(TextSource):
    """Documents in memory, read like files."""

    split: str = "train"
    read: Callable[[], Mapping[str, list[bytes]]] = dict  # returns the documents of all splits

    @property
    def size(self) -> int:
        """The size of the text in bytes."""
        return sum(map(len, self.read()[self.split]))

    def iterate_chunks(self) -> Iterator[Chunk]:
        """Yields the documents."""
        return (Chunk(document, True, True) for document in self.read()[self.split])


def read_standard_library() -> dict[str, list[bytes]]:
    """Returns the documents of each split: all docstrings, then the topics of `help()`."""
    documents: list[str] = []
    for path in find_sources(Path(sysconfig.get_paths()["stdlib"])):
        documents += read_docstrings(path.read_bytes())
    # Imported here because it is 700 kB of text.
    from pydoc_data.topics import topics

    documents += [topic.strip() for _, topic in sorted(topics.items())]
    return split_documents(documents)


def find_sources(root: Path) -> list[Path]:
    """Returns the Python files under `root`, sorted, without tests and installed packages."""
    relative = (path.relative_to(root) for path in root.rglob("*.py") if path.is_file())
    return [root / path for path in sorted(relative, key=lambda path: path.parts) if _is_kept(path)]


def _is_kept(path: Path) -> bool:
    folders = path.parts[:-1]
    is_skipped = any(name in _SKIPPED_FOLDERS or name.startswith("config-") for name in folders)
    return not is_skipped and not path.name.startswith(_SKIPPED_FILES)


def read_docstrings(source: bytes) -> list[str]:
    """Returns the docstrings of a module, without indentation, in the order of its source."""
    with warnings.catch_warnings():
        # Some sources contain escapes that Python warns about.
        warnings.simplefilter("ignore")
        module = ast.parse(source)
    return [text for text in _iterate_docstrings(module) if text]


def split_documents(documents: Iterable[str]) -> dict[str, list[bytes]]:
    """Distributes documents over the splits, in UTF-8, with a blank line after each one.

    Of every 20 documents, the second to last goes to valid and the last to test. Empty and repeated
    ones are dropped: repeats could put training text into the test split.
    """
    splits: dict[str, list[bytes]] = {"train": [], "valid": [], "test": []}
    for i, document in enumerate(filter(None, dict.fromkeys(documents))):
        split = {18: "valid", 19: "test"}.get(i % 20, "train")
        # A docstring may contain half of a surrogate pair, which UTF-8 cannot represent.
        splits[split].append(f"{document}\n\n".encode("utf-8", "replace"))
    return splits


def _iterate_docstrings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, _SCOPES):
        yield ast.get_docstring(node, clean=True) or ""
    for child in ast.iter_child_nodes(node):
        # Definitions are statements, so expressions need not be searched.
        if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from _iterate_docstrings(child)
