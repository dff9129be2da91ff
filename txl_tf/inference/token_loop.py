"""The compiled generation loop: one token at a time, at a constant cost per token."""

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf
from keras import ops

from txl_tf.cached_model import CachedModel, CachedState
from txl_tf.compilation import has_accelerator
from txl_tf.inference.bin_sampling import choose_tokens_by_bins
from txl_tf.inference.quantization import make_row_product
from txl_tf.inference.sampling import SamplingTensors, choose_tokens, penalize
from txl_tf.layers.fused_layer import finish_layer
from txl_tf.layers.packed_kernel import restore_kernels, use_product
from txl_tf.layers.products import matmul_rows

_MAX_SINGLE_ROWS = 4  # for more rows, products with restored kernels are faster


class LoopState(NamedTuple):
    """The state of the texts of a batch: a KV cache in ring buffers, and the last hidden state.

    Each ring buffer has R = M + 1 slots. The next token overwrites the oldest one, so reading a
    token moves no other. Rows and heads share one axis and the slots of the keys come last, as the
    matrix products expect them: any other layout would be copied for every token.

    Args:
        keys: (B N, H, R) for each layer.
        values: (B N, R, H) for each layer.
        next_slot: () int32, the ring-buffer slot of the next token.
        filled: (B,) int32, the number of the M slots before `next_slot` that hold tokens.
        hidden: (B, D), the hidden state of the last token read, which predicts the next token.
        seen: (B, V) bool, whether the text contains each token.
        is_done: (B,) bool, whether the text has ended.
    """

    keys: tuple[tf.Tensor, ...]
    values: tuple[tf.Tensor, ...]
    next_slot: tf.Tensor
    filled: tf.Tensor
    hidden: tf.Tensor
    seen: tf.Tensor
    is_done: tf.Tensor


