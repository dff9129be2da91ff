"""A generation session, decoded to text."""

from collections.abc import Iterator, Sequence

import numpy as np

from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.generation.generator import TokenSession
from txl_tf.generation.stops import Stops

_N_CONTEXT = 16  # ids of the prompt that are decoded together with the drawn ones


class Session:
    """A batch of texts that can be continued any number of times; see `LanguageModel.start`.

    Args:
        tokens: The same session in tokens, after the prompts.
        prompts: The ids of each prompt, (n,) int32.
        vocabularies: The vocabulary of each text; `None` for a text given as ids.
        stops: The stops that end a text; `None` for none but the tokens known to `tokens`.
    """

    def __init__(
        self,
        tokens: TokenSession,
        prompts: Sequence[np.ndarray],
        vocabularies: Sequence[Vocabulary | None],
        stops: Stops | None = None,
    ):
        self._tokens = tokens
        self._prompts = prompts
        self._vocabularies = vocabularies
        self._finders = [stops.watch(int(prompt[-1])) for prompt in prompts] if stops else []
        self._drawn = [np.zeros(0, np.int32) for _ in prompts]

    def __repr__(self) -> str:
        n_texts, n_ended = len(self._prompts), int(self.ended.sum())
        facts = [
            f"{n_texts} text{'s' * (n_texts != 1)}",
            f"{sum(map(len, self._prompts)):,} tokens read",
            f"{sum(map(len, self._drawn)):,} drawn",
            *([f"{n_ended} ended"] if n_ended else []),
        ]
        return f"<Session: {', '.join(facts)}>"

    @property
    def ended(self) -> np.ndarray:
        """(n,) bool, whether a stop has ended each text."""
        return self._tokens.has_ended

    def draw(self, max_new_tokens: int, *, resume: bool = True) -> list[str | np.ndarray]:
        """Adds tokens to each text, up to its next stop.

        Args:
            max_new_tokens: Number of tokens to add to each text.
            resume: Whether texts that ended in an earlier call continue after their stop; otherwise
                they are left unchanged.

        Returns:
            The text or the ids that this call added to each text, as in `added`.

        Raises:
            UserError: If `max_new_tokens` is negative or not an integer.
        """
        before, n_before = self.added, [len(drawn) for drawn in self._drawn]
        for _ in self.draw_pieces(max_new_tokens, resume=resume):
            pass
        return [
            _remove_known(str(old), new) if isinstance(new, str) else new[n_old:]
            for old, new, n_old in zip(before, self.added, n_before, strict=True)
        ]

    def draw_pieces(self, max_new_tokens: int, *, resume: bool = True) -> Iterator[None]:
        """Draws like `draw`, a few tokens per iteration: `added` grows with each of them."""
        if not isinstance(max_new_tokens, int | np.integer) or max_new_tokens < 0:
            raise UserError(
                "`max_new_tokens` must be an integer >= 0. "
                f"Received: max_new_tokens={max_new_tokens!r}"
            )
        if resume and max_new_tokens:
            self._tokens.resume()
        for tokens in self._tokens.draw(max_new_tokens):
            for row, (drawn, new) in enumerate(zip(self._drawn, tokens, strict=True)):
                self._drawn[row] = np.concatenate([drawn, self._apply_stop(row, new[new >= 0])])
            yield

    def stream(self, max_new_tokens: int) -> Iterator[str]:
        """Draws like `draw` for a single text, and yields the added text while it is generated.

        No text after a stop is ever yielded.
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
        """The text added to each prompt so far, or the ids (n,) int32 if the prompt is ids."""
        rows = zip(self._prompts, self._drawn, self._vocabularies, strict=True)
        return [_decode(*row) for row in rows]

    def _apply_stop(self, row: int, new: np.ndarray) -> np.ndarray:
        """Returns the new tokens that a text keeps, and ends the text if they hold a stop."""
        end = self._finders[row].find_end(new) if self._finders else None
        if end is None:
            return new
        if end.n_kept < len(new) or not self.ended[row]:
            self._tokens.end(row, len(new), end.n_kept, end.rest)
        return np.concatenate([new[: end.n_kept], end.rest])


def _remove_known(old: str, new: str) -> str:
    """Returns the new part of a text; the last character of the old part may have changed."""
    return new[len(old) :] if new.startswith(old) else new[len(old) - 1 :]


def _decode(
    prompt: np.ndarray, drawn: np.ndarray, vocabulary: Vocabulary | None
) -> str | np.ndarray:
    if vocabulary is None:
        return drawn
    # Decoded together, because the space between two words belongs to neither.
    context = prompt[-_N_CONTEXT:]
    head = vocabulary.decode(context)
    return vocabulary.decode(np.concatenate([context, drawn])).removeprefix(head)
