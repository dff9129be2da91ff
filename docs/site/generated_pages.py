"""A hook of MkDocs: pages made of flags, changelog and notebook, links to them, and ranks."""

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any
from unittest import mock

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from txl_tf.__main__ import PROGRAMS
from txl_tf.programs.cli.flags import write_value

ROOT = Path(__file__).parents[2]
# In the search, guides come before the others.
BOOSTS = {
    "api/": 0.5,
    "commands/train.md": 0.6,
    "commands/": 0.4,
    "lab/": 0.5,
    "changelog": 0.3,
    "design": 0.4,
    "traps": 0.3,
}
BOOSTS |= {"glossary": 0.6, "index": 0.6, "keras-notebook": 0.4, "troubleshooting": 0.6}
# Links to files, as GitHub needs them, and to their pages.
_NOTEBOOKS = {"tour.md": "tour.ipynb", "keras-notebook.md": "keras.ipynb"}
_LINKS = {"](../CHANGELOG.md": "](changelog.md", "](../docs/": "]("}
_LINKS |= {f"](../examples/{file}": f"]({page}" for page, file in _NOTEBOOKS.items()}
_KINDS = {str: "TEXT", int: "INTEGER", float: "NUMBER", list: "LIST"}
_DEFAULTS = {"num_workers": "the number of processors"}  # of the reader's machine


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages to those of the folder."""
    pages = {f"commands/{name}.md": text for name, text in make_command_pages()}
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    pages["changelog.md"] = changelog.replace("](docs/", "](")
    for path, file in _NOTEBOOKS.items():
        pages[path] = render_notebook(json.loads((ROOT / "examples" / file).read_bytes()))
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **kwargs: Any) -> str:
    """Sets the rank of a page in the search, and links it to the generated pages."""
    path = page.file.src_uri
    boosts = [boost for start, boost in BOOSTS.items() if path.startswith(start)]
    page.meta.setdefault("search", {"boost": boosts[0] if boosts else 1})
    for link, generated in _LINKS.items():
        markdown = markdown.replace(link, generated)
    if path == "commands/index.md":
        pattern = re.compile(r"^\| `txl (\w+)` \|", flags=re.MULTILINE)
        markdown = pattern.sub(r"| [`txl \1`](\1.md) |", markdown)
    return markdown


def make_command_pages() -> Iterator[tuple[str, str]]:
    """Yields name and page of each command, whose flags are those of `--helpfull`."""
    for command in PROGRAMS:
        module = importlib.import_module(f"txl_tf.programs.{command}")
        with mock.patch("txl_tf.programs.cli.program.run_program") as called:
            if command != "harness":  # its flags are those of lm_eval
                module.main([command])
        options = called.call_args.args[1] if called.called else {}
        lines = [f"# txl {command}\n"]
        for paragraph in (module.__doc__ or "").strip().split("\n\n"):
            is_code = paragraph.startswith(f"txl {command} ")
            lines += [indent(paragraph, "    ") if is_code else paragraph, ""]
        if called.called and (positional := called.call_args.kwargs.get("positional")):
            lines += [f"Arguments without a flag are for `--{positional}`.", ""]
        sections: dict[str, list[str]] = {}
        for flag in map(options.__getitem__, options):
            title = f"{flag.facts.section}, rarely needed" if flag.facts.rare else ""
            row = f"| {' | '.join(describe_flag(flag))} |"
            sections.setdefault(title or flag.facts.section, []).append(row)
        for title, rows in sections.items():
            lines += [f"## {title}\n", "| flag | meaning |", "|---|---|", *rows, ""]
        yield command, "\n".join(lines)


def describe_flag(flag: Any) -> tuple[str, str]:
    """Returns the cells of a flag: its name with the kind of its value, and its meaning."""
    facts, notes = flag.facts, []
    value = "PATH" if facts.is_path else _KINDS.get(facts.kind)
    if facts.choices:
        notes.append(f"One of {', '.join(f'`{choice}`' for choice in facts.choices)}.")
    if facts.required:
        notes.append("Required.")
    elif flag.default not in (None, "", []):
        notes.append(f"Default: {_DEFAULTS.get(flag.name) or f'`{write_value(flag.default)}`'}.")
    name = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}={value}"
    text = re.sub(r"\[default: (.*)\]", r"Default: \1.", " ".join([flag.help, *notes]))
    text = re.sub(r"(?<![\w`-])(--\w+(?:=\w+)?|\w*[a-z]_[a-z]\w*)(?![\w`])", r"`\1`", text)
    return f"`{name}`", re.sub(r"(?<!`)(<\w+>)", r"`\1`", text).replace("|", "\\|")


def render_notebook(notebook: dict[str, Any]) -> str:
    """Returns a notebook as Markdown, with the outputs that are stored in it."""
    blocks = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        blocks.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {"text/plain": output.get("text")})
            if "image/png" in data:
                png = "".join(data["image/png"]).replace("\n", "")
                blocks.append(f"![Output of the cell above](data:image/png;base64,{png})")
            else:
                text = "".join(data["text/plain"]).rstrip()
                blocks.append(f"``` {{ .text .no-copy .output }}\n{text}\n```")
    return "\n\n".join(blocks)
