"""The frame of pages that need no network: head, style, facts, and readable text."""

import base64
import hashlib
import html
from collections.abc import Iterable
from importlib import resources

from txl_tf.experiments.shown_tokens import show_controls


def read_asset(name: str) -> str:
    """Returns a style or script of this folder."""
    return resources.files("txl_tf.apps.pages").joinpath(name).read_text(encoding="utf-8")


_STYLE = read_asset("html_page.css")


def make_html(
    title: str,
    facts: Iterable[tuple[str, str]],
    body: str,
    *,
    style: str,
    script: str = "",
    is_framed: bool = False,
) -> str:
    """Returns a page of HTML, which loads nothing and runs nothing but the script.

    Title and facts (name and value) are text, and the body is HTML. A page in a frame has no
    heading.
    """
    heading = escape(title)
    listed = "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    policy, element = "default-src 'none'; style-src 'unsafe-inline'", ""
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        element = f"<script>{script}</script>\n"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{heading}</title>
<style>{_STYLE}{style}</style>
</head>
<body>
{"" if is_framed else f"<h1>{heading}</h1>"}
<dl>
{listed}
</dl>
{body}
{element}</body>
</html>
"""


def escape(text: str) -> str:
    r"""Returns a text for HTML, in which every character is seen.

    >>> escape("a < b\r\n")
    'a &lt; b␍\n'
    """
    return html.escape(show_controls(text))


def name_text_class(level: str | None) -> str:
    """Returns the class of texts of a level: "words", or "layout" where white space matters."""
    return "words" if level == "word" else "layout"
