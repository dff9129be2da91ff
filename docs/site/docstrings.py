"""A Griffe extension that prepares docstrings and the fields of configs for the site.

Griffe does not read some parts of the docstrings of this package as Google's style: doctests,
whose `>>>` would become quotations; `Call arguments:` of the layers, which no signature names; and
sentences under `Returns:`. Nor does it see docstrings that are completed at run time, by
`txl_tf.config.base.document_fields`.
"""

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

import griffe

# Griffe would take the text before a colon for a type; the signature has the types.
TITLES = ("Call arguments:", "Returns:", "Yields:", "References:")
_ITEM = re.compile(r"    (\w+): (.*)")


class MarkdownDocstrings(griffe.Extension):
    """Fences doctests, writes some sections as Markdown, and describes the fields of configs."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrites the docstring of a module, class, function or attribute."""
        if not obj.docstring:
            return
        decorators = obj.decorators if isinstance(obj, griffe.Class) else []
        if any(each.callable_path.endswith(".document_fields") for each in decorators):
            obj.docstring.value = inspect.cleandoc(griffe.dynamic_import(obj.path).__doc__)
        lines = unfold_sections(obj.docstring.value.splitlines(), TITLES)
        obj.docstring.value = "\n".join(fence_doctests(lines))

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Replaces the call that defines a field of a config by its default, for the signature."""
        value = attr.value
        if isinstance(value, griffe.ExprCall) and value.canonical_name == "define_field":
            attr.value = value.arguments[0]


def fence_doctests(lines: Iterable[str]) -> Iterator[str]:
    """Yields the lines with each doctest, up to the next empty line, in a fence.

    >>> list(fence_doctests(["Adds.", "", ">>> 1 + 1", "2"]))
    ['Adds.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    is_inside = False
    for line in lines:
        if line.startswith(">>> ") and not is_inside:
            is_inside = True
            yield "```pycon"
        elif not line and is_inside:
            is_inside = False
            yield "```"
        yield line
    if is_inside:
        yield "```"


def unfold_sections(lines: Iterable[str], titles: Iterable[str]) -> Iterator[str]:
    """Yields the lines with some sections as Markdown: `name: text` as a list, else paragraphs.

    >>> list(unfold_sections(["Returns:", "    ids: (B, T)", "        int32."], ["Returns:"]))
    ['**Returns:**', '', '- `ids`: (B, T)', '  int32.']
    """
    is_inside = False
    for line in lines:
        if line in titles:
            is_inside = True
            yield f"**{line}**"
            yield ""
        elif is_inside and (item := _ITEM.fullmatch(line)):
            yield f"- `{item[1]}`: {item[2]}"
        elif is_inside and line.startswith("    "):
            yield f"  {line.strip()}" if line.startswith("        ") else line.strip()
        else:
            is_inside = is_inside and not line
            yield line
