"""A text as one page that needs no network: surprisal, likely alternatives and attention."""

import base64
import json
import math
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from txl_tf.apps.pages.html_page import escape, make_html, name_text_class
from txl_tf.cached_model import CachedModel
from txl_tf.config import EvalConfig
from txl_tf.data.text.token_levels import CHARACTER_LEVELS
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.experiments.shown_tokens import CONTINUED, name_symbol, show_tokens
from txl_tf.experiments.text_attention import Head
from txl_tf.experiments.text_trace import TextTrace, TextTracer
from txl_tf.language_model import LanguageModel
from txl_tf.quantization import get_kernel_dtype
from txl_tf.scoring.checkpoints import describe_span
from txl_tf.scoring.metrics import Score, format_score

_N_COLORS = 9
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
    """The choice in a page that is opened without an address of its own, as in a frame.

    Args:
        token: The position of the token, whose prediction is shown.
        head: The head whose attention is marked in the text.
    """

    token: int
    head: Head


class TextPages:
    """Reads texts, each with an empty memory, and makes their pages.

    A page loads nothing and runs nothing but its own script.

    Args:
        lm: The language model, a Transformer-XL.
        heads: The heads whose attention a page holds beside the mean of all, in ascending order.
        run: The name of the run, for pages.
        vocabulary: The vocabulary of the texts; `None` if only ids are known.
        evaluation: The segment length and the attention span; `None` for those of the run.
        n_alternatives: The number of likely alternatives for each token.
        n_keys: The number of strongest keys for each head.
        mask_empty_memory: As in `LanguageModel.score`.
        is_framed: Whether pages are shown in frames, for texts of many lengths: they have no
            heading and of the facts only the score, and all texts share a graph.
    """

    def __init__(
        self,
        lm: LanguageModel,
        heads: Sequence[Head],
        *,
        run: str,
        vocabulary: Vocabulary | None,
        evaluation: EvalConfig | None = None,
        n_alternatives: int = 5,
        n_keys: int = 8,
        mask_empty_memory: bool = True,
        is_framed: bool = False,
    ):
        self._lm = lm
        self._heads = heads
        self._run = run
        self._vocabulary = vocabulary
        self._evaluation = evaluation or lm.evaluation
        self._mask_empty_memory = mask_empty_memory
        self._is_framed = is_framed
        cached = CachedModel(
            lm.model,
            self._evaluation.span,
            self._evaluation.tgt_len,
            mask_empty_memory=mask_empty_memory,
            temperature=self._evaluation.temperature,
        )
        self._tracer = TextTracer(
            cached,
            heads,
            n_alternatives=min(n_alternatives, lm.config.n_token),
            n_keys=n_keys,
            pads_texts=is_framed,
        )

    def make(
        self,
        ids: np.ndarray,
        source: str,
        *,
        choice: Choice | None = None,
        report: Callable[[int], object] = lambda n_ids: None,
    ) -> tuple[Score, str]:
        """Reads a text and returns its score and its page.

        Args:
            ids: (n,) int32, the text.
            source: The name of the text, for the page.
            choice: The token and the head that are chosen when the page opens; `None` for none.
            report: Called with the number of tokens after each segment.

        Raises:
            UserError: If the text has less than 2 tokens, or the device's memory is full.
        """
        if len(ids) < 2:
            raise UserError(f"a page needs at least 2 tokens. Received: {len(ids)} in {source}")
        trace = self._tracer.trace(ids, report=report)
        score = trace.sum_up(self._vocabulary)
        level = None if self._vocabulary is None else self._vocabulary.level
        facts = [("score", format_score(score))]
        if not self._is_framed:
            facts = [*self._list_facts(), ("text", source), *facts]
        bits_of_color = 1 if level in CHARACTER_LEVELS else 2
        tokens = _make_tokens(trace, self._vocabulary, bits_of_color)
        body = f"""{_make_legend(bits_of_color)}
<main>
<div id="text" class="text {name_text_class(level)}" tabindex="0" role="group" dir="auto" lang=""
 aria-label="The text. Arrow keys choose a token.">{tokens}</div>
<aside id="panel" aria-label="The chosen token">{_HINT}</aside>
</main>
<p id="live" class="unseen" aria-live="polite"></p>
<div id="tip" aria-hidden="true" hidden></div>
{self._make_data(trace, choice)}"""
        title = f"A text read by {self._run}"
        options = {"style": _STYLE, "script": _SCRIPT}
        return score, make_html(title, facts, body, is_framed=self._is_framed, **options)

    def _list_facts(self) -> Iterator[tuple[str, str]]:
        """Yields the names and the values of the facts of all pages."""
        empty = "" if self._mask_empty_memory else ", empty memory attended to"
        span, precision = describe_span(self._evaluation), get_kernel_dtype(self._lm.model)
        yield "run", f"{self._run}, step {self._lm.step:,}"
        yield "span", f"{span}, {precision}{empty}"

    def _make_data(self, trace: TextTrace, choice: Choice | None) -> str:
        """Returns the elements with the numbers, which the script reads when it needs them."""
        vocabulary, n_ids = self._vocabulary, len(trace.ids)
        every = np.concatenate([trace.ids, trace.alternatives.ravel()])
        used, places = np.unique(every, return_inverse=True)
        queries = np.arange(n_ids - 1)[:, None, None]
        arrays = {
            "ids": _shrink(places[:n_ids]),
            "alternatives": _shrink(places[n_ids:]),
            "log_probs": trace.log_probs.astype("<f4"),
            "nats": trace.nats.astype("<f4"),
            "ranks": trace.ranks.astype("<u4"),
            "distances": _shrink(np.maximum(queries - trace.keys, 0)),
            "weights": _quantize(trace.weights),
            "in_memory": _quantize(trace.in_memory),
        }
        if not self._mask_empty_memory:
            arrays["empty"] = _quantize(trace.empty)
        record: dict[str, Any] = {
            "symbols": [name_symbol(vocabulary, token) for token in used.tolist()],
            "heads": ["mean", *map(str, self._heads)],
            "n_alternatives": trace.alternatives.shape[1],
            "n_keys": trace.keys.shape[2],
            "tgt_len": self._evaluation.tgt_len,
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


def estimate_size(n_tokens: int, n_heads: int, n_keys: int) -> int:
    """Returns about how many bytes the attention of these heads and their mean takes in a page."""
    return n_tokens * (n_heads + 1) * (3 * n_keys + 1) * 4 // 3


def _make_legend(bits_of_color: int) -> str:
    bounds = [bits_of_color * index for index in range(_N_COLORS)]
    swatches = "".join(
        f'<span class="s{index}">{low}\u2013{low + bits_of_color}</span>'
        if index < _N_COLORS - 1
        else f'<span class="s{index}">\u2265{low}</span>'
        for index, low in enumerate(bounds)
    )
    return (
        '<p id="legend"><span>surprisal in bits</span>'
        f'<span class="swatches">{swatches}</span>'
        '<span><span class="sample key">a</span> looked at, in the segment</span>'
        '<span><span class="sample key old">a</span> looked at, in the memory</span></p>'
    )


def _make_tokens(trace: TextTrace, vocabulary: Vocabulary | None, bits_of_color: int) -> str:
    """Returns a span for each token."""
    bits = trace.nats / math.log(2)
    colors = np.minimum(bits / bits_of_color, _N_COLORS - 1).astype(int).tolist()
    classes = ["none", *(f"s{color}" for color in colors)]
    return "".join(
        f'<span class="{name}{" more" if text == CONTINUED else ""}">{escape(text)}</span>{after}'
        for name, (text, after) in zip(classes, show_tokens(vocabulary, trace.ids), strict=True)
    )


def _quantize(weights: np.ndarray) -> np.ndarray:
    """Returns weights from 0 to 1 as bytes: 255 times the square root, rounded, uint8.

    The root keeps small weights apart. The error of a weight w is at most sqrt(w) / 255.
    """
    return np.rint(255 * np.sqrt(np.clip(weights, 0, 1))).astype(np.uint8)


def _shrink(array: np.ndarray) -> np.ndarray:
    """Returns integers in the smallest of the unsigned types that hold them."""
    largest = array.max(initial=0)
    return array.astype("u1" if largest < 2**8 else "<u2" if largest < 2**16 else "<u4")


def _name_dtype(array: np.ndarray) -> str:
    return array.dtype.newbyteorder("<").str.replace("|", "")
