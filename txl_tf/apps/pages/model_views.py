"""Views of a model, in HTML, for people who try it: a text that grows, surprisal, attention."""

import html
import itertools
import threading
import time
from collections.abc import Iterator

import numpy as np

from txl_tf.apps.pages.html_page import escape, name_text_class
from txl_tf.apps.pages.text_page import Choice
from txl_tf.apps.pages.text_reading import TextReader
from txl_tf.architecture import check_transformer
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.experiments.attention_stretch import parse_heads
from txl_tf.experiments.text_attention import Head
from txl_tf.generation.session import Session
from txl_tf.generation.text_encoder import TextEncoder
from txl_tf.language_model import LanguageModel

_SHOW_SECONDS = 0.05  # between two views of a text that is drawn
_N_KEYS = 16  # for each head of a page


class ModelViews:
    """Views of a model for several people, who take turns: 32 tokens, or one page, at a time.

    Args:
        lm: The language model, a Transformer-XL with a vocabulary.
        run: The name of the run, for pages.
        max_tokens: The largest number of tokens to read, to draw at once, and to show.
        mask_empty_memory: As in `LanguageModel.score`.

    Raises:
        UserError: If the model is another one, has no vocabulary, or can have no memory.
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
        self._readers: dict[int | None, TextReader] = {}  # by the layer whose heads they watch

    def start_text(
        self,
        prompt: str,
        length: int,
        temperature: float,
        top_k: int,
        top_p: float,
        seed: int,
    ) -> Iterator[tuple[Session, str]]:
        """Yields a new text and its view, again and again while it is drawn.

        Args:
            prompt: The text to continue.
            length: The number of tokens to add.
            temperature: As in `LanguageModel.start`.
            top_k: Draw from this many of the most likely tokens; 0 for all.
            top_p: As in `LanguageModel.start`; 1 for all tokens.
            seed: The seed.

        Raises:
            UserError: If an argument is missing or out of range, or the prompt cannot be encoded.
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
        """Yields a text and its view, again and again while more of it is drawn.

        Args:
            text: The text; `None` for none, which is an error.
            length: The number of tokens to add.

        Raises:
            UserError: If there is no text, or `length` is missing or out of range.
        """
        if text is None:
            raise UserError("there is no text to continue: start one")
        _check_numbers(length=length)
        if not 1 <= length <= self._max_tokens:
            raise UserError(f"`length` must be from 1 to {self._max_tokens:,}. Received: {length}")
        calls = text.draw_pieces(length)
        yield text, self._view(text)
        shown = time.monotonic()
        while True:
            with self._turn:
                try:
                    next(calls)
                except StopIteration:
                    break
            if time.monotonic() - shown > _SHOW_SECONDS:
                yield text, self._view(text)
                shown = time.monotonic()
        yield text, self._view(text)

    def show_surprisal(self, text: str) -> str:
        """Returns a frame with the page of a text, without single heads.

        Raises:
            UserError: If the text cannot be encoded, is too long, or has less than 2 tokens.
        """
        return self._make_frame(self._encode(text), None, None)

    def show_attention(self, text: str, layer: int, head: int, token: int) -> str:
        """Returns a frame with the page of a text and the heads of a layer, one of them chosen.

        Args:
            text: The text.
            layer: The layer, from 0.
            head: The head of the layer that is chosen, from 0.
            token: The position of the token that is chosen, from 1; 0 for the last one.

        Raises:
            UserError: See `show_surprisal`; or if there is no such head or token.
        """
        _check_numbers(layer=layer, head=head, token=token)
        ids = self._encode(text)
        (chosen,) = parse_heads([f"{layer}.{head}"], self._lm.config)
        choice = Choice(_choose_token(token, len(ids)), chosen)
        return self._make_frame(ids, chosen.layer, choice)

    def _encode(self, text: str) -> np.ndarray:
        """Returns the ids of a text of limited length, (n,) int32."""
        ids = TextEncoder(self._vocabulary, len(self._vocabulary)).encode(text)
        if len(ids) > self._max_tokens:
            raise UserError(
                f"the text must have at most {self._max_tokens:,} tokens. "
                f"Received: {len(ids):,} tokens"
            )
        return ids

    def _make_frame(self, ids: np.ndarray, layer: int | None, choice: Choice | None) -> str:
        with self._turn:
            reading = self._get_reader(layer).read(ids, "the text", choice=choice)
        # Without an origin, the page can neither read nor change what is around its frame.
        return (
            '<iframe class="page" sandbox="allow-scripts" title="The text, token by token" '
            f'srcdoc="{html.escape(reading.page)}"></iframe>'
        )

    def _get_reader(self, layer: int | None) -> TextReader:
        """Returns the reader that watches the heads of a layer, or none; it keeps its graph."""
        if layer not in self._readers:
            n_head = 0 if layer is None else self._lm.config.n_head
            self._readers[layer] = TextReader(
                self._lm,
                [Head(layer or 0, index) for index in range(n_head)],
                run=self._run,
                vocabulary=self._vocabulary,
                n_keys=_N_KEYS,
                mask_empty_memory=self._mask_empty_memory,
                is_framed=True,
            )
        return self._readers[layer]

    def _view(self, text: Session) -> str:
        """Returns the end of a text in HTML, its part in the memory, and the speed."""
        n_tokens, n_held, mem_len = len(text.ids[0]), text.n_in_memory[0], self._lm.span.mem_len
        facts = [
            f"memory: {n_held:,} of {mem_len:,} tokens "
            f'<meter min="0" max="{max(mem_len, 1)}" value="{n_held}"></meter>',
            f"text: {n_tokens:,} tokens, {n_tokens - n_held:,} of them no longer in the memory",
            _describe_speeds(text),
        ]
        listed = "".join(f"<span>{fact}</span>" for fact in facts)
        parts = "".join(
            f'<span class="{name}">{escape(part)}</span>'
            for name, part in cut_text(text, self._vocabulary, self._max_tokens)
        )
        n_left = n_tokens - self._max_tokens
        left = f'<p class="quiet">[{n_left:,} earlier tokens]</p>' if n_left > 0 else ""
        level = name_text_class(self._vocabulary.level)
        return (
            f'<p class="quiet facts">{listed}</p>{left}<div class="grown {level}" dir="auto">'
            f"{parts}</div>"
        )


