"""Scores the lines of a file with an exported model; needs TensorFlow but not txl_tf.

python examples/score_exported.py exported/text8 texts.txt
"""

import argparse
import contextlib
import os
import re
import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    """Prints the bits per token, tokens and text of each line, and returns the exit status."""
    about, example = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(
        prog=os.path.basename(argv[0]),
        description=about,
        epilog=f"example: {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="FOLDER", help="folder written by `txl export`")
    parser.add_argument("file", metavar="FILE", help="file of texts, one per line")
    given = parser.parse_args(argv[1:])

    def fail(reason: object) -> int:
        print(f"{parser.prog}: {' '.join(str(reason).split())}", file=sys.stderr)
        return 1

    try:
        lines = Path(given.file).read_bytes().splitlines()
    except OSError as error:
        return fail(error)

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    with contextlib.suppress(ImportError):  # models of bytes and characters do not need it
        import tensorflow_text  # noqa: F401  registers the operations that split texts

    try:
        model = tf.saved_model.load(given.folder)  # its functions need it to stay alive
    except (OSError, tf.errors.OpError) as error:
        return fail(error)
    if "score_text" not in model.signatures:
        return fail(f"{given.folder} has no signature score_text: it takes only ids")
    try:
        scores = model.signatures["score_text"](texts=tf.constant(lines, tf.string))
    except tf.errors.InvalidArgumentError as error:
        # The reason is the line before the operation's name; the rest locates it in the graph.
        reason = re.search(r"^(.*)\n\s*\[\[", str(error), re.MULTILINE)
        return fail(f"{given.file}: {reason[1] if reason else error}")
    for bpc, tokens, line in zip(scores["bpc"], scores["tokens"], lines, strict=True):
        print(f"{bpc:8.4f} {tokens:6d}  {line.decode('utf-8', errors='replace')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
