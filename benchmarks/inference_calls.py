"""Calls of inference whose speed benchmarks measure."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.works import Shape, draw_ids
from txl_tf.config import AttentionSpan

PROMPT_LEN = 64  # read at a time, before tokens are drawn
N_TEXTS, TEXT_LEN = 64, 50  # short texts, and the tokens of each
Call = Callable[[], object]


class Speed(NamedTuple):
    """Tokens per second over the repetitions of a call.

    Args:
        median: The median.
        slowest: The smallest.
        fastest: The largest.
    """

    median: float
    slowest: float
    fastest: float

    @classmethod
    def from_durations(cls, durations: list[float], n_tokens: int) -> "Speed":
        """Returns the speed of calls that took these durations in seconds, for `n_tokens` each."""
        speeds = [n_tokens / seconds for seconds in durations]
        return cls(statistics.median(speeds), min(speeds), max(speeds))


def make_model(shape: Shape, precision: str = "float32") -> Any:
    """Returns a model with random weights, whose kernels have one of `KERNEL_DTYPES`."""
    from txl_tf.models.quantization import quantize
    from txl_tf.models.transformer_xl import TransformerXL

    config, _ = shape.make_configs(dropout=0.0)
    model = TransformerXL(config, seed=0)
    return model if precision == "float32" else quantize(model, precision)


def make_cached_reader(model: Any, shape: Shape, *, jit: str) -> Call:
    """Returns a call that reads and scores a segment, with a KV cache."""
    from txl_tf.models.cached_model import CachedModel

    span = AttentionSpan(shape.mem_len, same_length=True)
    cached = CachedModel(model, span, shape.tgt_len)
    ids = draw_segment(shape)

    def read(state: Any) -> Any:
        return cached.score(ids, ids, state)

    return _make_call(
        read, cached.initial_state(shape.batch_size), jit=jit, dtype=model.compute_dtype
    )


def make_window_reader(model: Any, window: int, *, jit: str) -> Call:
    """Returns a call that predicts one token by reading a whole window, without any memory.

    That is how a model without memory is evaluated where each token is to see as much as the
    window has (Al-Rfou et al. 2018, https://arxiv.org/abs/1808.04444).
    """
    import tensorflow as tf

    ids = tf.zeros((1, window), tf.int32)

    def read(memory: Any) -> Any:
        hidden, _ = model(ids, memory, span=AttentionSpan(0))
        return model.nll(hidden[:, -1:], ids[:, -1:]), memory

    return _make_call(read, model.initial_memory(1, 0), jit=jit, dtype=model.compute_dtype)


def draw_segment(shape: Shape) -> Any:
    """Returns ids (B, T) int32."""
    import tensorflow as tf

    places = (shape.batch_size, shape.tgt_len)
    return tf.constant(draw_ids(shape.n_token, "uniform", places))


def make_text_scorer(
    model: Any, shape: Shape, *, jit: str, n_texts: int = N_TEXTS, text_len: int = TEXT_LEN
) -> Call:
    """Returns a call that scores texts of `text_len` tokens by `LanguageModel.score`."""
    from txl_tf.config import EvalConfig
    from txl_tf.language_model import LanguageModel

    evaluation = EvalConfig(tgt_len=shape.tgt_len, mem_len=shape.mem_len, same_length=True)
    lm = LanguageModel(model, None, evaluation)
    texts = list(draw_ids(shape.n_token, "zipf", (n_texts, text_len)))
    return lambda: lm.score(texts, batch_size=shape.batch_size, jit=jit)


def _make_call(read: Callable[[Any], Any], memory: Any, *, jit: str, dtype: str) -> Call:
    """Returns a call of a compiled function, which gets the memory that it returned before."""
    from txl_tf.models.compilation import compile_function

    compiled = compile_function(read, jit, dtype)

    def call() -> object:
        nonlocal memory
        nats, memory = compiled(memory)
        return nats.numpy()

    return call


class TokenDrawer:
    """Continues texts, one token at a time, by the loop that `LanguageModel.generate` runs.

    Args:
        model: The model.
        mem_len: Memory length.
        jit: Whether XLA compiles the loop.
        n_texts: Number of texts that are continued together.
    """

    def __init__(self, model: Any, mem_len: int, *, jit: bool, n_texts: int = 1):
        from txl_tf.generation.generator import Generator
        from txl_tf.models.cached_model import CachedModel

        cached = CachedModel(model, AttentionSpan(mem_len, same_length=True), PROMPT_LEN)
        self._n_texts = n_texts
        self._generator = Generator(cached, jit_compile=jit)
        self.measure(1, 1)  # compiles it

    def measure(self, prompt_len: int, n_new: int) -> list[tuple[int, float]]:
        """Returns for each call of the loop how many tokens of each text it drew, and its seconds.

        Args:
            prompt_len: Tokens before the first one that is drawn; reading them is not counted.
            n_new: Number of tokens to draw.
        """
        from txl_tf.generation.sampling import SamplingConfig
        from txl_tf.generation.session import Session

        prompts = [np.zeros(prompt_len, np.int32)] * self._n_texts
        session = Session(self._generator, prompts, SamplingConfig(), range(self._n_texts))
        calls, n_before, start = [], 0, time.perf_counter()
        for _ in session.draw_pieces(n_new):
            n_drawn = len(session.added[0])
            calls.append((n_drawn - n_before, time.perf_counter() - start))
            n_before, start = n_drawn, time.perf_counter()
        return calls

    def measure_speed(self, seconds: float) -> Speed:
        """Returns the speed of drawing the tokens of a text, over calls of the loop."""
        count, took = self.measure(1, 64)[-1]
        n_calls = max(5, round(seconds / took))
        durations = [took for _, took in self.measure(1, n_calls * count)]
        return Speed.from_durations(durations, count)
