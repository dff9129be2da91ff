"""HTML views of a model, for people who try it: a growing text, surprisal, attention."""

import html
import itertools
import threading
import time
from collections.abc import Iterator

import numpy as np

from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.generation.session import Session, decode_added
from txl_tf.generation.text_encoder import TextEncoder
from txl_tf.lab.pages.html_page import escape, name_text_class
from txl_tf.lab.pages.text_page import make_text_page
from txl_tf.lab.text_attention import Head, parse_heads
from txl_tf.lab.text_trace import TextTracer
from txl_tf.language_model import LanguageModel
from txl_tf.models.architecture import check_transformer

_SHOW_SECONDS = 0.05  # between two views of a growing text
_N_KEYS = 16  # for each head of a page
_END = object()  # of the pieces of a session, which are `None`


class ModelViews:
    """Views of a model for several people, who take turns: 32 tokens, or one page, at a time.

    Invalid input raises a `UserError`, as does a model that is not a Transformer-XL, or has no
    vocabulary or memory.

    Args:
        lm: The language model, a Transformer-XL with a vocabulary.
        run: The name of the run, for pages.
        max_tokens: The largest number of tokens to read, to generate at once, and to show.
        mask_empty_memory: As in `LanguageModel.score`.
    """

    def __init__(
        self, lm: LanguageModel, run: str, *, max_tokens: int, mask_empty_memory: bool = True
    ):
        check_transformer(lm.config, "an analysis of attention")
        lm.config.check_memory("generation")
        if lm.vocabulary is None:
            raise UserError(f"`{run}` has no vocabulary: it cannot encode texts")
        self._lm = lm
        self._vocabulary = lm.vocabulary
        self._run = run
        self._max_tokens = max_tokens
        self._mask_empty_memory = mask_empty_memory
        self._turn = threading.Lock()
        self._tracers: dict[int | None, TextTracer] = {}  # by the layer whose heads they watch

    def start_text(
        self,
        prompt: str,
        length: int,
        temperature: float,
        top_k: int,
        top_p: float,
        seed: int,
    ) -> Iterator[tuple[Session, str]]:
        """Yields a new text and its view, repeatedly while it is generated.

        Samples like `LanguageModel.start`, but a `top_k` of 0 or a `top_p` of 1 means all tokens.
        """
        _check_numbers(length=length, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        with self._turn:
            text = self._lm.start(
                [self._encode(prompt)],
                seed=seed,
                temperature=temperature,
                top_k=top_k or None,
                top_p=None if top_p == 1 else top_p,
                mask_empty_memory=self._mask_empty_memory,
            )
        yield from self.continue_text(text, length)

    def continue_text(self, text: Session | None, length: int) -> Iterator[tuple[Session, str]]:
        """Yields a text and its view, repeatedly while `length` tokens are added."""
        if text is None:
            raise UserError("there is no text to continue: start one")
        _check_numbers(length=length)
        _check_range("length", length, 1, self._max_tokens)
        calls = text.draw_pieces(length)
        yield text, self._view(text)
        shown = time.monotonic()
        while True:
            with self._turn:
                if next(calls, _END) is _END:
                    break
            if time.monotonic() - shown > _SHOW_SECONDS:
                yield text, self._view(text)
                shown = time.monotonic()
        yield text, self._view(text)

    def show_surprisal(self, text: str) -> str:
        """Returns a frame with the page of a text, without single heads."""
        return self._make_frame(self._encode(text), None, None)

    def show_attention(self, text: str, layer: int, head: int, token: int) -> str:
        """Returns a frame with the page of a text and the heads of a layer.

        In the page, this head and this token are selected; token 0 means the last one.
        """
        _check_numbers(layer=layer, head=head, token=token)
        ids = self._encode(text)
        (chosen,) = parse_heads([f"{layer}.{head}"], self._lm.config)
        _check_range("token", token, 0, max(len(ids) - 1, 0))
        return self._make_frame(ids, chosen.layer, (token or len(ids) - 1, chosen))

    def _encode(self, text: str) -> np.ndarray:
        """Returns the ids of a text of limited length, (n,) int32."""
        ids = TextEncoder(self._vocabulary, self._lm.config.n_token).encode(text)
        if len(ids) > self._max_tokens:
            rule = f"the text must have at most {self._max_tokens:,} tokens"
            raise UserError(f"{rule}. Received: {len(ids):,} tokens")
        return ids

    def _make_frame(
        self, ids: np.ndarray, layer: int | None, choice: tuple[int, Head] | None
    ) -> str:
        """Returns a frame with a page that shows the heads of a layer, or none."""
        with self._turn:
            if layer not in self._tracers:  # they keep their graph
                n_head = 0 if layer is None else self._lm.config.n_head
                self._tracers[layer] = TextTracer(
                    self._lm,
                    [Head(layer or 0, index) for index in range(n_head)],
                    n_keys=_N_KEYS,
                    mask_empty_memory=self._mask_empty_memory,
                )
            tracer, source = self._tracers[layer], "the text"
            _, page = make_text_page(
                self._lm, self._run, tracer, ids, source, choice=choice, is_framed=True
            )
        # Without an origin, the page can neither read nor change what is around its frame.
        return (
            '<iframe class="page" sandbox="allow-scripts" title="The text, token by token" '
            f'srcdoc="{html.escape(page)}"></iframe>'
        )

    def _view(self, text: Session) -> str:
        """Returns the text with the tokens that the memory holds, and the speed."""
        n_tokens, held, mem_len = len(text.ids[0]), text.n_in_memory[0], self._lm.span.mem_len
        speed = "measured from the second 32 tokens on"
        if text.speeds is not None:
            speed = "{:,.0f} tokens/s at first, {:,.0f} now".format(*text.speeds)
        facts = [
            f"memory: {held:,} of {mem_len:,} tokens "
            f'<meter min="0" max="{max(mem_len, 1)}" value="{held}"></meter>',
            f"text: {n_tokens:,} tokens, {n_tokens - held:,} of them no longer in the memory",
            f"speed: {speed}",
        ]
        listed = "".join(f"<span>{fact}</span>" for fact in facts)
        parts = "".join(
            f'<span class="{kind}">{escape(part)}</span>'
            for kind, part in cut_text(text, self._vocabulary, self._max_tokens)
        )
        n_left = n_tokens - self._max_tokens
        left = f'<p class="quiet">[{n_left:,} earlier tokens]</p>' if n_left > 0 else ""
        level = name_text_class(self._vocabulary.level)
        return (
            f'<p class="quiet facts">{listed}</p>{left}<div class="grown {level}" dir="auto">'
            f"{parts}</div>"
        )


def _check_numbers(**numbers: float | None) -> None:
    """Raises a `UserError` if a number is missing, as a field of a page may be empty."""
    for name, number in numbers.items():
        if number is None:
            raise UserError(f"`{name}` must be a number. Received: nothing")


def _check_range(name: str, number: int, low: int, high: int) -> None:
    """Raises a `UserError` if a number is out of range."""
    if not low <= number <= high:
        raise UserError(f"`{name}` must be from {low} to {high:,}. Received: {number}")


def cut_text(text: Session, vocabulary: Vocabulary, max_tokens: int) -> list[tuple[str, str]]:
    """Returns the classes and the texts of the parts of the last `max_tokens` tokens of a session.

    The text is cut where the prompt ends and where the memory begins. A character whose tokens lie
    on both sides of a cut belongs to the part after it. An unfinished one at the end is left out.
    """
    (ids,), first = text.ids, max(0, len(text.ids[0]) - max_tokens)
    n_prompt, memory_start = len(ids) - len(text.added[0]), len(ids) - text.n_in_memory[0]
    cuts = sorted({max(first, cut) for cut in (first, n_prompt, memory_start, len(ids))})
    whole = decode_added(vocabulary, ids[:0], ids[first:])
    offsets = [_count_common(vocabulary.decode(ids[first:cut]), whole) for cut in cuts]
    parts = []
    for (start, stop), place in zip(
        itertools.pairwise(cuts), itertools.pairwise(offsets), strict=True
    ):
        kind = "memory" if start >= memory_start else "old"
        parts.append((kind + " prompt" * (stop <= n_prompt), whole[slice(*place)]))
    return parts


def _count_common(part: str, text: str) -> int:
    """Returns the length of the common beginning."""
    pairs = zip(part, text, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
