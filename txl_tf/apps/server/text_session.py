"""A text that a client continues, token by token, with the signature `step` of a SavedModel."""

import codecs
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.apps.server.served_folder import MEMORY_NAMES, ServedFolder, call_graph
from txl_tf.config import MAX_SAMPLING_SEED
from txl_tf.data.text.tokenizer import TextPieces
from txl_tf.errors import UserError
from txl_tf.generation.sampling import (
    UNIFORMS_PER_BLOCK,
    SamplingConfig,
    SamplingTensors,
    choose_tokens,
    draw_uniforms,
    penalize,
)


class DrawnToken(NamedTuple):
    """A token, and the text that it adds: empty within a character that further tokens complete."""

    id: int
    text: str


class Position(NamedTuple):
    """Where a text stands; all of it is replaced at once, so that an error leaves the text as is.

    Args:
        memory: The tensors that `step` takes and returns.
        log_probs: (1, V) float32, of the next token; `None` before the first one.
        last: The last id; `None` before the first one.
        n_read: The number of tokens of the text.
    """

    memory: dict[str, tf.Tensor]
    log_probs: tf.Tensor | None
    last: int | None
    n_read: int


class SessionEngine:
    """Reads and draws the tokens of all sessions of a model.

    Args:
        folder: The model, which must have sessions.

    Attributes:
        vocabulary: The vocabulary.
        pieces: The text of each id.
        segment_len: The largest number T of tokens to read at once.
        session_bytes: The size of what a session keeps.
    """

    def __init__(self, folder: ServedFolder):
        assert folder.vocabulary is not None
        assert folder.segment_len is not None
        self.vocabulary = folder.vocabulary
        self.pieces = TextPieces(self.vocabulary)
        self._step = folder.functions["step"]
        self._empty = folder.call("initial_memory", {"batch_size": np.array(1, np.int32)})
        self._choose = tf.function(_choose, autograph=False)
        self.segment_len = folder.segment_len
        # Beside the memory: log_probs, float32, and whether the text has each token.
        self.session_bytes = folder.memory_bytes + 5 * self.n_token

    @property
    def n_token(self) -> int:
        """The size V of the vocabulary."""
        return len(self.vocabulary)

    @property
    def banned(self) -> tuple[int, ...]:
        """The ids that are never drawn."""
        unknown = self.vocabulary.unknown_id
        return () if unknown is None else (unknown,)

    def begin(self) -> Position:
        """Returns the position before the first token."""
        memory = {name: tf.constant(self._empty[name]) for name in MEMORY_NAMES}
        return Position(memory, None, None, 0)

    def read(self, position: Position, ids: np.ndarray) -> Position:
        """Returns the position after a segment, (T,) int32, of at least one token."""
        tensors = {
            "ids": tf.constant(ids[None]),
            "lengths": tf.constant([len(ids)]),
            "reset": tf.constant([False]),
            **position.memory,
        }
        found = call_graph(self._step, tensors)
        memory = {name: found[name] for name in MEMORY_NAMES}
        return Position(memory, found["log_probs"], int(ids[-1]), position.n_read + len(ids))

    def choose(
        self,
        log_probs: tf.Tensor,
        seen: np.ndarray,
        uniform: float,
        sampling: SamplingTensors,
        n_candidates: int | None,
    ) -> int:
        """Returns the next token.

        Args:
            log_probs: (1, V) float32.
            seen: (V,) bool, whether the text contains each token.
            uniform: A random number in [0, 1).
            sampling: The sampling settings.
            n_candidates: Draw from this many of the most likely tokens; `None` for all.
        """
        candidates: int | tf.Tensor | None = n_candidates
        if n_candidates is not None and n_candidates < self.n_token:
            candidates = tf.constant(n_candidates)  # as a Python number, each would be traced
        uniforms = tf.constant([uniform], tf.float32)
        seen_row = tf.constant(seen[None])
        return int(self._choose(log_probs, seen_row, uniforms, sampling, candidates)[0])


class TextSession:
    """A text with its memory, of constant size. One thread at a time may use it.

    The random number of a token depends only on the seed and on how many tokens were drawn before,
    so the text does not depend on the requests that it is drawn in.

    Args:
        engine: What computes.
        seed: The seed of the text.

    Raises:
        UserError: If the seed is out of range.
    """

    def __init__(self, engine: SessionEngine, seed: int = 0):
        if not 0 <= seed <= MAX_SAMPLING_SEED:
            raise UserError(
                f"`seed` must be from 0 to {MAX_SAMPLING_SEED:,}. Received: seed={seed}"
            )
        self.engine = engine
        self._seed = seed
        self._position = engine.begin()
        self._seen = np.zeros(engine.n_token, bool)
        self._uniforms = np.zeros(0, np.float32)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._unshown = ""  # U+FFFD for a character that was not completed
        self.n_drawn = 0

    @property
    def n_read(self) -> int:
        """The number of tokens of the text, given and drawn."""
        return self._position.n_read

    def read(self, text: bytes) -> Iterator[None]:
        """Adds a text, a segment per iteration; only an exhausted iterator has added it.

        Args:
            text: The text, which is encoded by itself; UTF-8 unless the level is "byte".

        Raises:
            UserError: If the vocabulary cannot encode the text.
        """
        try:
            ids = self.engine.vocabulary.encode(text)
        except UnicodeError as error:
            raise UserError(f"`text` must be a text in Unicode: {error}") from error
        position, segment_len = self._position, self.engine.segment_len
        for start in range(0, len(ids), segment_len):
            position = self.engine.read(position, ids[start : start + segment_len])
            yield
        if len(ids):  # the bytes that complete a character will not come
            self._unshown += self._decoder.decode(b"", final=True)
            self._decoder.reset()
        self._position = position
        self._seen[ids] = True

    def check_begun(self) -> None:
        """Checks that the text holds a token, after which another one can be drawn.

        Raises:
            UserError: If it is empty.
        """
        if not self.n_read:
            raise UserError("`text` must hold at least one token. Received: an empty text")

    def draw(self, config: SamplingConfig, sampling: SamplingTensors) -> DrawnToken:
        """Draws a token and reads it.

        Args:
            config: The sampling settings.
            sampling: The same as tensors.
        """
        block, index = divmod(self.n_drawn, UNIFORMS_PER_BLOCK)
        if not index:
            self._uniforms = draw_uniforms(self._seed, block).numpy()
        before = self._position.last
        assert before is not None
        token = self.engine.choose(
            self._position.log_probs,
            self._seen,
            self._uniforms[index],
            sampling,
            config.count_candidates(self.engine.n_token),
        )
        self._position = self.engine.read(self._position, np.array([token], np.int32))
        self._seen[token] = True
        self.n_drawn += 1
        added = self.engine.pieces.get(token, before=before)
        text, self._unshown = self._unshown + self._decoder.decode(added), ""
        return DrawnToken(token, text)


def _choose(
    log_probs: tf.Tensor,
    seen: tf.Tensor,
    uniforms: tf.Tensor,
    sampling: SamplingTensors,
    n_candidates: int | tf.Tensor | None,
) -> tf.Tensor:
    """Returns the next token, (1,) int32."""
    return choose_tokens(penalize(log_probs, seen, sampling), uniforms, sampling, n_candidates)
