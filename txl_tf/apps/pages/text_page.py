"""A text as one page that needs no network: surprisal, likely alternatives and attention."""

import base64
import json
import math
from collections.abc import Iterator
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from txl_tf.apps.pages.html_page import escape, make_html, name_text_class
from txl_tf.apps.pages.text_trace import TextTrace
from txl_tf.data.text.token_levels import CHARACTER_LEVELS
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.experiments.shown_tokens import CONTINUED, name_symbol, show_tokens
from txl_tf.experiments.text_attention import Head
from txl_tf.scoring.metrics import Score, format_score

N_COLOURS = 9
_TYPES = {"u1": "Uint8Array", "<u2": "Uint16Array", "<u4": "Uint32Array", "<f4": "Float32Array"}
# Read once, so that a running server does not depend on later changes of its files.
_STYLE, _SCRIPT = (
    resources.files("txl_tf.apps.pages").joinpath(name).read_text(encoding="utf-8")
    for name in ("text_page.css", "text_page.js")
)
_HINT = (
    '<p class="hint">Point at a token to see its likeliest alternatives. Click on it, or press an '
    "arrow key in the text, to see where each head looks.</p>"
)


class Choice(NamedTuple):
    """What is chosen in a page that is opened without an address of its own, as in a frame.

    Args:
        token: The position of the token, whose prediction is shown.
        head: The head whose attention is marked in the text.
    """

    token: int
    head: Head


class TextFacts(NamedTuple):
    """What a page shows, and how it was computed.

    Args:
        run: The run folder.
        step: The number of training steps.
        span: The segment length and the attention span, as text.
        tgt_len: The segment length T.
        source: The text, by name and position.
        score: The score of the text.
        precision: The dtype of the kernels.
        mask_empty_memory: Whether the empty memory was hidden.
    """

    run: str
    step: int
    span: str
    tgt_len: int
    source: str
    score: Score
    precision: str
    mask_empty_memory: bool

    def describe(self) -> Iterator[tuple[str, str]]:
        """Yields the names and the values of the facts that people read."""
        empty = "" if self.mask_empty_memory else ", empty memory attended to"
        yield "run", f"{self.run}, step {self.step:,}"
        yield "span", f"{self.span}, {self.precision}{empty}"
        yield "text", self.source
        yield "score", format_score(self.score)


def make_text_page(
    facts: TextFacts,
    trace: TextTrace,
    vocabulary: Vocabulary | None,
    choice: Choice | None = None,
    *,
    is_framed: bool = False,
) -> str:
    """Returns the page of a text. It loads nothing and runs nothing but its own script.

    Args:
        facts: What the page shows.
        trace: The predictions for the tokens of the text.
        vocabulary: The vocabulary; `None` if only ids are known.
        choice: What is chosen when the page opens, unless its address says otherwise; `None` for
            nothing.
        is_framed: Whether the page is shown in a frame: it then has no heading, and of the facts
            only the score.
    """
    level = vocabulary.level if vocabulary else None
    bits_of_colour = choose_colour_step(level)
    body = f"""{_make_legend(bits_of_colour)}
<main>
<div id="text" class="text {name_text_class(level)}" tabindex="0" role="group" dir="auto" lang=""
 aria-label="The text. Arrow keys choose a token.">{
        _make_tokens(trace, vocabulary, bits_of_colour)
    }</div>
<aside id="panel" aria-label="The chosen token">{_HINT}</aside>
</main>
<p id="live" class="unseen" aria-live="polite"></p>
<div id="tip" aria-hidden="true" hidden></div>
{_make_data(facts, trace, vocabulary, choice)}"""
    return make_html(
        f"A text read by {facts.run}",
        [("score", format_score(facts.score))] if is_framed else facts.describe(),
        body,
        style=_STYLE,
        script=_SCRIPT,
        is_framed=is_framed,
    )


def choose_colour_step(level: str | None) -> int:
    """Returns the width in bits of the steps of the colour scale."""
    return 1 if level in CHARACTER_LEVELS else 2


def quantise(weights: np.ndarray) -> np.ndarray:
    """Returns weights from 0 to 1 as bytes: 255 times the square root, rounded, uint8.

    The root keeps small weights apart. The error of a weight w is at most sqrt(w) / 255.
    """
    return np.rint(255 * np.sqrt(np.clip(weights, 0, 1))).astype(np.uint8)


