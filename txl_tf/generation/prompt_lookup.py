"""Speculative decoding by prompt lookup: several tokens for one pass over the weights.

Texts repeat themselves. Where the last tokens of a text occurred before, the tokens that followed
them are a good guess of what comes next (Saxena 2023,
https://github.com/apoorvumang/prompt-lookup-decoding). One pass reads the whole guess, and keeps
it up to the first token that differs from the one drawn. As each token is drawn with the random
number of its index, the text is the one of `TokenLoop`, up to rounding, with any sampling settings.
"""

from typing import NamedTuple

import tensorflow as tf

from txl_tf.generation.sampling import SamplingTensors
from txl_tf.generation.token_loop import LoopState, TokenLoop

_MAX_CHARACTERS = 256  # larger vocabularies hold words or subwords
_MIN_HISTORY = 256


class _Progress(NamedTuple):
    """The state between two passes."""

    step: tf.Tensor  # () int32, the number of tokens read since the call began
    tokens: tf.Tensor  # (C + S, 1) int32, these tokens, followed by -1
    state: LoopState  # after these tokens
    drawn: tf.Tensor  # (1,) int32, the next token, which has not been read yet
    draft: tf.Tensor  # (1, S - 1) int32, the tokens guessed to follow it
    has_draft: tf.Tensor  # () bool, whether there is a guess


class LookupLoop(TokenLoop):
    """A `TokenLoop` for a single text that drafts tokens by prompt lookup.

    A draft has one token less than `max_new`.
    """

    @property
    def history_len(self) -> int:
        """The number W of tokens that are searched."""
        return max(_MIN_HISTORY, self.cached.span.mem_len)

    def run(
        self, state: LoopState, uniforms: tf.Tensor, n_new: tf.Tensor, sampling: SamplingTensors
    ) -> tuple[tf.Tensor, LoopState]:
        """Draws tokens and reads each of them; see `TokenLoop.run`."""
        n_uniforms, news = uniforms.shape[0], tf.range(self.max_new)
        tokens = tf.fill((n_uniforms + self.max_new, 1), -1)
        uniforms = tf.pad(uniforms, [(0, self.max_new), (0, 0)])

        def read_drawn(now: _Progress) -> _Progress:
            """Reads the drawn token alone."""
            tokens = tf.tensor_scatter_nd_update(now.tokens, [[now.step]], [now.drawn])
            state = self.read(now.drawn, now.state, sampling)
            drawn = choose(state, uniforms[now.step + 1], sampling)
            return self._look_up(now.step + 1, tokens, state, drawn)

        def read_draft(now: _Progress) -> _Progress:
            """Verifies the draft in one pass and accepts its longest correct prefix."""
            new = tf.concat([now.drawn[:, None], now.draft], axis=1)  # (1, S)
            state, slots = self.read_tokens(new, now.state), now.step + news
            rows = state._replace(
                hidden=state.hidden[0],
                seen=tf.repeat(state.seen, self.max_new, axis=0),  # the text holds accepted tokens
            )
            following = choose(rows, tf.gather(uniforms, slots + 1)[:, 0], sampling)[None]
            n_kept = count_accepted(new, following, sampling.stops)
            n_kept = tf.minimum(n_kept, n_new - now.step)
            kept = tf.where(news < n_kept, new, -1)
            tokens = tf.tensor_scatter_nd_update(now.tokens, slots[:, None], tf.transpose(kept))
            state = self.advance(state, new, n_kept, sampling)
            # A slice would make `following`, and so the random numbers, constants for XLA.
            drawn = tf.gather(following, n_kept - 1, axis=1)
            return self._look_up(now.step + n_kept, tokens, state, drawn)

        def continues(now: _Progress) -> tf.Tensor:
            return tf.logical_and(now.step < n_new, tf.logical_not(now.state.is_done[0]))

        def alternate(*progress: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # Loops in place of a condition, for which XLA would copy the ring buffers.
            for has_draft, read in ((False, read_drawn), (True, read_draft)):
                progress = tf.while_loop(
                    lambda *now, wanted=has_draft: tf.logical_and(
                        continues(_Progress(*now)), tf.equal(_Progress(*now).has_draft, wanted)
                    ),
                    lambda *now, read=read: read(_Progress(*now)),
                    progress,
                )
            return progress

        with self.restore_kernels(state):
            choose = self.make_choice()
            drawn = choose(state, uniforms[0], sampling)
            progress = self._look_up(tf.constant(0), tokens, state, drawn)
            progress = tf.while_loop(lambda *now: continues(_Progress(*now)), alternate, progress)
        return progress[1][:n_uniforms], progress[2]

    def _look_up(
        self, step: tf.Tensor, tokens: tf.Tensor, state: LoopState, drawn: tf.Tensor
    ) -> _Progress:
        """Returns the progress with the draft that follows the drawn token, (1,) int32."""
        text = tf.concat([state.history[:, 1:], drawn[:, None]], axis=1)
        ngram_len = choose_ngram_len(self.cached.model.config.n_token)
        draft, is_found = look_up(text, ngram_len, self.max_new - 1)
        return _Progress(step, tokens, state, drawn, draft, is_found[0])


def choose_ngram_len(n_token: int) -> int:
    """Returns the length of n-grams that are mostly followed by the same tokens as before."""
    return 6 if n_token <= _MAX_CHARACTERS else 3


def look_up(text: tf.Tensor, ngram_len: int, draft_len: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Drafts the tokens that followed the last n-gram where it occurred last before.

    `text` (B, W) int32 holds the last tokens of each text, with -1 before its first. A draft
    repeats the period of a text that repeats itself.

    Returns:
        The draft, (B, draft_len) int32, and (B,) bool, whether the n-gram occurred before.
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


def count_accepted(new: tf.Tensor, following: tf.Tensor, stops: tf.Tensor) -> tf.Tensor:
    """Returns how many of the new tokens, (1, S) int32, the text keeps, () int32.

    The tokens `following` (1, S) are those that the model draws after each; `stops` end the text.
    """
    is_stop = tf.reduce_any(new[0, :-1, None] == stops, axis=1)
    is_accepted = tf.logical_and(new[0, 1:] == following[0, :-1], tf.logical_not(is_stop))
    return 1 + tf.reduce_sum(tf.math.cumprod(tf.cast(is_accepted, tf.int32)))