class TokenLoop:
    """Draws tokens one at a time, in a TensorFlow graph that XLA can compile.

    Args:
        cached: The model.
        n_candidates: Number of most likely tokens to draw from, V to sort all; `None` to draw from
            all without sorting.
        by_bins: Whether to compute only the bins of the softmax that are needed; for models with
            cutoffs, and sampling settings that allow it.
        is_compiled: Whether XLA compiles the loop.
    """

    def __init__(
        self,
        cached: CachedModel,
        n_candidates: int | None = None,
        *,
        by_bins: bool = False,
        is_compiled: bool = False,
    ):
        self.cached = cached
        self.n_candidates = n_candidates
        self.by_bins = by_bins
        self.is_compiled = is_compiled
        self.dtype = get_loop_dtype(cached)
        self._ring_len = cached.span.mem_len + 1

    def begin(self, state: CachedState, seen: tf.Tensor) -> LoopState:
        """Returns the loop's state after prompts that were read in segments.

        Args:
            state: The state after the last segment.
            seen: (B, V) bool, whether each prompt contains each token.
        """

        def make_rings(
            states: Sequence[tf.Tensor], order: tuple[int, ...]
        ) -> tuple[tf.Tensor, ...]:
            padded = (tf.pad(state, [(0, 0), (0, 0), (0, 1), (0, 0)]) for state in states)
            transposed = (tf.cast(tf.transpose(state, order), self.dtype) for state in padded)
            return tuple(tf.reshape(state, [-1, *state.shape[2:]]) for state in transposed)

        return LoopState(
            make_rings(state.keys, (0, 1, 3, 2)),
            make_rings(state.values, (0, 1, 2, 3)),
            tf.constant(self.cached.span.mem_len, tf.int32),
            state.filled,
            tf.cast(state.last, self.dtype),
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
        """Draws tokens and reads each of them.

        Args:
            state: The current state.
            positions: The value of `take_positions`.
            uniforms: (C, B) float32 in [0, 1), a random number for each token.
            n_new: () int32, the number of tokens to draw, at most C.
            sampling: The sampling settings.

        Returns:
            The tokens, (C, B) int32, with -1 after the end of a text and from index `n_new` on;
            and the new state.
        """
        tokens = tf.fill(tf.shape(uniforms), -1)
        tokens.set_shape(uniforms.shape)

        def continues(step: tf.Tensor, _: tf.Tensor, state: LoopState) -> tf.Tensor:
            return tf.logical_and(step < n_new, tf.logical_not(tf.reduce_all(state.is_done)))

        def draw(
            step: tf.Tensor, tokens: tf.Tensor, state: LoopState
        ) -> tuple[tf.Tensor, tf.Tensor, LoopState]:
            with self._multiply_by_rows(state):
                drawn = choose(state, uniforms[step], sampling)
            kept = tf.where(state.is_done, -1, drawn)
            tokens = tf.tensor_scatter_nd_update(tokens, [[step]], [kept])
            return step + 1, tokens, self.read(drawn, state, positions, sampling)

        with self._restore_kernels(state):
            choose = self._choose_by_bins() if self.by_bins else self._choose
            _, tokens, state = tf.while_loop(continues, draw, (tf.constant(0), tokens, state))
        return tokens, state

    def _choose(
        self, state: LoopState, uniforms: tf.Tensor, sampling: SamplingTensors
    ) -> tf.Tensor:
        """Returns the next tokens, (B,) int32, drawn from the probabilities of all tokens."""
        log_probs = self.cached.model.log_probs(state.hidden[:, None])[:, 0]
        logits = penalize(log_probs, state.seen, sampling)
        return choose_tokens(logits, uniforms, sampling, self.n_candidates)

    def _choose_by_bins(self) -> Callable[[LoopState, tf.Tensor, SamplingTensors], tf.Tensor]:
        """Returns a function like `_choose` that computes only the bins that it needs."""
        softmax, embedding = self.cached.model.softmax, self.cached.model.embedding
        head_weights = softmax.get_bin_weights(embedding)[0]  # outside of the loop: it is a copy

        def choose(state: LoopState, uniforms: tf.Tensor, sampling: SamplingTensors) -> tf.Tensor:
            def compute_inside(index: int) -> tf.Tensor:
                return softmax.bin_log_probs(
                    state.hidden, softmax.get_bin_weights(embedding)[index]
                )

            head = softmax.head_log_probs(state.hidden, head_weights)
            return choose_tokens_by_bins(
                head, self.cached.model.config.bins, compute_inside, uniforms, sampling
            )

        return choose

    def read(
        self,
        tokens: tf.Tensor,
        state: LoopState,
        positions: Sequence[tf.Tensor],
        sampling: SamplingTensors,
    ) -> LoopState:
        """Reads one token of each text, (B,) int32, and returns the new state."""
        model, mask = self.cached.model, self._make_mask(state)
        hidden = tf.cast(model.embedding(tokens[:, None]), self.dtype)  # (B, 1, D)
        keys, values = list(state.keys), list(state.values)
        with self._multiply_by_rows(state):
            for index in range(len(keys)):
                hidden, keys[index], values[index] = self._read_layer(
                    index, hidden, state, positions[index], mask
                )
        is_token = tf.one_hot(tokens, model.config.n_token, on_value=True, off_value=False)
        is_stop = tf.reduce_any(tokens[:, None] == sampling.stops[None], axis=1)
        return LoopState(
            tuple(keys),
            tuple(values),
            (state.next_slot + 1) % self._ring_len,
            tf.minimum(state.filled + 1, self.cached.span.mem_len),
            hidden[:, 0],
            tf.logical_or(state.seen, is_token),
            tf.logical_or(state.is_done, is_stop),
        )

    def _read_layer(
        self,
        index: int,
        hidden: tf.Tensor,
        state: LoopState,
        positions: tf.Tensor,
        mask: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the output of a layer, (B, 1, D), and its ring buffers with the new token."""
        layer, slot = self.cached.model.decoder_layers[index], state.next_slot
        projected = matmul_rows(hidden, layer.attention.qkv_kernel)
        query, key, value = (self._split_heads(part) for part in tf.split(projected, 3, axis=-1))
        # Write before reading, so that the ring buffer is updated in place.
        keys = ops.slice_update(state.keys[index], [0, 0, slot], _merge(key)[:, :, None])
        values = ops.slice_update(state.values[index], [0, slot, 0], _merge(value)[:, None])
        content_query, position_query = (
            layer.attention.add_bias(query, tf.cast(bias, self.dtype))
            for bias in self.cached.model.get_biases(index)
        )
        content = tf.reshape(
            _merge(content_query)[:, None] @ keys, [-1, query.shape[1], 1, self._ring_len]
        )
        position = self._rotate(self._score_distances(position_query, positions), slot)
        weights = layer.attention.compute_attention_weights(content, position, mask)
        weights = tf.cast(tf.reshape(weights, [-1, 1, self._ring_len]), self.dtype)
        attended = tf.reshape(weights @ values, [-1, 1, key.shape[1] * key.shape[2]])
        return finish_layer(layer, hidden, attended), keys, values

    def _make_mask(self, state: LoopState) -> tf.Tensor:
        """Returns the slots that the next token sees, (R,) bool or (B, 1, 1, R)."""
        span = self.cached.span
        distances = (state.next_slot - tf.range(self._ring_len)) % self._ring_len
        furthest = span.mem_len - int(span.same_length and span.counts_self)
        mask = distances <= furthest
        if not self.cached.mask_empty_memory:
            return mask
        return tf.logical_and(mask, distances <= state.filled[:, None])[:, None, None]

    def _score_distances(self, query: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Returns the scores (B, N, 1, R) of the distances M, ..., 0, of queries (B, N, H).

        The distances beyond `clamp_len` share the score of the first of `positions`.
        """
        scores = tf.transpose(tf.transpose(query, [1, 0, 2]) @ positions, [1, 0, 2])
        n_shared = self._ring_len - positions.shape[2]
        if n_shared:
            scores = tf.concat([tf.repeat(scores[..., :1], n_shared, axis=-1), scores], axis=-1)
        return scores[:, :, None]

    def _rotate(self, scores: tf.Tensor, slot: tf.Tensor) -> tf.Tensor:
        """Moves scores (B, N, 1, R) of the distances M, ..., 0 from a slot to the slots."""
        # Slicing a doubled tensor would work too, but XLA pads the operand of such a slice.
        return tf.roll(scores, slot + 1, axis=-1)

    def _split_heads(self, states: tf.Tensor) -> tf.Tensor:
        """Returns states (B, 1, N H) as (B, N, H)."""
        config = self.cached.model.config
        return tf.reshape(states, [-1, config.n_head, config.d_head])

    def _restore_kernels(self, state: LoopState) -> contextlib.AbstractContextManager[None]:
        """Returns the context of the loop."""
        if self._has_few_rows(state):
            return contextlib.nullcontext()
        return restore_kernels(self.cached.model.kernels, self.dtype)

    def _multiply_by_rows(self, state: LoopState) -> contextlib.AbstractContextManager[None]:
        """Returns the context of one step."""
        if not self._has_few_rows(state):
            return contextlib.nullcontext()
        return use_product(make_row_product(state.next_slot >= 0))

    def _has_few_rows(self, state: LoopState) -> bool:
        n_rows = state.filled.shape[0]
        return self.is_compiled and n_rows is not None and n_rows <= _MAX_SINGLE_ROWS


def take_positions(cached: CachedModel) -> tuple[tf.Tensor, ...]:
    """Returns the position products of the distances P - 1, ..., 0, (N, H, P) for each layer.

    P is R, or `clamp_len` + 1 if that is less: further distances have the products of the first.
    """
    n_distances = cached.span.mem_len + 1
    if cached.span.clamp_len > 0:
        n_distances = min(n_distances, cached.span.clamp_len + 1)
    return tuple(
        tf.transpose(tf.cast(products[:, -n_distances:], get_loop_dtype(cached)), [0, 2, 1])
        for products in cached.positions
    )


def get_loop_dtype(cached: CachedModel) -> str:
    """Returns the dtype of the loop's activations: float32 on CPUs, where XLA is slow at others."""
    return cached.model.compute_dtype if has_accelerator() else "float32"


def _merge(states: tf.Tensor) -> tf.Tensor:
    """Returns states (B, N, H) as (B N, H)."""
    return tf.reshape(states, [-1, states.shape[-1]])


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
        state.next_slot,
        *(tensor[row : row + 1] for tensor in state[3:]),
    )


def join_rows(rows: Sequence[LoopState]) -> LoopState:
    """Returns the joint state of texts, with their ring buffers rotated to the first one's slot."""
    if len(rows) == 1:
        return rows[0]
    next_slot = rows[0].next_slot

    def join(rings: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
        rotated = [
            tf.roll(ring, next_slot - row.next_slot, axis)
            for ring, row in zip(rings, rows, strict=True)
        ]
        return tf.concat(rotated, axis=0)

    return LoopState(
        tuple(join(keys, 2) for keys in zip(*(row.keys for row in rows), strict=True)),
        tuple(join(values, 1) for values in zip(*(row.values for row in rows), strict=True)),
        next_slot,
        *(tf.concat(each, axis=0) for each in zip(*(row[3:] for row in rows), strict=True)),
    )
