import subprocess
import sys

from places import ROOT

HEAVY_NAMES = ("txl_tf.data.text.tokenizer", "txl_tf.data.lanes.segments")
NAMES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "txl_tf/data").rglob("*.py")
)

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
    program = "\n".join(f"import {name}" for name in NAMES if name not in HEAVY_NAMES)
    program += """
assert txl_tf.data.Vocabulary("word", ("a", "b")).decode([1, 0]) == "b a"
"""
    assert not list_imported(program) & HEAVY


def test_characters_are_prepared_without_tensorflow(tmp_path):
    assert not list_imported(PREPARE, tmp_path) & HEAVY
