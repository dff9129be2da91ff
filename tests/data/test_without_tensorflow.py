import subprocess
import sys

from places import ROOT

NAMES = sorted(path.stem for path in (ROOT / "txl_tf/data").glob("*.py"))

# What each program does, it must do without tensorflow; it gets a folder.
PREPARE = """
import sys
from pathlib import Path
from txl_tf.data import Vocabulary, read_ids, verify_records, write_records
from txl_tf.data.text.text_files import TextSource, find_files

folder, level = Path(sys.argv[1]), "char"
(folder / "a.txt").write_text("naïve\\ntext", encoding="utf-8")
source = TextSource(find_files([str(folder / "*.txt")]), level)
texts = [chunk.text for chunk in source.iterate_chunks()]
vocabulary = Vocabulary.learn(level, texts)
ids = [vocabulary.encode(text) for text in texts]
write_records(folder, dataset="a", vocabulary=vocabulary, splits={"train": ids})
verify_records(folder)
assert vocabulary.decode(read_ids(folder, "train")) == "naïve\\ntext"
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


def test_importing_all_but_the_tokenizer_and_decoding_need_no_tensorflow():
    names = [name for name in NAMES if name not in ("__init__", "tokenizer")]
    program = "\n".join(["import txl_tf.data", *(f"import txl_tf.data.{name}" for name in names)])
    program += """
assert txl_tf.data.Vocabulary("word", ("a", "b")).decode([1, 0]) == "b a"
"""
    assert not list_imported(program) & HEAVY


def test_characters_are_prepared_without_tensorflow(tmp_path):
    assert not list_imported(PREPARE, tmp_path) & HEAVY
