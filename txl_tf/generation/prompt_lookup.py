"""Speculative decoding by prompt lookup: several tokens for one pass over the weights.

Texts repeat themselves. Where the last tokens of a text occurred before, the tokens that followed
them are a good guess of what comes next (Saxena 2023,
https://github.com/apoorvumang/prompt-lookup-decoding). One pass reads the whole guess, and keeps
it up to the first token that differs from the one drawn. As each token is drawn with the random
number of its index, the text is the one of `TokenLoop`, up to rounding, with any sampling settings.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from txl_tf.generation.loop_state import LoopState
from txl_tf.generation.sampling import SamplingTensors
from txl_tf.generation.token_loop import TokenLoop

_MAX_CHARACTERS = 256  # larger vocabularies hold words or subwords
_MIN_HISTORY = 256
_UNLIMITED = 2**30


class _Progress(NamedTuple):
    """What a pass hands on to the next one.

    Args:
        step: () int32, the number of tokens read since the call began.
        tokens: (C + S, B) int32, these tokens, followed by -1.
        state: The state after them.
        drawn: (B,) int32, the next token, which has not been read yet.
        draft: (B, S - 1) int32, the tokens guessed to follow it.
        has_draft: () bool, whether there is a guess for each text that has not ended.
    """

    step: tf.Tensor
    tokens: tf.Tensor
    state: LoopState
    drawn: tf.Tensor
    draft: tf.Tensor
    has_draft: tf.Tensor


class _Call(NamedTuple):
    """The arguments of a call that do not change; see `TokenLoop.run`.

    Args:
        positions: The value of `take_positions`.
        uniforms: (C + S, B) float32 in [0, 1).
        n_new: () int32, the number of tokens to draw.
        sampling: The sampling settings.
        choose: The value of `TokenLoop.make_choice`.
    """

    positions: Sequence[tf.Tensor]
    uniforms: tf.Tensor
    n_new: tf.Tensor
    sampling: SamplingTensors
    choose: Callable[[LoopState, tf.Tensor, SamplingTensors], tf.Tensor]


class LookupLoop(TokenLoop):
    """A `TokenLoop` that drafts tokens by prompt lookup.

    All texts of a batch advance by the same number of tokens, that of the shortest accepted draft.
    So a draft pays for one text, and hardly for many.

    The arguments are those of `TokenLoop`, with one token more in `max_new` than drafts have.
    """

    @property
    def draft_len(self) -> int:
        """The number of tokens of a draft, S - 1."""
        return self.max_new - 1

    @property
    def history_len(self) -> int:
        """The number W of tokens that are searched."""
        return max(_MIN_HISTORY, self.cached.span.mem_len)

    def run(
        self,
        state: LoopState,
        positions: Sequence[tf.Tensor],
        uniforms: tf.Tensor,
        n_new: tf.Tensor,
        sampling: SamplingTensors,
    ) -> tuple[tf.Tensor, LoopState]:
        """Draws tokens and reads each of them; see `TokenLoop.run`."""
        n_uniforms = uniforms.shape[0]
        tokens = tf.fill((n_uniforms + self.max_new, state.filled.shape[0]), -1)
        padded = tf.pad(uniforms, [(0, self.max_new), (0, 0)])
        with self.restore_kernels(state):
            call = _Call(positions, padded, n_new, sampling, self.make_choice())

            def alternate(*progress: tf.Tensor) -> tuple[tf.Tensor, ...]:
                # Loops in place of a condition, for which XLA would copy the ring buffers.
                for has_draft, read in ((False, self._read_drawn), (True, self._read_draft)):
                    progress = tf.while_loop(
                        lambda *now, wanted=has_draft: _continues(_Progress(*now), n_new, wanted),
                        lambda *now, read=read: read(_Progress(*now), call),
                        progress,
                    )
                return progress

            first = self._plan(tf.constant(0), tokens, state, call)
            progress = tf.while_loop(
                lambda *now: _continues(_Progress(*now), n_new), alternate, first
            )
        return progress[1][:n_uniforms], progress[2]

    def _read_drawn(self, progress: _Progress, call: _Call) -> _Progress:
        """Reads the drawn token alone."""
        step, tokens, state, drawn, _, _ = progress
        kept = tf.where(state.is_done, -1, drawn)
        tokens = tf.tensor_scatter_nd_update(tokens, [[step]], [kept])
        return self._plan(
            step + 1, tokens, self.read(drawn, state, call.positions, call.sampling), call
        )

    def _plan(self, step: tf.Tensor, tokens: tf.Tensor, state: LoopState, call: _Call) -> _Progress:
        """Draws the next token and looks up what followed it."""
        with self.multiply_by_rows(state):
            drawn = call.choose(state, call.uniforms[step], call.sampling)
        return self._look_up(step, tokens, state, drawn)

    def _read_draft(self, progress: _Progress, call: _Call) -> _Progress:
        """Reads the drawn token and the draft, and keeps what the model draws, too."""
        step, tokens, state, drawn, draft, _ = progress
        new = tf.concat([drawn[:, None], draft], axis=1)  # (B, S)
        result = self.read_tokens(new, state, call.positions)
        following = self._choose_following(result.hidden, progress, call)
        is_hit = tf.cast(following[:, :-1] == draft, tf.int32)
        n_drawn = 1 + tf.reduce_sum(tf.math.cumprod(is_hit, axis=1), axis=1)  # (B,)
        numbers = tf.range(1, self.max_new + 1)
        is_stop = tf.reduce_any(new[..., None] == call.sampling.stops, axis=2)
        stop_ends = tf.reduce_min(tf.where(is_stop, numbers, _UNLIMITED), axis=1)
        n_kept = count_kept(n_drawn, stop_ends, state.is_done)
        n_kept = tf.minimum(n_kept, call.n_new - step)
        is_kept = numbers[:, None] <= tf.minimum(n_kept, stop_ends)  # (S, B)
        is_kept = tf.logical_and(is_kept, tf.logical_not(state.is_done))
        kept = tf.where(is_kept, tf.transpose(new), -1)
        slots = step + tf.range(self.max_new)
        tokens = tf.tensor_scatter_nd_update(tokens, slots[:, None], kept)
        state = self.advance(state, result, new, n_kept, call.sampling)
        drawn = tf.gather(following, n_kept - 1, axis=1)
        return self._look_up(step + n_kept, tokens, state, drawn)

    def _choose_following(self, hidden: tf.Tensor, progress: _Progress, call: _Call) -> tf.Tensor:
        """Returns the tokens (B, S) int32 that the model draws after hidden states (B, S, D)."""
        state, n_new = progress.state, self.max_new
        rows = state._replace(
            hidden=tf.reshape(hidden, [-1, hidden.shape[2]]),
            seen=tf.repeat(state.seen, n_new, axis=0),  # the text holds the tokens of a draft
        )
        uniforms = tf.gather(call.uniforms, progress.step + 1 + tf.range(n_new))  # (S, B)
        with self.multiply_by_rows(state):
            drawn = call.choose(rows, tf.reshape(tf.transpose(uniforms), [-1]), call.sampling)
        return tf.reshape(drawn, [-1, n_new])

    def _look_up(
        self, step: tf.Tensor, tokens: tf.Tensor, state: LoopState, drawn: tf.Tensor
    ) -> _Progress:
        """Returns the progress with the draft that follows the drawn tokens, (B,) int32."""
        text = tf.concat([state.history[:, 1:], drawn[:, None]], axis=1)
        ngram_len = choose_ngram_len(self.cached.model.config.n_token)
        draft, is_found = look_up(text, ngram_len, self.draft_len)
        has_draft = tf.reduce_all(tf.logical_or(is_found, state.is_done))
        return _Progress(step, tokens, state, drawn, draft, has_draft)


def choose_ngram_len(n_token: int) -> int:
    """Returns the length of n-grams that pays for real text of such a vocabulary.

    Shorter ones are often followed by something else than before.
    """
    return 6 if n_token <= _MAX_CHARACTERS else 3


def look_up(text: tf.Tensor, ngram_len: int, draft_len: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Drafts the tokens that followed the last n-gram where it occurred last before.

    Args:
        text: (B, W) int32, the last tokens of each text, with -1 before its first.
        ngram_len: The number of tokens of an n-gram, less than W.
        draft_len: The number of tokens to draft.

    Returns:
        The draft, (B, draft_len) int32, which repeats the period of a text that repeats itself, and
        is of no use where nothing was found; and (B,) bool, whether the n-gram occurred before.
    """
    n_ends = text.shape[1] - ngram_len  # of the n-grams before the last
    is_match = tf.ones((tf.shape(text)[0], n_ends), tf.bool)
    for offset in range(ngram_len):
        last = text[:, n_ends + offset, None]
        is_match &= (text[:, offset : offset + n_ends] == last) & (last >= 0)
    start = tf.reduce_max(tf.where(is_match, tf.range(n_ends) + ngram_len, 0), axis=1)
    period = text.shape[1] - start
    places = start[:, None] + tf.range(draft_len) % period[:, None]
    draft = tf.gather(text, places, batch_dims=1)
    return tf.maximum(draft, 0), start > 0


