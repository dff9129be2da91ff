"""The common parts of pages that need no network: head, style, facts, and readable text."""

import base64
import hashlib
import html
from collections.abc import Iterable
from importlib import resources

from txl_tf.lab.shown_tokens import replace_surrogates, show_controls


def read_asset(name: str) -> str:
    """Returns a template, style or script of this folder."""
    return resources.files("txl_tf.lab.pages").joinpath(name).read_text(encoding="utf-8")


# Assets are read once, so that later changes do not affect a running server.
_PAGE, _STYLE = map(read_asset, ("html_page.html", "html_page.css"))


def make_html(
    title: str,
    facts: Iterable[tuple[str, str]],
    body: str,
    *,
    style: str,
    script: str = "",
    is_framed: bool = False,
) -> str:
    """Returns an HTML page that loads nothing and runs nothing but `script`.

    The title and the facts (names and values) are text; the body is HTML. A page in a frame has no
    heading.
    """
    listed = "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    policy, element = "default-src 'none'; style-src 'unsafe-inline'", ""
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        element = f"<script>{script}</script>\n"
    return _PAGE.format(
        policy=policy,
        title=escape(title),
        style=_STYLE + style,
        heading="" if is_framed else f"<h1>{escape(title)}</h1>",
        facts=listed,
        body=body,
        script=element,
    )


def escape(text: str) -> str:
    r"""Returns a text escaped for HTML, with every character visible.

    >>> escape("a < b\r\n")
    'a &lt; b␍\n'
    """
    return html.escape(show_controls(replace_surrogates(text)))


def name_text_class(level: str | None) -> str:
    """Returns the CSS class of texts of a level: "words", or "layout" if white space matters."""
    return "words" if level == "word" else "layout"
