"""Sessions as state machines: whatever is called in whatever order, each text is its own."""

import functools

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from small_language_model import make_model

from txl_tf.data import Vocabulary
from txl_tf.generation.generator import Generator
from txl_tf.generation.session import Session
from txl_tf.models.cached_model import make_cached

pytestmark = pytest.mark.slow

# The bytes of "a" and "é", so few that stops and whole characters are often drawn.
BYTES = Vocabulary("byte", tuple(map(str, "aé".encode())))
PIECE = 32  # tokens that one call of the loop draws
STOPS = ("é", "aéa", "aaaa")
TEXTS = st.sampled_from(["a", "é", "aaaa", "éa" * 9, "aaé" * 11])
LENGTHS = st.integers(0, 5) | st.sampled_from([31, 32, 33, 70])


@functools.cache
def make_generator():
    """Returns what XLA does not compile, because that takes longer than the loops themselves."""
    lm = make_model(len(BYTES), tgt_len=61, same_length=True)
    cached = make_cached(lm.model, lm.evaluation, mask_empty_memory=True)
    return Generator(cached, jit_compile=False)


def start(prompts, seeds, stops=()):
    """Starts a session like `LanguageModel.start`."""
    settings = {"temperature": 9.0, "top_k": None, "stops": stops}
    return Session(make_generator(), BYTES, prompts, seed=seeds, **settings)


class Text:
    """A text alone, drawn anew from all of its tokens each time, and cut by hand at its stops."""

    def __init__(self, prompt, seed, stops):
        self.prompt, self.seed, self.stops = BYTES.encode(prompt), seed, stops
        self.drawn = np.zeros(0, np.int32)
        self.n_uniforms, self.ended, self.searched = 0, False, b""

    def draw(self, n):
        if self.ended or not n:
            return
        ids = np.concatenate([self.prompt, self.drawn])
        alone = start([ids], [self.seed])
        vars(alone)["_n_uniforms"][0] = self.n_uniforms
        alone.draw(n)
        new = alone.ids[0][len(ids) :]
        text = self.searched + BYTES.decode_bytes(new)
        ends = [text.find(stop.encode()) + len(stop.encode()) for stop in self.stops]
        found = [end for end, stop in zip(ends, self.stops, strict=True) if stop.encode() in text]
        self.ended = bool(found)
        new = new[: min(found) - len(self.searched)] if found else new
        self.searched = b"" if found else text
        self.n_uniforms += len(new)
        self.drawn = np.concatenate([self.drawn, new])

    def read(self, text):
        self.ended, self.searched = False, b""
        self.drawn = np.concatenate([self.drawn, BYTES.encode(text)])


class Sessions(RuleBasedStateMachine):
    @initialize(
        prompts=st.lists(TEXTS, min_size=1, max_size=2),
        seed=st.integers(0, 9),
        stops=st.lists(st.sampled_from(STOPS), max_size=2, unique=True),
    )
    def start(self, prompts, seed, stops):
        seeds = list(range(seed, seed + len(prompts)))
        self.texts = [Text(*pair, stops) for pair in zip(prompts, seeds, strict=True)]
        self.session = start(prompts, seeds, stops)
        self.opened, self.n_left = None, 0

    def draw_alone(self, n, resume):
        for text in self.texts:
            text.ended &= not (resume and n)
            text.draw(n)

    @rule(n=LENGTHS, resume=st.booleans())
    def draw(self, n, resume):
        before = self.session.added
        new = self.session.draw(n, resume=resume)
        self.draw_alone(n, resume)
        assert [old + more for old, more in zip(before, new, strict=True)] == self.session.added

    @rule(text=TEXTS)
    def read(self, text):
        self.session.read(text)
        for each in self.texts:
            each.read(text)

    @rule(n=st.sampled_from([33, 70]))
    def open_pieces(self, n):
        self.opened, self.n_left = self.session.draw_pieces(n), n
        next(self.opened)
        self.draw_alone(min(n, PIECE), True)
        self.n_left -= PIECE

    @precondition(lambda self: self.opened is not None)
    @rule()
    def take_piece(self):
        has_ended = self.session.ended.all()
        assert (next(self.opened, "end") == "end") == (has_ended or self.n_left <= 0)
        if not has_ended and self.n_left > 0:
            self.draw_alone(min(self.n_left, PIECE), False)
            self.n_left -= PIECE
        else:
            self.opened = None

    @precondition(lambda self: len(self.texts) == 1)
    @rule(n=LENGTHS)
    def stream(self, n):
        before = self.session.added[0]
        assert before + "".join(self.session.stream(n)) == self.session.added[0]
        self.draw_alone(n, True)

    def check(self):
        for row, text in enumerate(self.texts):
            np.testing.assert_array_equal(
                self.session.ids[row], np.concatenate([text.prompt, text.drawn])
            )
            assert self.session.ended[row] == text.ended
            whole = BYTES.decode(self.session.ids[row])
            shown = BYTES.decode(text.prompt) + self.session.added[row]
            assert whole in (shown, shown + "\ufffd")  # of an unfinished character


# The texts are compared only at the end: each step builds on the steps before it.
Sessions.teardown = lambda self: self.check() if hasattr(self, "texts") else None
TestSessions = Sessions.TestCase
TestSessions.settings = settings(
    max_examples=12,
    stateful_step_count=9,
    phases=[Phase.generate],
    derandomize=True,
    deadline=None,
    database=None,
)