def _make_legend(bits_of_colour: int) -> str:
    bounds = [bits_of_colour * index for index in range(N_COLOURS)]
    swatches = "".join(
        f'<span class="s{index}">{low}\u2013{low + bits_of_colour}</span>'
        if index < N_COLOURS - 1
        else f'<span class="s{index}">\u2265{low}</span>'
        for index, low in enumerate(bounds)
    )
    return (
        '<p id="legend"><span>surprisal in bits</span>'
        f'<span class="swatches">{swatches}</span>'
        '<span><span class="sample key">a</span> looked at, in the segment</span>'
        '<span><span class="sample key old">a</span> looked at, in the memory</span></p>'
    )


def _make_tokens(trace: TextTrace, vocabulary: Vocabulary | None, bits_of_colour: int) -> str:
    """Returns a span for each token."""
    bits = trace.nats / math.log(2)
    colours = np.minimum(bits / bits_of_colour, N_COLOURS - 1).astype(int).tolist()
    classes = ["none", *(f"s{colour}" for colour in colours)]
    return "".join(
        f'<span class="{name}{" more" if text == CONTINUED else ""}">{escape(text)}</span>{after}'
        for name, (text, after) in zip(classes, show_tokens(vocabulary, trace.ids), strict=True)
    )


def _make_data(
    facts: TextFacts, trace: TextTrace, vocabulary: Vocabulary | None, choice: Choice | None
) -> str:
    """Returns the elements with the numbers, which the script reads when it needs them."""
    used, places = np.unique(
        np.concatenate([trace.ids, trace.alternatives.ravel()]), return_inverse=True
    )
    n_ids = len(trace.ids)
    queries = np.arange(n_ids - 1)[:, None, None]
    distances = np.maximum(queries - trace.keys, 0)
    arrays = {
        "ids": _shrink(places[:n_ids]),
        "alternatives": _shrink(places[n_ids:]),
        "log_probs": trace.log_probs.astype("<f4"),
        "nats": trace.nats.astype("<f4"),
        "ranks": trace.ranks.astype("<u4"),
        "distances": _shrink(distances),
        "weights": quantise(trace.weights),
        "in_memory": quantise(trace.in_memory),
        "empty": quantise(trace.empty),
    }
    if facts.mask_empty_memory:
        del arrays["empty"]
    record: dict[str, Any] = {
        "symbols": [name_symbol(vocabulary, token) for token in used.tolist()],
        "heads": ["mean", *map(str, trace.heads)],
        "n_alternatives": trace.alternatives.shape[1],
        "n_keys": trace.keys.shape[2],
        "tgt_len": facts.tgt_len,
        "n_symbols": len(vocabulary) if vocabulary else None,
        "arrays": {name: _TYPES[_name_dtype(array)] for name, array in arrays.items()},
    }
    if choice is not None:
        record["choice"] = f"token={choice.token}&head={choice.head}"
    text = json.dumps(record, separators=(",", ":")).replace("<", "\\u003c")
    elements = [f'<script type="application/json" id="facts">{text}</script>']
    for name, array in arrays.items():
        content = base64.b64encode(array.tobytes()).decode()
        elements.append(f'<script type="text/plain" id="{name}">{content}</script>')
    return "\n".join(elements)


def _shrink(array: np.ndarray) -> np.ndarray:
    """Returns integers in the smallest of the unsigned types that hold them."""
    largest = array.max(initial=0)
    return array.astype("u1" if largest < 2**8 else "<u2" if largest < 2**16 else "<u4")


def _name_dtype(array: np.ndarray) -> str:
    return array.dtype.newbyteorder("<").str.replace("|", "")


def estimate_size(n_tokens: int, n_heads: int, n_keys: int) -> int:
    """Returns about how many bytes the attention takes in a page.

    Args:
        n_tokens: The number of tokens of the text.
        n_heads: The number of chosen heads; the mean of all heads is added.
        n_keys: The number of keys of each head.
    """
    return n_tokens * (n_heads + 1) * (3 * n_keys + 1) * 4 // 3
