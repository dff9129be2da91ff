"""Generation of ids: prompts are read in segments, and one compiled loop draws the tokens."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import tensorflow as tf

from txl_tf.generation.sampling import UNIFORMS_PER_BLOCK, Sampler
from txl_tf.generation.token_loop import LoopState, TokenLoop, take_positions
from txl_tf.models.cached_model import CachedModel, CachedState
from txl_tf.models.compilation import Recent, explain_full_memory

TOKENS_PER_CALL = UNIFORMS_PER_BLOCK  # does not affect which tokens are drawn
_ADVICE = "to generate: try fewer texts at once, or a smaller mem_len"
_MOST_LOOPS = 64  # compiled loops that are kept; the server allows as many programs
# Draws up to C tokens of B texts, given random numbers (C, B) and a count; see `TokenLoop.run`.
Draw = Callable[[LoopState, tf.Tensor, tf.Tensor], tuple[tf.Tensor, LoopState]]


class Generator:
    """Continues texts at a constant cost per token, whatever their length.

    Args:
        cached: The model. It reads prompts in segments of its `tgt_len`.
        jit_compile: Whether to compile with XLA.

    Attributes:
        loop: The loop that draws tokens.

    Raises:
        UserError: If the model's position encoding does not support a memory.
    """

    def __init__(self, cached: CachedModel, *, jit_compile: bool = True):
        cached.model.config.check_memory("generation")
        self.cached = cached
        self._compile = functools.partial(tf.function, jit_compile=jit_compile, autograph=False)
        # As variables: constants would become part of the compiled loops.
        self._positions = [tf.Variable(p, trainable=False) for p in take_positions(cached)]
        self.loop = TokenLoop(cached, self._positions, is_compiled=jit_compile)
        self._loops: Recent[Hashable, tf.function] = Recent(_MOST_LOOPS)
        self._prompt_reader, self._added_reader = cached, _make_added_reader(cached)
        self._read_prompt = self._compile_read(self._prompt_reader)
        self._read_added = self._compile_read(self._added_reader)

    def follow_weights(self) -> None:
        """Recomputes the cached products if the weights have changed."""
        if not self.cached.follow_weights():
            return
        for variable, products in zip(self._positions, take_positions(self.cached), strict=True):
            variable.assign(products)

    def compile_draw(self, sampler: Sampler, is_allowed: np.ndarray, is_stop: np.ndarray) -> Draw:
        """Returns the function that draws and reads tokens; it is compiled on its first call.

        Args:
            sampler: The rule for drawing tokens.
            is_allowed: (V,) bool, whether each token may be drawn.
            is_stop: (V,) bool, whether each token ends a text.
        """
        # Without bins, samplers share one compiled loop whether or not they draw by bins.
        by_bins = bool(self.cached.model.config.cutoffs) and sampler.draws_by_bins
        run = functools.partial(self.loop.run, sampler=sampler, by_bins=by_bins)
        draw = self._loops.get_or_make((sampler.constants, by_bins), lambda: self._compile(run))
        draw_tokens = functools.partial(
            draw,
            tensors=sampler.tensors,
            is_allowed=tf.constant(is_allowed),
            is_stop=tf.constant(is_stop),
        )
        return explain_full_memory(_ADVICE)(draw_tokens)

    @explain_full_memory(_ADVICE)
    def read(self, texts: Sequence[np.ndarray], state: CachedState | None = None) -> CachedState:
        """Reads texts, (n,) int32 each, in segments, and returns the state after them.

        Without `state`, the texts are prompts. With the state after earlier texts, they continue
        those, and each token sees exactly what it would see if it were drawn.
        """
        if state is None:
            reader, read_segment = self._prompt_reader, self._read_prompt
            state = reader.initial_state(len(texts))
        else:
            reader, read_segment = self._added_reader, self._read_added
        lengths, width = np.array([len(text) for text in texts]), reader.tgt_len
        for start in range(0, lengths.max(), width):
            ids = np.zeros((len(texts), width), np.int32)
            for row, text in enumerate(texts):
                segment = text[start : start + width]
                ids[row, : len(segment)] = segment
            counts = np.clip(lengths - start, 0, width).astype(np.int32)
            state = read_segment(tf.constant(ids), state, tf.constant(counts))
        return state

    def _compile_read(self, reader: CachedModel) -> tf.function:
        return self._compile(lambda ids, state, counts: reader.read(ids, state, counts)[1])


def _make_added_reader(cached: CachedModel) -> CachedModel:
    """Returns the reader of tokens after a prompt, each of which sees the M tokens before it.

    Without `same_length`, the tokens of a prompt also see all earlier ones in their segment.
    """
    reader, span = copy.copy(cached), cached.span
    if span.mem_len:
        counts_self = span.same_length and span.counts_self
        reader.span = dataclasses.replace(span, same_length=True, counts_self=counts_self)
        reader.tgt_len = min(cached.tgt_len, TOKENS_PER_CALL)  # mostly a few are new
    else:
        reader.tgt_len = 1
    return reader
