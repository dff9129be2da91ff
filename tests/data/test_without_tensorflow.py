import subprocess
import sys

import pytest
from places import ROOT

NAMES = sorted(path.stem for path in (ROOT / "txl_tf/data").glob("*.py"))

# What each program does, it must do without tensorflow; it gets a folder.
PREPARE = """
import sys
from pathlib import Path
from txl_tf.data import Vocabulary, read_ids, verify_records, write_records
from txl_tf.data.text_files import TextSource, find_files

folder, level = Path(sys.argv[1]), "{level}"
(folder / "a.txt").write_text("naïve\\ntext", encoding="utf-8")
source = TextSource(find_files([str(folder / "*.txt")]), level)
texts = [chunk.text for chunk in source.iterate_chunks()]
vocabulary = Vocabulary.learn(level, texts)
ids = [vocabulary.encode(text) for text in texts]
write_records(folder, dataset="a", vocabulary=vocabulary, splits={{"train": ids}})
verify_records(folder)
assert vocabulary.decode(read_ids(folder, "train")) == "naïve\\ntext"
"""
DECODE_WORDS = """
from txl_tf.data import Vocabulary
assert Vocabulary("word", ("a", "b")).decode([1, 0]) == "b a"
"""


def list_imported(program, *arguments):
    """Runs a program and returns the packages that it imported."""
    ran = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {module.partition(".")[0] for module in ran.stdout.split()}


HEAVY = {"tensorflow", "tensorflow_text", "keras", "jax", "sentencepiece"}


def test_only_the_tokenizer_imports_tensorflow_at_once():
    names = [name for name in NAMES if name not in ("__init__", "tokenizer")]
    program = "\n".join(["import txl_tf.data", *(f"import txl_tf.data.{name}" for name in names)])
    assert not list_imported(program) & HEAVY


@pytest.mark.parametrize("level", ["byte", "char"])
def test_bytes_and_characters_are_prepared_without_tensorflow(tmp_path, level):
    assert not list_imported(PREPARE.format(level=level), tmp_path) & HEAVY


def test_words_are_decoded_without_tensorflow():
    assert not list_imported(DECODE_WORDS) & HEAVY
