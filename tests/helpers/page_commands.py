"""The commands that the pages show: programs of txl_tf, and their arguments."""

import json
import re
import shlex

from places import ROOT

from txl_tf.__main__ import PROGRAMS

# The programs that are files of the repository; the others are those of `txl`.
FILES = {
    "train_gpu.py": "txl_tf.programs.train",
    "train_tpu.py": "txl_tf.programs.train_tpu",
    "data_prep/make_tfrecords.py": "txl_tf.programs.prepare",
}
_COMMAND = re.compile(r"(?<![\w./-])(?:python3? ([a-z_/]+\.py)|txl ([a-z_-]+))( .*|$)")
_SPAN = re.compile(r"`([^`\n]+)`")
_ENDS = ("<", ">", "|", "&&", ";")  # of a command in a line of a shell


def list_commands():
    """Returns program and arguments of each command, by the page that shows it and its text."""
    found = {}
    notebooks = sorted((ROOT / "examples").glob("*.ipynb"))
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *notebooks):
        page = path.read_text(encoding="utf-8")
        for text in _list_code(_read_notes(page) if path in notebooks else page):
            command = _read_command(text)
            if command and command not in found.values():
                found[f"{path.name}: {' '.join(text.split())}"] = command
    return found


def _read_notes(notebook):
    """Returns the text between the cells of code."""
    cells = json.loads(notebook)["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def _list_code(page):
    """Yields the lines of code blocks, each with its continuation, and the spans of code."""
    is_fenced = False
    for line in page.replace("\\\n", " ").splitlines():
        if line.startswith("```"):
            is_fenced = not is_fenced
        elif is_fenced or line.startswith("    "):
            yield line.partition(" #")[0]
        else:
            yield from _SPAN.findall(line)


def _read_command(text):
    """Returns the program and its arguments; `None` for other code, or without arguments."""
    match = _COMMAND.search(text)
    if match is None:
        return None
    name, script, rest = match.groups()
    program = f"txl_tf.programs.{script}" if script in PROGRAMS else FILES.get(name, "")
    words = shlex.split(rest, comments=True)
    end = next((index for index, word in enumerate(words) if word in _ENDS), len(words))
    if not program or not words:
        return None
    return program, tuple(words[:end])
