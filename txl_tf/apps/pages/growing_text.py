"""A text that grows: what of it the memory holds, and the time that its tokens take."""

import itertools
import statistics
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from txl_tf.errors import UserError
from txl_tf.generation.text_encoder import TextEncoder
from txl_tf.language_model import LanguageModel

_N_CALLS = 4  # of the session, that a speed is measured over


class TextPart(NamedTuple):
    """A part of a text.

    Args:
        text: The text.
        is_prompt: Whether it was given, and not generated.
        is_in_memory: Whether the memory holds its tokens.
    """

    text: str
    is_prompt: bool
    is_in_memory: bool


class Speeds(NamedTuple):
    """The speed of generation at two places of a text: medians over calls of up to 32 tokens.

    Args:
        first: Tokens per second at the beginning of the text, without its very first call, which
            may have to compile the loop.
        last: Tokens per second in the last calls.
    """

    first: float
    last: float


class GrowingText:
    """A prompt and the text that continues it, for as long as one likes.

    It draws the tokens of `LanguageModel.start`, and tells which of them the memory holds.

    Args:
        lm: The language model.
        prompt: The text to continue, of at least one token.
        max_tokens: The largest number of tokens of a prompt, and to draw at once.
        seed: The seed.
        **sampling: As in `LanguageModel.start`, but no `stops`.

    Raises:
        UserError: If the model has no vocabulary, the prompt is empty, too long or cannot be
            encoded, or an argument is out of range.
    """

    def __init__(
        self, lm: LanguageModel, prompt: str, *, max_tokens: int, seed: int = 0, **sampling: Any
    ):
        self._lm = lm
        self._max_tokens = max_tokens
        self._prompt = encode_bounded(lm, prompt, max_tokens=max_tokens)
        self._session = lm.start([self._prompt], seed=seed, **sampling)
        self._n_calls = 0
        self._first_costs: list[float] = []  # seconds per token
        self._last_costs: deque[float] = deque(maxlen=_N_CALLS)

    @property
    def ids(self) -> np.ndarray:
        """(n,) int32, the tokens of the prompt and those that were added."""
        return np.concatenate([self._prompt, np.asarray(self._session.added[0], np.int32)])

    @property
    def n_in_memory(self) -> int:
        """The number of tokens that the memory holds: the last ones of the text."""
        return min(len(self.ids), self._lm.span.mem_len)

    @property
    def speeds(self) -> Speeds | None:
        """How fast the tokens are drawn; `None` before the second call of up to 32 tokens."""
        if not self._first_costs:
            return None
        costs = (self._first_costs, self._last_costs)
        return Speeds(*(1 / statistics.median(seconds) for seconds in costs))

    def draw(self, length: int) -> Iterator[int]:
        """Returns an iterator that draws up to 32 tokens in each step, and yields their number.

        Args:
            length: The number of tokens to add.

        Raises:
            UserError: If `length` is not from 1 to `max_tokens`.
        """
        if not 1 <= length <= self._max_tokens:
            raise UserError(f"`length` must be from 1 to {self._max_tokens:,}. Received: {length}")
        return self._draw(length)

    def _draw(self, length: int) -> Iterator[int]:
        calls = self._session.draw_pieces(length)
        while True:
            n_before, began = len(self._session.added[0]), time.perf_counter()
            try:
                next(calls)
            except StopIteration:
                return
            seconds = time.perf_counter() - began
            n_drawn = len(self._session.added[0]) - n_before
            self._n_calls += 1
            if self._n_calls > 1 and n_drawn:
                self._last_costs.append(seconds / n_drawn)
                if len(self._first_costs) < _N_CALLS:
                    self._first_costs.append(seconds / n_drawn)
            yield n_drawn

    def cut(self, max_tokens: int) -> list[TextPart]:
        """Returns the end of the text, cut where the prompt ends and where the memory begins.

        The parts are together the text of these tokens. A character of several tokens on the cut
        belongs to the part after it.

        Args:
            max_tokens: The largest number of tokens; earlier ones are left out.
        """
        ids = self.ids
        first, end_of_prompt = max(0, len(ids) - max_tokens), len(self._prompt)
        begin_of_memory = len(ids) - self.n_in_memory
        bounds = sorted(
            {first, len(ids), *(max(first, b) for b in (end_of_prompt, begin_of_memory))}
        )
        text = self._decode(ids[first:])
        offsets = [_count_common(self._decode(ids[first:bound]), text) for bound in bounds]
        places = zip(itertools.pairwise(bounds), itertools.pairwise(offsets), strict=True)
        return [
            TextPart(text[slice(*part)], stop <= end_of_prompt, start >= begin_of_memory)
            for (start, stop), part in places
        ]

    def _decode(self, ids: np.ndarray) -> str:
        assert self._lm.vocabulary is not None
        return self._lm.vocabulary.decode(ids)


def encode_bounded(lm: LanguageModel, text: str, *, max_tokens: int) -> np.ndarray:
    """Returns the ids of a text of limited length, (n,) int32.

    Raises:
        UserError: If the text cannot be encoded, or has more than `max_tokens` tokens.
    """
    ids = TextEncoder(lm.vocabulary, lm.config.n_token).encode(text)
    if len(ids) > max_tokens:
        raise UserError(
            f"the text must have at most {max_tokens:,} tokens. Received: {len(ids):,} tokens"
        )
    return ids


def _count_common(part: str, text: str) -> int:
    """Returns the number of characters with which both begin."""
    pairs = zip(part, text, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
