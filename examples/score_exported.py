"""Scores texts with an exported model, line by line: tensorflow alone, no txl_tf.

python examples/score_exported.py exported/text8 texts.txt
"""

import sys
from pathlib import Path

import tensorflow as tf
import tensorflow_text  # noqa: F401  has the operations that split texts


def main(argv: list[str]) -> None:
    """Prints bits per token, tokens and text of each line of a file."""
    folder, path = argv[1:]
    model = tf.saved_model.load(folder)  # to be held: its functions do not live without it
    lines = Path(path).read_bytes().splitlines()
    scores = model.signatures["score_text"](texts=tf.constant(lines, tf.string))
    for bpc, tokens, line in zip(scores["bpc"], scores["tokens"], lines, strict=True):
        print(f"{bpc:8.4f} {tokens:6d}  {line.decode()}")


if __name__ == "__main__":
    main(sys.argv)
