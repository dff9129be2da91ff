"""The frame of pages that need no network: head, style, facts, and readable text."""

import base64
import hashlib
import html
from collections.abc import Iterable

from txl_tf.experiments.shown_tokens import show_controls

_STYLE = """
:root {
  color-scheme: light dark;
  --ground: #f6f6f3; --card: #fff; --text: #1d1f23; --quiet: #5c616b; --line: #dcdcd6;
  --accent: #3949ab; --accent-ground: #f3f4fd;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #16181c; --card: #1e2126; --text: #e3e4e8; --quiet: #a2a7b3; --line: #353a42;
    --accent: #9fa8ff; --accent-ground: #23263a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 120rem; padding: 1.5rem clamp(0.75rem, 2.5vw, 2.5rem) 3rem;
  background: var(--ground); color: var(--text);
  font: 1rem/1.5 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 1rem; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.125rem 1rem; margin: 0; }
dl { font-size: 0.875rem; }
dt { color: var(--quiet); }
dd { margin: 0; overflow-wrap: anywhere; }
.text { padding: 0.75rem 0.875rem; white-space: pre-wrap; overflow-wrap: anywhere; tab-size: 4; }
.words { font-size: 0.9375rem; }
.layout { font: 0.8125rem/1.5 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media (max-width: 30rem) {
  dl { grid-template-columns: 1fr; }
  dd { margin-bottom: 0.375rem; }
}
"""


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
