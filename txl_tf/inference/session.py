"""Texts that are gone on with, as texts."""

from collections.abc import Iterator, Sequence

import numpy as np

from txl_tf.data.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.inference.generation import Texts
from txl_tf.inference.stops import Stops

_N_BEFORE = 16  # ids, with which what follows is decoded


class Session:
    """Texts with the memory of all that was read and drawn; `LanguageModel.start` makes it.

    Args:
        texts: after their prompts.
        prompts: ids of each prompt, (n,) int32.
        vocabularies: of each text; `None` for one that is ids.
        stops: what ends a text; `None` for nothing but the tokens that end `texts`.
    """

    def __init__(
        self,
        texts: Texts,
        prompts: Sequence[np.ndarray],
        vocabularies: Sequence[Vocabulary | None],
        stops: Stops | None = None,
    ):
        self._texts = texts
        self._prompts = prompts
        self._vocabularies = vocabularies
        self._finders = [stops.watch(int(prompt[-1])) for prompt in prompts] if stops else []
        self._drawn = [np.zeros(0, np.int32) for _ in prompts]

    def __repr__(self) -> str:
        n_texts, n_ended = len(self._prompts), int(self.ended.sum())
        parts = [
            f"{n_texts} text{'s' * (n_texts != 1)}",
            f"{sum(map(len, self._prompts)):,} tokens read",
            f"{sum(map(len, self._drawn)):,} drawn",
            *([f"{n_ended} ended"] if n_ended else []),
        ]
        return f"<Session: {', '.join(parts)}>"

    @property
    def ended(self) -> np.ndarray:
        """Which texts a stop has ended, (n,) bool."""
        return self._texts.has_ended

    def draw(self, max_new_tokens: int, *, resume: bool = True) -> list[str | np.ndarray]:
        """Adds tokens to each text, up to its next stop.

        Args:
            max_new_tokens: how many tokens to add to each.
            resume: whether texts that a stop ended in an earlier call go on after it; else they
                stay as they are.

        Returns:
            What this call added to each text, a list as `added`.

        Raises:
            UserError: If `max_new_tokens` is negative.
        """
        before, n_before = self.added, [len(drawn) for drawn in self._drawn]
        for _ in self.draw_pieces(max_new_tokens, resume=resume):
            pass
        return [
            _cut_known(str(old), new) if isinstance(new, str) else new[n_old:]
            for old, new, n_old in zip(before, self.added, n_before, strict=True)
        ]

    def draw_pieces(self, max_new_tokens: int, *, resume: bool = True) -> Iterator[None]:
        """Draws as `draw`, a few tokens at a time: `added` grows from one step to the next."""
        if max_new_tokens < 0:
            raise UserError(
                f"`max_new_tokens` must not be negative. Received: max_new_tokens={max_new_tokens}"
            )
        if resume and max_new_tokens:
            self._texts.resume()
        for tokens in self._texts.draw(max_new_tokens):
            for row, (drawn, new) in enumerate(zip(self._drawn, tokens, strict=True)):
                self._drawn[row] = np.concatenate([drawn, self._end(row, new[new >= 0])])
            yield

    def stream(self, max_new_tokens: int) -> Iterator[str]:
        """Draws as `draw`, and yields what is added to the only text, in pieces as they come.

        No piece holds anything that comes after a stop.
        """
        n_shown = len(self.added[0])
        for _ in self.draw_pieces(max_new_tokens):
            text = str(self.added[0])
            # The end may still change: bytes of one character, or the space before a word.
            yield text[n_shown : len(text) - 1]
            n_shown = max(n_shown, len(text) - 1)
        yield str(self.added[0])[n_shown:]

    @property
    def added(self) -> list[str | np.ndarray]:
        """What was added to each prompt so far: a text, or ids (n,) int32 if the prompt is ids."""
        parts = zip(self._prompts, self._drawn, self._vocabularies, strict=True)
        return [_decode(*part) for part in parts]

    def _end(self, row: int, new: np.ndarray) -> np.ndarray:
        """Returns the tokens that a text keeps of those drawn last, and ends it at a stop."""
        end = self._finders[row].find_end(new) if self._finders else None
        if end is None:
            return new
        if end.n_kept < len(new) or not self.ended[row]:
            self._texts.end(row, len(new), end.n_kept, end.rest)
        return np.concatenate([new[: end.n_kept], end.rest])


def _cut_known(old: str, new: str) -> str:
    """Returns what a text has more than before, when its last character may not have been whole."""
    return new[len(old) :] if new.startswith(old) else new[len(old) - 1 :]


def _decode(
    prompt: np.ndarray, drawn: np.ndarray, vocabulary: Vocabulary | None
) -> str | np.ndarray:
    if vocabulary is None:
        return drawn
    # Together: the space between two words belongs to neither.
    before = prompt[-_N_BEFORE:]
    head = vocabulary.decode(before)
    return vocabulary.decode(np.concatenate([before, drawn])).removeprefix(head)
