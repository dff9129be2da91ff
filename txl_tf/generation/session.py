"""A generation session: texts that can be continued any number of times."""

import codecs
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.config import MAX_SAMPLING_SEED
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError, check_integer
from txl_tf.generation.generator import TOKENS_PER_CALL, Generator
from txl_tf.generation.sampling import (
    UNIFORMS_PER_BLOCK,
    Sampler,
    SamplingOptions,
    StandardSampler,
    draw_uniforms,
)
from txl_tf.generation.stops import StopFinder
from txl_tf.generation.text_encoder import TextEncoder, check_list
from txl_tf.generation.token_loop import LoopState
from txl_tf.models.cached_model import CachedState

_N_CONTEXT = 16  # earlier ids that are decoded together with the new ones


class Speeds(NamedTuple):
    """Tokens per second at two places in a text: medians over four calls of up to 32 tokens.

    Args:
        first: Speed at the beginning of the text, without the very first call, which may compile
            the loop.
        last: Speed in the last calls.
    """

    first: float
    last: float


class Session:
    """A batch of texts that can be continued any number of times; see `LanguageModel.start`.

    Args:
        generator: The generator.
        vocabulary: The vocabulary; `None` if only ids can be used.
        prompts: Texts of at least one token, or their ids.
        seed: See `SamplingOptions`, also for the following arguments.
        sampler: The rule for drawing tokens; `None` for a `StandardSampler`.
        banned: Symbols and texts of one token that are never drawn.
        stops: Symbols and texts that end a text.
        **settings: The arguments of `StandardSampler`.

    Raises:
        UserError: If a prompt is empty or cannot be encoded, or an option is invalid.
    """

    def __init__(
        self,
        generator: Generator,
        vocabulary: Vocabulary | None,
        prompts: str | bytes | Sequence[str | bytes | np.ndarray],
        *,
        seed: int | Sequence[int] = 0,
        sampler: Sampler | None = None,
        banned: str | Iterable[str] | None = None,
        stops: str | Iterable[str] = (),
        **settings: Any,
    ):
        # 1) The prompts.
        if not isinstance(prompts, str | bytes):
            check_list("prompts", prompts)
        prompts = [prompts] if isinstance(prompts, str | bytes) else list(prompts)
        self._n_token = n_token = generator.cached.model.config.n_token
        encoder = TextEncoder(vocabulary, n_token)
        self._prompts = [encoder.encode(prompt) for prompt in prompts]
        if not prompts:
            raise UserError("`prompts` must hold at least one prompt. Received: none")
        if not all(map(len, self._prompts)):
            raise UserError("`prompt` must hold at least one token. Received: an empty text")
        self._vocabularies = [vocabulary if isinstance(p, str | bytes) else None for p in prompts]
        self._drawn = [np.zeros(0, np.int32) for _ in prompts]
        # 2) What is drawn, and where it ends.
        self._seeds = list(seed) if isinstance(seed, Iterable) else [seed] * len(prompts)
        if len(self._seeds) != len(prompts):
            received = len(self._seeds)
            raise UserError(f"`seed` must be one seed, or {len(prompts)}. Received: {received}")
        for each in self._seeds:
            check_integer("seed", each, 0, MAX_SAMPLING_SEED)
        self._n_uniforms = [0] * len(prompts)  # random numbers that each text has used
        if unknown := settings.keys() - SamplingOptions.__optional_keys__:
            rule = ", ".join(SamplingOptions.__annotations__)
            raise UserError(f"options must be among {rule}. Received: {unknown.pop()}")
        if sampler is None:
            sampler = StandardSampler(**settings)
        elif not isinstance(sampler, Sampler):
            raise UserError(f"`sampler` must be a Sampler. Received: {sampler!r}")
        elif settings:
            raise UserError(f"`{next(iter(settings))}` has no effect with `sampler`")
        is_allowed, is_stop = np.ones(n_token, bool), np.zeros(n_token, bool)
        is_allowed[encoder.find_banned(banned)] = False
        if not is_allowed.any():
            raise UserError(f"`banned` must leave at least one token. Received: all {n_token}")
        self._stops = encoder.make_stops(stops)
        if self._stops:
            is_stop[list(self._stops.ids)] = True
        self._draw = generator.compile_draw(sampler, is_allowed, is_stop)
        self._costs: list[float] = []  # seconds per token of the first 5 and the last 4 calls
        # 3) What has been read.
        self._generator = generator
        self._n_read = [0] * len(prompts)  # ids of each text that are read in segments
        self._state_read: CachedState | None = None  # after these
        self._state: LoopState  # after all
        self._read_added()
        self._finders = self._make_finders()

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

        A text ends with a complete character: the tokens of an incomplete one are not shown yet.
        """
        rows = zip(self._prompts, self._drawn, self._vocabularies, strict=True)
        return [
            drawn if vocabulary is None else decode_added(vocabulary, prompt, drawn)
            for prompt, drawn, vocabulary in rows
        ]

    @property
    def ids(self) -> list[np.ndarray]:
        """The tokens of each prompt followed by those added to it, (n,) int32."""
        rows = zip(self._prompts, self._drawn, strict=True)
        return [np.concatenate(row) for row in rows]

    @property
    def n_in_memory(self) -> list[int]:
        """The number of tokens of each text that the memory holds: its last ones."""
        mem_len = self._generator.cached.span.mem_len
        return [min(len(ids), mem_len) for ids in self.ids]

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
            The text or the ids that this call added to each text, as in `added`. A character that
            takes several tokens is returned by the call that completes it.

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
        """Draws like `draw`, up to 32 tokens per iteration; `added` grows with each iteration."""
        check_integer("max_new_tokens", max_new_tokens, 0)
        if resume and max_new_tokens and self.ended.any():
            self._read_added()
        n_left = int(max_new_tokens)
        while n_left > 0 and not self.ended.all():
            count = min(n_left, TOKENS_PER_CALL)
            began, had_ended = time.perf_counter(), self.ended
            rows = zip(self._seeds, self._n_uniforms, strict=True)
            uniforms = tf.stack([_draw_uniforms(*row) for row in rows], axis=1)
            tokens, self._state = self._draw(self._state, uniforms, tf.constant(count))
            drawn = tokens.numpy()[:count].T  # with -1 after the end of a text
            has_ended = self.ended
            for row in np.flatnonzero(~had_ended).tolist():
                has_ended[row] |= self._add(row, drawn[row][drawn[row] >= 0])
            # Until `_read_added` reads its text, an ended row is still computed with the batch.
            self._state = self._state._replace(is_done=tf.constant(has_ended))
            n_drawn = int((drawn >= 0).sum(axis=1).max())
            self._costs.append((time.perf_counter() - began) / n_drawn)
            del self._costs[5:-4]
            n_left -= count
            yield

    def read(self, text: str | np.ndarray) -> None:
        """Appends a text or ids (n,) to each text and reads it; `added` includes it from then on.

        Raises:
            UserError: If the text cannot be encoded or the ids are invalid, or if a text is given
                but a prompt was given as ids.
        """
        # Encode all before reading any: a text that cannot be encoded must change nothing.
        if isinstance(text, str | bytes) and None in self._vocabularies:
            raise UserError("a prompt was given as ids: pass ids, not text")
        encoded = [TextEncoder(v, self._n_token).encode(text) for v in self._vocabularies]
        before = self._drawn
        self._drawn = [np.concatenate(pair) for pair in zip(before, encoded, strict=True)]
        try:
            self._read_added()
        except Exception:  # such as full memory
            self._drawn = before
            raise
        self._finders = self._make_finders()

    def stream(self, max_new_tokens: int) -> Iterator[str]:
        """Draws like `draw` for a single text, and yields the added text while it is generated.

        Text after a stop and parts of characters are never yielded.

        Raises:
            UserError: If there are several texts, or the prompt was given as ids.
        """
        if len(self._vocabularies) != 1 or self._vocabularies[0] is None:
            raise UserError(
                "`stream` needs one prompt, given as text: use `draw` for others. "
                f"Received: {len(self._vocabularies)} prompts"
            )
        n_shown = len(self.added[0])
        for _ in self.draw_pieces(max_new_tokens):
            text = str(self.added[0])
            yield text[n_shown:]
            n_shown = len(text)

    def _add(self, row: int, new: np.ndarray) -> bool:
        """Adds the tokens (k,) int32 of a call to a text, up to a stop; returns whether it ends."""
        end = self._finders[row].find_end(new) if self._finders else None
        n_used = len(new)
        if end is not None:
            n_used = end.n_kept + (len(end.rest) > 0)
            new = np.concatenate([new[: end.n_kept], end.rest])
        self._n_uniforms[row] += n_used
        self._drawn[row] = np.concatenate([self._drawn[row], new])
        return end is not None

    def _read_added(self) -> None:
        """Reads the tokens added since the last time, after which all texts can continue.

        For texts that ended, the loop read on and overwrote part of its memory, so the state of the
        loop cannot be used.
        """
        texts, n_token = self.ids, self._n_token
        added = [ids[n:] for ids, n in zip(texts, self._n_read, strict=True)]
        self._state_read = self._generator.read(added, self._state_read)
        self._n_read = [len(ids) for ids in texts]
        seen = np.array([np.bincount(ids, minlength=n_token) > 0 for ids in texts])
        self._state = self._generator.loop.begin(self._state_read, tf.constant(seen))

    def _make_finders(self) -> list[StopFinder]:
        stops = self._stops
        return [StopFinder(stops, int(ids[-1])) for ids in self.ids] if stops else []


def decode_added(vocabulary: Vocabulary, before: np.ndarray, ids: np.ndarray) -> str:
    """Returns the text that new ids (n,) add to earlier ones, (m,).

    It ends with a complete character, and more ids only add to it.
    """
    # Decoded together, because of the space between words, and characters of several tokens.
    context = before[-_N_CONTEXT:]
    known, whole = (
        _decode_whole(vocabulary, part) for part in (context, np.concatenate([context, ids]))
    )
    return whole[len(known) :]


def _decode_whole(vocabulary: Vocabulary, ids: np.ndarray) -> str:
    """Returns the text of ids without the bytes of an incomplete character at its end."""
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
