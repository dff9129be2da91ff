"""Texts that are gone on with, as texts."""

from collections.abc import Iterator, Sequence

import numpy as np

from txl_tf.data.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.inference.generation import Texts

_N_BEFORE = 16  # ids, with which what follows is decoded


class Session:
    """Texts with the memory of all that was read and drawn; `LanguageModel.start` makes it.

    Args:
        texts: after their prompts.
        prompts: ids of each prompt, (n,) int32.
        vocabularies: of each text; `None` for one that is ids.
    """

    def __init__(
        self,
        texts: Texts,
        prompts: Sequence[np.ndarray],
        vocabularies: Sequence[Vocabulary | None],
    ):
        self._texts = texts
        self._prompts = prompts
        self._vocabularies = vocabularies
        self._drawn = [np.zeros(0, np.int32) for _ in prompts]

    def draw(self, max_new_tokens: int) -> None:
        """Goes on with each text that has not ended.

        Args:
            max_new_tokens: how many tokens to add.
        """
        for _ in self.draw_pieces(max_new_tokens):
            pass

    def draw_pieces(self, max_new_tokens: int) -> Iterator[None]:
        """Goes on as `draw`, a few tokens at a time: `added` grows from one step to the next."""
        if max_new_tokens < 0:
            raise UserError(
                f"`max_new_tokens` must not be negative. Received: max_new_tokens={max_new_tokens}"
            )
        for tokens in self._texts.draw(max_new_tokens):
            self._drawn = [
                np.concatenate([drawn, row[row >= 0]])
                for drawn, row in zip(self._drawn, tokens, strict=True)
            ]
            yield

    def stream(self, max_new_tokens: int) -> Iterator[str]:
        """Goes on as `draw`, and yields what is added to the only text, in pieces as they come."""
        n_shown = 0
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


def _decode(
    prompt: np.ndarray, drawn: np.ndarray, vocabulary: Vocabulary | None
) -> str | np.ndarray:
    if vocabulary is None:
        return drawn
    # Together: the space between two words belongs to neither.
    before = prompt[-_N_BEFORE:]
    head = vocabulary.decode(before)
    return vocabulary.decode(np.concatenate([before, drawn])).removeprefix(head)
