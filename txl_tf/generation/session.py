"""A generation session: texts that can be continued any number of times."""

import codecs
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.config import MAX_SAMPLING_SEED
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError, check_integer
from txl_tf.generation.generator import Generator
from txl_tf.generation.sampling import UNIFORMS_PER_BLOCK, SamplingConfig, draw_uniforms
from txl_tf.generation.stops import StopFinder, Stops
from txl_tf.generation.text_encoder import TextEncoder
from txl_tf.generation.token_loop import LoopState, join_rows

_TOKENS_PER_CALL = UNIFORMS_PER_BLOCK  # the tokens do not depend on how calls are split
_N_CONTEXT = 16  # ids before the new ones that are decoded together with them


class Speeds(NamedTuple):
    """Tokens per second at two places of a text: medians over four calls of up to 32 tokens.

    Args:
        first: Speed at the beginning of the text, without its very first call, which may have to
            compile the loop.
        last: Speed in the last calls.
    """

    first: float
    last: float


class Session:
    """A batch of texts that can be continued any number of times; see `LanguageModel.start`.

    Args:
        generator: The generator.
        prompts: The ids of each prompt, (n,) int32, not empty.
        sampling: The sampling settings.
        seeds: A seed for each text; no text depends on the others of the batch.
        vocabularies: The vocabulary of each text; `None` for a text given as ids.
        stops: The stops that end a text; `None` for none but the tokens in `sampling`.

    Raises:
        UserError: If there is no prompt, a prompt is empty, or a seed is out of range.
    """

    def __init__(
        self,
        generator: Generator,
        prompts: Sequence[np.ndarray],
        sampling: SamplingConfig,
        seeds: Sequence[int],
        *,
        vocabularies: Sequence[Vocabulary | None] | None = None,
        stops: Stops | None = None,
    ):
        for seed in seeds:
            check_integer("seed", seed, 0, MAX_SAMPLING_SEED)
        self._loop, self._state = generator.begin(prompts, sampling)
        self._mem_len = generator.cached.span.mem_len
        self._n_token = generator.cached.model.config.n_token
        self._sampling = sampling.make_tensors(self._n_token)
        self._prompts = prompts
        self._vocabularies = vocabularies or [None] * len(prompts)
        self._stops = stops
        self._finders = [StopFinder(stops, int(prompt[-1])) for prompt in prompts] if stops else []
        self._seeds = seeds
        self._n_uniforms = [0] * len(prompts)  # random numbers that each text has used
        self._drawn = [np.zeros(0, np.int32) for _ in prompts]
        # For each ended text, its state before its last call and its tokens since then. Its row is
        # still computed with the batch, with tokens that do not belong to it.
        self._ended: dict[int, tuple[LoopState, np.ndarray]] = {}
        self._costs: list[float] = []  # seconds per token of the first 5 and the last 4 calls

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
        return self._state.is_done.numpy()

    @property
    def added(self) -> list[str | np.ndarray]:
        """The text added to each prompt so far, or the ids (n,) int32 if the prompt is ids.

        A text ends at a whole character: the tokens of an unfinished one are not shown yet.
        """
        rows = zip(self._prompts, self._drawn, self._vocabularies, strict=True)
        return [
            drawn if vocabulary is None else decode_added(vocabulary, prompt, drawn)
            for prompt, drawn, vocabulary in rows
        ]

    @property
    def ids(self) -> list[np.ndarray]:
        """The tokens of each prompt and those added to it, (n,) int32."""
        rows = zip(self._prompts, self._drawn, strict=True)
        return [np.concatenate(row) for row in rows]

    @property
    def n_in_memory(self) -> list[int]:
        """The number of tokens of each text that the memory holds: its last ones."""
        return [min(len(ids), self._mem_len) for ids in self.ids]

    @property
    def speeds(self) -> Speeds | None:
        """The speed of generation; `None` before the second call of up to 32 tokens."""
        costs = self._costs[1:]
        if not costs:
            return None
        return Speeds(*(1 / statistics.median(part) for part in (costs[:4], costs[-4:])))

    def draw(self, max_new_tokens: int, *, resume: bool = True) -> list[str | np.ndarray]:
        """Adds tokens to each text, up to its next stop.

        Args:
            max_new_tokens: Number of tokens to add to each text.
            resume: Whether texts that ended in an earlier call continue after their stop; otherwise
                they are left unchanged.

        Returns:
            The text or the ids that this call added to each text, as in `added`. A character of
            several tokens is returned by the call that completes it.

        Raises:
            UserError: If `max_new_tokens` is negative or not an integer.
        """
        before, n_before = self.added, [len(drawn) for drawn in self._drawn]
        for _ in self.draw_pieces(max_new_tokens, resume=resume):
            pass
        return [
            new[len(old) :] if isinstance(new, str) else new[n_old:]
            for old, new, n_old in zip(before, self.added, n_before, strict=True)
        ]

    def draw_pieces(self, max_new_tokens: int, *, resume: bool = True) -> Iterator[None]:
        """Draws like `draw`, up to 32 tokens per iteration: `added` grows with each of them."""
        check_integer("max_new_tokens", max_new_tokens, 0)
        if resume and max_new_tokens:
            self._resume()
        n_left = int(max_new_tokens)
        while n_left > 0 and not self.ended.all():
            count = min(n_left, _TOKENS_PER_CALL)
            began, before, had_ended = time.perf_counter(), self._state, self.ended
            rows = zip(self._seeds, self._n_uniforms, strict=True)
            uniforms = tf.stack([_draw_uniforms(*row) for row in rows], axis=1)
            tokens, self._state = self._loop.draw(
                before, uniforms, tf.constant(count), self._sampling
            )
            drawn = tokens.numpy()[:count].T  # with -1 after the end of a text
            for row in np.flatnonzero(~had_ended).tolist():
                self._add(row, drawn[row][drawn[row] >= 0], before)
            n_drawn = int((drawn >= 0).sum(axis=1).max())
            self._costs.append((time.perf_counter() - began) / n_drawn)
            del self._costs[5:-4]
            n_left -= count
            yield

    def read(self, text: str | np.ndarray) -> None:
        """Reads a text or ids (n,) at the end of each text; `added` includes it from then on.

        Raises:
            UserError: If the text or the ids cannot be encoded, or a prompt was given as ids and
                this is a text.
        """
        # All of them before any is read: a text that cannot be encoded changes nothing.
        if isinstance(text, str | bytes) and None in self._vocabularies:
            raise UserError("a prompt was given as ids: pass ids, not text")
        encoded = [TextEncoder(v, self._n_token).encode(text) for v in self._vocabularies]
        self._resume()
        rows = []
        for row, ids in enumerate(encoded):
            rows.append(self._replay(self._state.take_row(row), ids))
            self._drawn[row] = np.concatenate([self._drawn[row], ids])
            if self._stops:
                self._finders[row] = StopFinder(self._stops, int(self.ids[row][-1]))
        self._state = join_rows(rows)

    def stream(self, max_new_tokens: int) -> Iterator[str]:
        """Draws like `draw` for a single text, and yields the added text while it is generated.

        No text after a stop is ever yielded, and no part of a character.
        """
        n_shown = len(self.added[0])
        for _ in self.draw_pieces(max_new_tokens):
            text = str(self.added[0])
            yield text[n_shown:]
            n_shown = len(text)

    def _add(self, row: int, new: np.ndarray, before: LoopState) -> None:
        """Adds the tokens (k,) int32 of a call to a text, up to a stop, which ends the text."""
        end = self._finders[row].find_end(new) if self._finders else None
        self._n_uniforms[row] += len(new)
        if end is not None:
            self._n_uniforms[row] += end.n_kept + (len(end.rest) > 0) - len(new)
            new = np.concatenate([new[: end.n_kept], end.rest])
        self._drawn[row] = np.concatenate([self._drawn[row], new])
        if end is not None or self.ended[row]:
            self._ended[row] = (before.take_row(row), new)
            is_row = tf.range(len(self._prompts)) == row
            self._state = self._state._replace(is_done=self._state.is_done | is_row)

    def _resume(self) -> None:
        """Lets texts that have ended continue after their end."""
        if not self._ended:
            return
        rows = [self._state.take_row(row) for row in range(len(self._prompts))]
        for row, (state, ids) in self._ended.items():
            rows[row] = self._replay(state, ids)
        self._state = join_rows(rows)
        self._ended = {}

    def _replay(self, state: LoopState, ids: np.ndarray) -> LoopState:
        """Returns the state of one row after further tokens, (n,) int32, which end no text."""
        for start in range(0, len(ids), _TOKENS_PER_CALL):
            part = ids[start : start + _TOKENS_PER_CALL]
            padded = np.pad(part, (0, _TOKENS_PER_CALL - len(part)))[:, None]
            count = tf.constant(len(part))
            state = self._loop.replay(state, tf.constant(padded), count, self._sampling)
        return state._replace(is_done=tf.constant([False]))


def decode_added(vocabulary: Vocabulary, before: np.ndarray, ids: np.ndarray) -> str:
    """Returns the text that new ids (n,) add to those before them, (m,).

    It ends at a whole character, and more ids only add to it.
    """
    # Decoded together: the space between two words, and a character of several tokens.
    context = before[-_N_CONTEXT:]
    known, whole = (
        _decode_whole(vocabulary, part) for part in (context, np.concatenate([context, ids]))
    )
    return whole[len(known) :]


def _decode_whole(vocabulary: Vocabulary, ids: np.ndarray) -> str:
    """Returns the text of ids without the bytes of an unfinished character at its end."""
    if vocabulary.level in ("char", "word"):
        return vocabulary.decode(ids)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    return decoder.decode(vocabulary.decode_bytes(ids))


def _draw_uniforms(seed: int, first: int) -> tf.Tensor:
    """Returns the random numbers of a text's tokens from index `first` on, (32,) float32."""
    block, offset = divmod(first, UNIFORMS_PER_BLOCK)
    uniforms = draw_uniforms(seed, block)
    if offset:  # the last call drew less than a block
        following = draw_uniforms(seed, block + 1)
        uniforms = tf.concat([uniforms[offset:], following[:offset]], axis=0)
    return uniforms
