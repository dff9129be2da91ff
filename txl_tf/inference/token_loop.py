"""The loop of generation: one token at a time, at a cost that does not grow with the text."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf
from keras import ops

from txl_tf.cached_model import CachedModel, CachedState
from txl_tf.inference.sampling import SamplingTensors, choose_tokens, penalize


class LoopState(NamedTuple):
    """The state of texts that are being generated.

    Keys and values lie in ring buffers of R = M + 1 places: the token at place p stands after the
    one at p - 1, and the next one takes the place of the oldest. Reading a token moves nothing.

    Rows and heads are one axis, and keys have the places last: as the products want them, which
    would otherwise copy all of it for every token.

    Args:
        keys: for each layer (B N, H, R).
        values: for each layer (B N, R, H).
        place: () int32, where the next token goes.
        filled: (B,) int32, how many of the M places before it hold tokens that were read.
        log_probs: (B, V) float32, log p of the next token in nats.
        seen: (B, V) bool, which tokens the text holds.
        is_done: (B,) bool, which texts have ended.
    """

    keys: tuple[tf.Tensor, ...]
    values: tuple[tf.Tensor, ...]
    place: tf.Tensor
    filled: tf.Tensor
    log_probs: tf.Tensor
    seen: tf.Tensor
    is_done: tf.Tensor


class TokenLoop:
    """Draws tokens one after the other, in one TensorFlow function that can be compiled.

    Args:
        cached: the model.
        n_candidates: among how many of the likeliest tokens to draw, V to sort all of them; `None`
            to draw among all, which needs no sorting.
    """

    def __init__(self, cached: CachedModel, n_candidates: int | None = None):
        self.cached = cached
        self.n_candidates = n_candidates
        self._n_places = cached.span.mem_len + 1

    def begin(self, state: CachedState, seen: tf.Tensor) -> LoopState:
        """Returns the state of texts that were read in segments.

        Args:
            state: after their last segment.
            seen: (B, V) bool, which tokens they hold.
        """

        def make_rings(
            states: Sequence[tf.Tensor], order: tuple[int, ...]
        ) -> tuple[tf.Tensor, ...]:
            padded = (tf.pad(state, [(0, 0), (0, 0), (0, 1), (0, 0)]) for state in states)
            turned = (tf.transpose(state, order) for state in padded)
            return tuple(tf.reshape(state, [-1, *state.shape[2:]]) for state in turned)

        return LoopState(
            make_rings(state.keys, (0, 1, 3, 2)),
            make_rings(state.values, (0, 1, 2, 3)),
            tf.constant(self.cached.span.mem_len, tf.int32),
            state.filled,
            self.cached.log_probs(state),
            seen,
            tf.zeros(tf.shape(state.filled), tf.bool),
        )

    def run(
        self,
        state: LoopState,
        positions: Sequence[tf.Tensor],
        uniforms: tf.Tensor,
        n_new: tf.Tensor,
        sampling: SamplingTensors,
    ) -> tuple[tf.Tensor, LoopState]:
        """Draws tokens, and reads each.

        Args:
            state: where the texts stand.
            positions: what `take_positions` returned.
            uniforms: (C, B) float32 in [0, 1), one for each token to draw.
            n_new: () int32, how many tokens to draw, at most C.
            sampling: how.

        Returns:
            The tokens, (C, B) int32, with -1 where a text had ended or `n_new` is over; and where
            the texts stand then.
        """
        tokens = tf.fill(tf.shape(uniforms), -1)
        tokens.set_shape(uniforms.shape)

        def goes_on(step: tf.Tensor, _: tf.Tensor, state: LoopState) -> tf.Tensor:
            return tf.logical_and(step < n_new, tf.logical_not(tf.reduce_all(state.is_done)))

        def draw(
            step: tf.Tensor, tokens: tf.Tensor, state: LoopState
        ) -> tuple[tf.Tensor, tf.Tensor, LoopState]:
            logits = penalize(state.log_probs, state.seen, sampling)
            drawn = choose_tokens(logits, uniforms[step], sampling, self.n_candidates)
            kept = tf.where(state.is_done, -1, drawn)
            tokens = tf.tensor_scatter_nd_update(tokens, [[step]], [kept])
            return step + 1, tokens, self.read(drawn, state, positions, sampling)

        _, tokens, state = tf.while_loop(goes_on, draw, (tf.constant(0), tokens, state))
        return tokens, state

    def read(
        self,
        tokens: tf.Tensor,
        state: LoopState,
        positions: Sequence[tf.Tensor],
        sampling: SamplingTensors,
    ) -> LoopState:
        """Reads a token of each text, (B,) int32."""
        model, config = self.cached.model, self.cached.model.config
        mask = self._make_mask(state)
        hidden = model.embedding(tokens[:, None])  # (B, 1, D)
        keys, values = [], []
        for index, layer in enumerate(model.decoder_layers):
            content_bias, position_bias = model.get_biases(index)
            attention = layer.attention
            query, new_key, new_value = attention.project(hidden, hidden[:, :0])  # (B, 1, N, H)
            # Written first, read then: the ring is changed where it lies.
            key, value = self._fold(new_key)[:, :, None], self._fold(new_value)[:, None]
            keys.append(ops.slice_update(state.keys[index], [0, 0, state.place], key))
            values.append(ops.slice_update(state.values[index], [0, state.place, 0], value))
            content = self._fold(attention.add_bias(query, content_bias))[:, None] @ keys[-1]
            content = tf.reshape(content, [-1, config.n_head, 1, self._n_places])
            by_head = tf.transpose(attention.add_bias(query, position_bias)[:, 0], [1, 0, 2])
            position = tf.transpose(by_head @ positions[index], [1, 0, 2])[:, :, None]
            weights = attention.compute_attention_weights(
                content, self._turn(position, state.place), mask
            )
            weights = tf.cast(tf.reshape(weights, [-1, 1, self._n_places]), hidden.dtype)
            attended = tf.reshape(weights @ values[-1], query.shape)
            hidden = layer.apply_feed_forward(hidden, attention.join_heads(attended))
        is_token = tf.one_hot(tokens, model.config.n_token, on_value=True, off_value=False)
        is_stop = tf.reduce_any(tokens[:, None] == sampling.stops[None], axis=1)
        return LoopState(
            tuple(keys),
            tuple(values),
            (state.place + 1) % self._n_places,
            tf.minimum(state.filled + 1, self.cached.span.mem_len),
            model.log_probs(hidden)[:, 0],
            tf.logical_or(state.seen, is_token),
            tf.logical_or(state.is_done, is_stop),
        )

    def _make_mask(self, state: LoopState) -> tf.Tensor:
        """Returns which places the token at `place` sees, (R,) bool or (B, 1, 1, R)."""
        span = self.cached.span
        distances = (state.place - tf.range(self._n_places)) % self._n_places
        furthest = span.mem_len - int(span.same_length and span.counts_self)
        mask = distances <= furthest
        if not self.cached.mask_empty_memory:
            return mask
        return tf.logical_and(mask, distances <= state.filled[:, None])[:, None, None]

    def _turn(self, scores: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
        """Moves scores of the distances M, ..., 0 from a place, (B, N, 1, R), to their places."""
        # A slice of two of them in a row would do too, but XLA pads what it cuts from.
        return tf.roll(scores, place + 1, axis=-1)

    def _fold(self, states: tf.Tensor) -> tf.Tensor:
        """Returns states (B, 1, N, H) as (B N, H)."""
        return tf.reshape(states, [-1, self.cached.model.config.d_head])


def take_positions(cached: CachedModel) -> tuple[tf.Tensor, ...]:
    """Returns the products W_{k,R} R of the distances M, ..., 0, (N, H, R) for each layer."""
    n_places = cached.span.mem_len + 1
    return tuple(tf.transpose(products[:, -n_places:], [0, 2, 1]) for products in cached.positions)


def take_row(state: LoopState, row: int) -> LoopState:
    """Returns the state of one text."""
    n_rows = state.filled.shape[0]
    if n_rows == 1:
        return state
    n_heads = state.keys[0].shape[0] // n_rows
    heads = slice(row * n_heads, (row + 1) * n_heads)
    return LoopState(
        tuple(keys[heads] for keys in state.keys),
        tuple(values[heads] for values in state.values),
        state.place,
        *(part[row : row + 1] for part in state[3:]),
    )


def join_rows(rows: Sequence[LoopState]) -> LoopState:
    """Returns the state of several texts; their rings are turned to the place of the first."""
    if len(rows) == 1:
        return rows[0]
    place = rows[0].place

    def join(rings: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
        turned = [
            tf.roll(ring, place - row.place, axis) for ring, row in zip(rings, rows, strict=True)
        ]
        return tf.concat(turned, axis=0)

    return LoopState(
        tuple(join(keys, 2) for keys in zip(*(row.keys for row in rows), strict=True)),
        tuple(join(values, 1) for values in zip(*(row.values for row in rows), strict=True)),
        place,
        *(tf.concat(parts, axis=0) for parts in zip(*(row[3:] for row in rows), strict=True)),
    )
