"""The compiled generation loop: one token at a time, at a constant cost per token."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from keras import ops

from txl_tf.generation.sampling import BANNED_LOGIT, Sampler
from txl_tf.layers.attention import bias_and_scale, compute_weights
from txl_tf.layers.fused.for_xla import matmul_rows
from txl_tf.layers.packed_kernel import Multiply, PackedKernel, restore_kernels
from txl_tf.models.cached_model import CachedModel, CachedState
from txl_tf.models.compilation import has_accelerator
from txl_tf.models.quantization import multiply_rows

MAX_SINGLE_ROWS = 4  # for more rows, products with restored kernels are faster


class LoopState(NamedTuple):
    """The state of a batch of texts: a KV cache in ring buffers, and the last hidden state.

    Each ring buffer has R = M + 1 entries. The next token overwrites the oldest entry, so that the
    others stay in place. Rows and heads share one axis, and the entries of the keys come last, as
    the matrix products expect them: any other layout would be copied for every token.
    """

    keys: tuple[tf.Tensor, ...]  # (B N, H, R) for each layer
    values: tuple[tf.Tensor, ...]  # (B N, R, H) for each layer
    next_entry: tf.Tensor  # () int32, the ring-buffer entry of the next token
    filled: tf.Tensor  # (B,) int32, how many of the M entries before it hold tokens
    hidden: tf.Tensor  # (B, D), of the last token read, which predicts the next token
    seen: tf.Tensor  # (B, V) bool, whether the text contains each token
    is_done: tf.Tensor  # (B,) bool, whether the text has ended


class TokenLoop:
    """Draws tokens one at a time, in a TensorFlow graph that XLA can compile.

    Args:
        cached: The model.
        positions: The value of `take_positions`, or variables that hold it.
        is_compiled: Whether XLA compiles the loop.
    """

    def __init__(
        self, cached: CachedModel, positions: Sequence[tf.Tensor], *, is_compiled: bool = False
    ):
        self.cached = cached
        self.positions = positions
        self.is_compiled = is_compiled
        self.dtype = get_loop_dtype(cached)
        self._ring_len = cached.span.mem_len + 1

    def begin(self, state: CachedState, seen: tf.Tensor) -> LoopState:
        """Returns the loop state after texts that were read in segments; for `seen`, see there."""

        def make_ring(states: tf.Tensor, order: tuple[int, ...]) -> tf.Tensor:
            padded = tf.pad(states, [(0, 0), (0, 0), (0, 1), (0, 0)])
            ring = tf.cast(tf.transpose(padded, order), self.dtype)
            return tf.reshape(ring, [-1, *ring.shape[2:]])

        return LoopState(
            tuple(make_ring(keys, (0, 1, 3, 2)) for keys in state.keys),
            tuple(make_ring(values, (0, 1, 2, 3)) for values in state.values),
            tf.constant(self.cached.span.mem_len, tf.int32),
            state.filled,
            tf.cast(state.last, self.dtype),
            seen,
            tf.zeros(tf.shape(state.filled), tf.bool),
        )

    def run(
        self,
        state: LoopState,
        uniforms: tf.Tensor,
        n_new: tf.Tensor,
        tensors: Mapping[str, tf.Tensor],
        is_allowed: tf.Tensor,
        is_stop: tf.Tensor,
        *,
        sampler: Sampler,
        by_bins: bool = False,
    ) -> tuple[tf.Tensor, LoopState]:
        """Draws tokens and reads each of them.

        Args:
            state: The current state.
            uniforms: (C, B) float32 in [0, 1), a random number for each token.
            n_new: () int32, the number of tokens to draw, at most C.
            tensors: Attributes of the sampler.
            is_allowed: (V,) bool, whether each token may be drawn.
            is_stop: (V,) bool, whether each token ends a text.
            sampler: The rule for drawing tokens.
            by_bins: Whether to compute only the bins of the softmax that are needed; for models
                with cutoffs and samplers with `draws_by_bins`.

        Returns:
            The tokens, (C, B) int32, with -1 after the end of a text and from index `n_new` on;
            and the new state.
        """
        sampler, model = sampler.with_tensors(tensors), self.cached.model
        tokens = tf.fill(tf.shape(uniforms), -1)
        tokens.set_shape(uniforms.shape)

        def continues(step: tf.Tensor, _: tf.Tensor, state: LoopState) -> tf.Tensor:
            return tf.logical_and(step < n_new, tf.logical_not(tf.reduce_all(state.is_done)))

        def draw(
            step: tf.Tensor, tokens: tf.Tensor, state: LoopState
        ) -> tuple[tf.Tensor, tf.Tensor, LoopState]:
            multiply = find_product(state)
            if head_weights is None:
                softmax, embedding = model.softmax, model.embedding
                log_probs = softmax.log_probs(state.hidden[:, None], embedding, multiply)[:, 0]
                log_probs = tf.where(is_allowed, log_probs, BANNED_LOGIT)
                drawn = sampler.choose(log_probs, uniforms[step], state.seen)
            else:
                drawn = self._draw_by_bins(
                    sampler, state.hidden, head_weights, uniforms[step], is_allowed, multiply
                )
            drawn = tf.cast(drawn, tf.int32)
            kept = tf.where(state.is_done, -1, drawn)
            tokens = tf.tensor_scatter_nd_update(tokens, [[step]], [kept])
            is_done = tf.logical_or(state.is_done, tf.gather(is_stop, drawn))
            return step + 1, tokens, self.read(drawn, state, multiply)._replace(is_done=is_done)

        # Prepared before the loop: restored kernels, and the weights of the head, which are copied.
        find_product = self.make_product(state)
        bins = model.softmax.get_bin_weights(model.embedding) if by_bins else [None]
        head_weights = bins[0]
        _, tokens, state = tf.while_loop(continues, draw, (tf.constant(0), tokens, state))
        return tokens, state

    def _draw_by_bins(
        self,
        sampler: Any,
        hidden: tf.Tensor,
        head_weights: Sequence[Any],
        uniforms: tf.Tensor,
        is_allowed: tf.Tensor,
        multiply: Multiply,
    ) -> tf.Tensor:
        """Returns the tokens that `sampler.choose_by_bins` draws, (B,), given states (B, D)."""
        softmax, embedding = self.cached.model.softmax, self.cached.model.embedding

        def compute_inside(index: int) -> tf.Tensor:
            weights = softmax.get_bin_weights(embedding)[index]
            return softmax.bin_log_probs(hidden, weights, multiply)

        head = softmax.head_log_probs(hidden, head_weights, multiply)
        bins = self.cached.model.config.bins
        return sampler.choose_by_bins(head, bins, compute_inside, uniforms, is_allowed)

    def read(
        self, tokens: tf.Tensor, state: LoopState, multiply: Multiply = PackedKernel.multiply
    ) -> LoopState:
        """Reads one token of each text, (B,) int32, and returns the new state."""
        model, entry, mask = self.cached.model, state.next_entry, self._make_mask(state)
        n_heads, d_head = model.config.n_head, model.config.d_head
        all_keys, all_values = [], []
        hidden = model.encoding.encode_embeddings(model.embedding(tokens[:, None]))  # (B, 1, D)
        hidden = tf.cast(hidden, self.dtype)
        for index, layer in enumerate(model.decoder_layers):
            hidden = model.encoding.encode_input(model, index, hidden)
            projected = matmul_rows(hidden, layer.attention.qkv_kernel, multiply)
            query, key, value = (
                tf.reshape(part, [-1, n_heads, d_head])
                for part in tf.split(projected[:, 0], 3, axis=-1)
            )
            # Write before reading, so that the ring buffers are updated in place.
            keys = ops.slice_update(state.keys[index], [0, 0, entry], _merge(key)[:, :, None])
            values = ops.slice_update(state.values[index], [0, entry, 0], _merge(value)[:, None])
            all_keys.append(keys)
            all_values.append(values)
            content_query, position_query = (
                bias_and_scale(query, tf.cast(bias, self.dtype))  # (B, N, W)
                for bias in model.encoding.get_biases(model, index)
            )
            content = _merge(content_query)[:, None] @ keys
            content = tf.reshape(content, [-1, n_heads, 1, self._ring_len])
            position = self._score_entries(position_query, self.positions[index], entry)
            weights = compute_weights(content, position, mask)
            weights = tf.cast(tf.reshape(weights, [-1, 1, self._ring_len]), self.dtype)
            attended = tf.reshape(weights @ values, [-1, 1, n_heads * d_head])
            change = matmul_rows(attended, layer.attention.o_kernel, multiply)
            hidden = layer.finish(hidden, change, multiply=multiply)
        is_token = tf.one_hot(tokens, model.config.n_token, on_value=True, off_value=False)
        return state._replace(
            keys=tuple(all_keys),
            values=tuple(all_values),
            next_entry=(entry + 1) % self._ring_len,
            filled=tf.minimum(state.filled + 1, self.cached.span.mem_len),
            hidden=hidden[:, 0],
            seen=tf.logical_or(state.seen, is_token),
        )

    def _make_mask(self, state: LoopState) -> tf.Tensor:
        """Returns the entries that the new token sees, (1, R) bool or (B, 1, 1, R)."""
        span = self.cached.span
        distances = (state.next_entry - tf.range(self._ring_len)) % self._ring_len
        furthest = span.mem_len - int(span.same_length and span.counts_self)
        mask = (distances <= furthest)[None]
        if not self.cached.mask_empty_memory:
            return mask
        is_filled = distances <= state.filled[:, None]
        return tf.logical_and(mask, is_filled)[:, None, None]

    def _score_entries(self, query: tf.Tensor, positions: tf.Tensor, entry: tf.Tensor) -> tf.Tensor:
        """Returns the position scores (B, N, 1, R) of queries (B, N, W) of tokens at `entry`."""
        rows = tf.transpose(query, [1, 0, 2])  # (N, B, W)
        scores = tf.transpose(rows @ positions, [1, 0, 2])
        n_shared = self._ring_len - positions.shape[2]
        if n_shared:  # distances beyond `clamp_len`
            scores = tf.concat([tf.repeat(scores[..., :1], n_shared, axis=-1), scores], axis=-1)
        # From distances R - 1, ..., 0 to entries. Slicing a doubled tensor would work too, but XLA
        # pads the operand of such a slice.
        return tf.roll(scores, entry + 1, axis=-1)[:, :, None]

    def make_product(self, state: LoopState) -> Callable[[LoopState], Multiply]:
        """Returns a function that returns how a step multiplies with packed kernels.

        Must be called outside the loop: for many rows, the kernels are restored once, before it.
        """
        if self.is_compiled and state.filled.shape[0] <= MAX_SINGLE_ROWS:
            return _multiply_few_rows
        restored = restore_kernels(self.cached.model.kernels, self.dtype)
        return lambda _: restored


def _multiply_few_rows(state: LoopState) -> Multiply:
    product = functools.partial(multiply_rows, guard=state.next_entry >= 0)
    return lambda kernel, inputs: kernel.multiply_stored(inputs, product)


def take_positions(cached: CachedModel) -> tuple[tf.Tensor, ...]:
    """Returns the position products of the distances P - 1, ..., 0, (N, W, P) for each layer.

    P is M + 1, or `clamp_len` + 1 if that is less. Larger distances use the first product; no token
    sees distances beyond M.
    """
    n_distances = cached.span.mem_len + 1
    if cached.span.clamp_len > 0:
        n_distances = min(n_distances, cached.span.clamp_len + 1)
    return tuple(
        tf.transpose(tf.cast(products[:, -n_distances:], get_loop_dtype(cached)), [0, 2, 1])
        for products in cached.positions
    )


def get_loop_dtype(cached: CachedModel) -> str:
    """Returns the dtype of the loop's activations; float32 on CPUs, where XLA is slow in others."""
    return cached.model.compute_dtype if has_accelerator() else "float32"


def _merge(states: tf.Tensor) -> tf.Tensor:
    """Returns states (B, N, H) as (B N, H)."""
    return tf.reshape(states, [-1, states.shape[-1]])