def cut_text(text: Session, vocabulary: Vocabulary, max_tokens: int) -> list[tuple[str, str]]:
    """Returns the end of a text, cut where the prompt ends and where the memory begins.

    The parts are together the text of these tokens. A character of several tokens on the cut
    belongs to the part after it.

    Args:
        text: A session of a single prompt, given as ids.
        vocabulary: The vocabulary.
        max_tokens: The largest number of tokens; earlier ones are left out.

    Returns:
        The parts, each after its classes: "memory" if the memory holds its tokens, else "old"; and
        "prompt" if it was given.
    """
    (ids,), first = text.ids, max(0, len(text.ids[0]) - max_tokens)
    n_prompt, n_forgotten = len(ids) - len(text.added[0]), len(ids) - text.n_in_memory[0]
    bounds = sorted({first, max(first, n_prompt), max(first, n_forgotten), len(ids)})
    whole = vocabulary.decode(ids[first:])
    offsets = [_count_common(vocabulary.decode(ids[first:bound]), whole) for bound in bounds]
    places = zip(itertools.pairwise(bounds), itertools.pairwise(offsets), strict=True)
    return [
        (
            ("memory" if start >= n_forgotten else "old") + " prompt" * (stop <= n_prompt),
            whole[slice(*part)],
        )
        for (start, stop), part in places
    ]


def _count_common(part: str, text: str) -> int:
    """Returns the number of characters with which both begin."""
    pairs = zip(part, text, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _describe_speeds(text: Session) -> str:
    """Returns the speeds of a text in words."""
    if text.speeds is None:
        return "speed: measured from the second 32 tokens on"
    first, last = text.speeds
    return f"speed: {first:,.0f} tokens/s at first, {last:,.0f} now"


def _check_numbers(**numbers: float | None) -> None:
    """Checks that numbers were given: a field of a page may be empty.

    Raises:
        UserError: If one is missing.
    """
    for name, number in numbers.items():
        if number is None:
            raise UserError(f"`{name}` must be a number. Received: nothing")


def _choose_token(token: int, n_tokens: int) -> int:
    """Returns the position of the chosen token, 0 for the last one.

    Raises:
        UserError: If no token that is predicted has the position.
    """
    if not 0 <= token < max(n_tokens, 2):
        raise UserError(f"`token` must be from 0 to {n_tokens - 1:,}. Received: {token}")
    return token or n_tokens - 1