def _continues(progress: _Progress, n_new: tf.Tensor, has_draft: bool | None = None) -> tf.Tensor:
    """Returns whether there are tokens to draw, and a draft or not if that is asked for."""
    is_open = tf.logical_not(tf.reduce_all(progress.state.is_done))
    continues = tf.logical_and(progress.step < n_new, is_open)
    if has_draft is None:
        return continues
    return tf.logical_and(continues, tf.equal(progress.has_draft, has_draft))


def count_kept(n_drawn: tf.Tensor, stop_ends: tf.Tensor, is_done: tf.Tensor) -> tf.Tensor:
    """Returns the number of tokens by which all texts advance, () int32.

    Args:
        n_drawn: (B,) int32, the number of new tokens of each text that the model draws, too.
        stop_ends: (B,) int32, the number of new tokens up to the first stop.
        is_done: (B,) bool, whether the text has ended before.
    """
    ends = tf.logical_and(stop_ends <= n_drawn, tf.logical_not(is_done))
    open_rows = tf.where(tf.logical_or(ends, is_done), _UNLIMITED, n_drawn)
    # Where all texts end, the state is that after the last stop.
    last_end = tf.reduce_max(tf.where(ends, stop_ends, 0))
    n_open = tf.reduce_min(open_rows)
    return tf.where(n_open == _UNLIMITED, last_end, n_open)
