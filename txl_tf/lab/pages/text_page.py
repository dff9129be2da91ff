"""A text on one page that needs no network: surprisal, likely alternatives and attention."""

import base64
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from txl_tf import LanguageModel, UserError
from txl_tf.data import Vocabulary
from txl_tf.lab.pages.html_page import escape, make_html, name_text_class, read_asset
from txl_tf.lab.shown_tokens import name_symbol, show_tokens
from txl_tf.lab.text_attention import Head
from txl_tf.lab.text_trace import TextTracer
from txl_tf.models.quantization import get_kernel_dtype
from txl_tf.scoring.metrics import Score, name_unit, sum_losses

_N_COLORS = 9
_CONTINUED = "\u00b7"  # stands for a token that only continues a character
_BODY, _STYLE, _SCRIPT = (read_asset(f"text_page.{kind}") for kind in ("html", "css", "js"))


def make_text_page(
    lm: LanguageModel,
    run: str,
    tracer: TextTracer,
    ids: np.ndarray,
    source: str,
    *,
    choice: tuple[int, Head] | None = None,
    is_framed: bool = False,
    report: Callable[[int], object] = lambda n_ids: None,
) -> tuple[Score, str]:
    """Reads a text, (n,) int32, and returns its score and its page.

    The page runs nothing but its own script. It shows `run` and `source`, and initially selects the
    token and the head in `choice`. A framed page has no heading and shows only the score. `report`
    is called with the number of tokens after each segment.
    """
    if len(ids) < 2:
        raise UserError(f"a page needs at least 2 tokens. Received: {len(ids)} in {source}")
    trace = tracer.trace(ids, report=report)
    nats, vocabulary = trace["nats"], lm.vocabulary
    score = sum_losses(nats, ids[1:], vocabulary)
    facts = [("score", score.describe())]
    if not is_framed:
        empty = "" if tracer.mask_empty_memory else ", empty memory attended to"
        span = f"{lm.evaluation.describe()}, {get_kernel_dtype(lm.model)}{empty}"
        facts = [("run", f"{run}, step {lm.step:,}"), ("span", span), ("text", source), *facts]
    record, arrays = _collect(trace, ids, vocabulary)
    if tracer.mask_empty_memory:
        del arrays["empty"]
    record |= {"heads": ["mean", *map(str, tracer.heads)], "tgt_len": lm.evaluation.tgt_len}
    if choice is not None:
        record["choice"] = f"token={choice[0]}&head={choice[1]}"
    bits_of_color = 1 if name_unit(score.level) == "bpc" else 2
    body = _BODY.format(
        swatches=_make_swatches(bits_of_color),
        kind=name_text_class(score.level),
        tokens=_make_tokens(ids, nats, vocabulary, bits_of_color),
        data=_make_data(record, arrays),
    )
    title = f"A text read by {run}"
    page = make_html(title, facts, body, style=_STYLE, script=_SCRIPT, is_framed=is_framed)
    return score, page


def _collect(
    trace: dict[str, np.ndarray], ids: np.ndarray, vocabulary: Vocabulary | None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the symbols and sizes of a page, and its arrays."""
    n_ids, alternatives = len(ids), trace["alternatives"]
    every = np.concatenate([ids, alternatives.ravel()])
    used, places = np.unique(every, return_inverse=True)
    distances = np.arange(n_ids - 1)[:, None, None] - trace["keys"]
    record = {
        "symbols": [name_symbol(vocabulary, token) for token in used.tolist()],
        "n_alternatives": alternatives.shape[1],
        "n_keys": distances.shape[2],
        "n_symbols": len(vocabulary) if vocabulary else None,
    }
    arrays = {
        "ids": _shrink(places[:n_ids]),
        "alternatives": _shrink(places[n_ids:]),
        "log_probs": trace["log_probs"].astype("<f4"),
        "nats": trace["nats"].astype("<f4"),
        "ranks": trace["ranks"].astype("<u4"),
        "distances": _shrink(np.maximum(distances, 0)),
        **{name: _quantize(trace[name]) for name in ("weights", "in_memory", "empty")},
    }
    return record, arrays


def _make_data(record: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """Returns the elements that hold the numbers, which the script reads when it needs them."""
    # The names of the types in JavaScript, such as Uint8Array.
    types = {name: f"{array.dtype.name.capitalize()}Array" for name, array in arrays.items()}
    text = json.dumps(record | {"arrays": types}, separators=(",", ":")).replace("<", "\\u003c")
    elements = [f'<script type="application/json" id="facts">{text}</script>']
    for name, array in arrays.items():
        content = base64.b64encode(array.tobytes()).decode()
        elements.append(f'<script type="text/plain" id="{name}">{content}</script>')
    return "\n".join(elements)


def _make_swatches(bits_of_color: int) -> str:
    lows = range(0, bits_of_color * (_N_COLORS - 1), bits_of_color)
    labels = [*(f"{low}\u2013{low + bits_of_color}" for low in lows), f"\u2265{lows.stop}"]
    return "".join(f'<span class="s{index}">{label}</span>' for index, label in enumerate(labels))


def _make_tokens(
    ids: np.ndarray, nats: np.ndarray, vocabulary: Vocabulary | None, bits_of_color: int
) -> str:
    bits = nats / math.log(2)
    colors = np.minimum(bits / bits_of_color, _N_COLORS - 1).astype(int).tolist()
    classes = ["none", *(f"s{color}" for color in colors)]
    return "".join(
        f'<span class="{name}{"" if text else " more"}">{escape(text or _CONTINUED)}</span>{after}'
        for name, (text, after) in zip(classes, show_tokens(vocabulary, ids), strict=True)
    )


def _quantize(weights: np.ndarray) -> np.ndarray:
    """Returns weights from 0 to 1 as bytes: 255 times the square root, rounded, uint8.

    The root keeps small weights distinct. The error of a weight w is at most sqrt(w) / 255.
    """
    return np.rint(255 * np.sqrt(np.clip(weights, 0, 1))).astype(np.uint8)


def _shrink(array: np.ndarray) -> np.ndarray:
    """Returns integers in the smallest unsigned type that holds them."""
    largest = array.max(initial=0)
    return array.astype("u1" if largest < 2**8 else "<u2" if largest < 2**16 else "<u4")
