"""The compiled generation loop: one token at a time, at a constant cost per token."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf
from keras import ops

from txl_tf.generation.sampling import (
    SamplingTensors,
    choose_tokens,
    choose_tokens_by_bins,
    penalize,
)
from txl_tf.layers.attention import add_bias, compute_weights
from txl_tf.layers.fused.for_xla import matmul_rows
from txl_tf.layers.packed_kernel import Multiply, restore_kernels
from txl_tf.models.cached_model import CachedModel, CachedState
from txl_tf.models.compilation import has_accelerator
from txl_tf.models.quantization import multiply_rows

MAX_SINGLE_ROWS = 4  # for more rows, products with restored kernels are faster


class LoopState(NamedTuple):
    """The state of the texts of a batch: a KV cache in ring buffers, and the last hidden state.

    Each ring buffer has R = M + 1 slots. The next token overwrites the oldest one, so reading a
    token moves no other. Rows and heads share one axis and the slots of the keys come last, as the
    matrix products expect them: any other layout would be copied for every token.
    """

    keys: tuple[tf.Tensor, ...]  # (B N, H, R) for each layer
    values: tuple[tf.Tensor, ...]  # (B N, R, H) for each layer
    next_slot: tf.Tensor  # () int32, the ring-buffer slot of the next token
    filled: tf.Tensor  # (B,) int32, the number of the M slots before `next_slot` that hold tokens
    hidden: tf.Tensor  # (B, D), of the last token read, which predicts the next token
    seen: tf.Tensor  # (B, V) bool, whether the text contains each token
    is_done: tf.Tensor  # (B,) bool, whether the text has ended

    def take_row(self, row: int) -> "LoopState":
        """Returns the state of one text."""

        def take(tensor: tf.Tensor) -> tf.Tensor:
            size = tensor.shape[0] // self.filled.shape[0] if tensor.shape.rank else 0
            return tensor[row * size : (row + 1) * size] if size else tensor

        return tf.nest.map_structure(take, self)


def join_rows(rows: Sequence[LoopState]) -> LoopState:
    """Returns the joint state of texts, with their ring buffers rotated to the first one's slot."""
    first = rows[0]
    shifts = [first.next_slot - row.next_slot for row in rows]
    rotated = [
        row._replace(
            keys=tuple(tf.roll(keys, shift, axis=2) for keys in row.keys),
            values=tuple(tf.roll(values, shift, axis=1) for values in row.values),
        )
        for row, shift in zip(rows, shifts, strict=True)
    ]

    def join(*tensors: tf.Tensor) -> tf.Tensor:
        return tf.concat(tensors, axis=0) if tensors[0].shape.rank else tensors[0]

    return tf.nest.map_structure(join, *rotated)


# Returns the next tokens, (B,) int32, given the state, of which it reads only `hidden` and `seen`,
# a random number for each text, (B,), the sampling settings, and the products with packed kernels.
Choose = Callable[[LoopState, tf.Tensor, SamplingTensors, Multiply], tf.Tensor]


class TokenLoop:
    """Draws tokens one at a time, in a TensorFlow graph that XLA can compile.

    Args:
        cached: The model.
        positions: The value of `take_positions`, or variables of it.
        n_candidates: Number of most likely tokens to draw from, V to sort all; `None` to draw from
            all without sorting.
        by_bins: Whether to compute only the bins of the softmax that are needed; for models with
            cutoffs, and sampling settings that allow it.
        is_compiled: Whether XLA compiles the loop.

    Attributes:
        draw: `run` as a function that is compiled at its first call.
        replay: `read_all` likewise.
    """

    def __init__(
        self,
        cached: CachedModel,
        positions: Sequence[tf.Tensor],
        n_candidates: int | None = None,
        *,
        by_bins: bool = False,
        is_compiled: bool = False,
    ):
        self.cached = cached
        self.positions = positions
        self.n_candidates = n_candidates
        self.by_bins = by_bins
        self.is_compiled = is_compiled
        self.dtype = get_loop_dtype(cached)
        self._ring_len = cached.span.mem_len + 1
        compile_loop = functools.partial(tf.function, jit_compile=is_compiled, autograph=False)
        self.draw, self.replay = compile_loop(self.run), compile_loop(self.read_all)

    def begin(self, state: CachedState, seen: tf.Tensor) -> LoopState:
        """Returns the state after prompts that were read in segments."""

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
        self, state: LoopState, uniforms: tf.Tensor, n_new: tf.Tensor, sampling: SamplingTensors
    ) -> tuple[tf.Tensor, LoopState]:
        """Draws tokens and reads each of them.

        Args:
            state: The current state.
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
            multiply = find_product(state)
            drawn = choose(state, uniforms[step], sampling, multiply)
            kept = tf.where(state.is_done, -1, drawn)
            tokens = tf.tensor_scatter_nd_update(tokens, [[step]], [kept])
            return step + 1, tokens, self.read(drawn, state, sampling, multiply)

        find_product, choose = self.make_product(state), self.make_choice()
        _, tokens, state = tf.while_loop(continues, draw, (tf.constant(0), tokens, state))
        return tokens, state

    def read_all(
        self, state: LoopState, tokens: tf.Tensor, n_new: tf.Tensor, sampling: SamplingTensors
    ) -> LoopState:
        """Reads the first `n_new` of given tokens, (C, B) int32, and returns the new state."""
        find_product = self.make_product(state)

        def read(step: tf.Tensor, state: LoopState) -> tuple[tf.Tensor, LoopState]:
            return step + 1, self.read(tokens[step], state, sampling, find_product(state))

        _, state = tf.while_loop(lambda step, _: step < n_new, read, (tf.constant(0), state))
        return state

    def make_choice(self) -> Choose:
        """Returns the function that draws the next tokens. It must be made outside of the loop."""
        softmax, embedding = self.cached.model.softmax, self.cached.model.embedding

        def choose(
            state: LoopState, uniforms: tf.Tensor, sampling: SamplingTensors, multiply: Multiply
        ) -> tf.Tensor:
            log_probs = softmax.log_probs(state.hidden[:, None], embedding, multiply)[:, 0]
            logits = penalize(log_probs, state.seen, sampling)
            return choose_tokens(logits, uniforms, sampling, self.n_candidates)

        if not self.by_bins:
            return choose
        head_weights = softmax.get_bin_weights(embedding)[0]  # outside of the loop: it is a copy

        def choose_by_bins(
            state: LoopState, uniforms: tf.Tensor, sampling: SamplingTensors, multiply: Multiply
        ) -> tf.Tensor:
            def compute_inside(index: int) -> tf.Tensor:
                weights = softmax.get_bin_weights(embedding)[index]
                return softmax.bin_log_probs(state.hidden, weights, multiply)

            head = softmax.head_log_probs(state.hidden, head_weights, multiply)
            return choose_tokens_by_bins(
                head, self.cached.model.config.bins, compute_inside, uniforms, sampling
            )

        return choose_by_bins

    def read(
        self, tokens: tf.Tensor, state: LoopState, sampling: SamplingTensors, multiply: Multiply
    ) -> LoopState:
        """Reads one token of each text, (B,) int32, and returns the new state."""
        mask = self._make_mask(state)
        hidden = tf.cast(self.cached.model.embedding(tokens[:, None]), self.dtype)  # (B, 1, D)
        keys, values = list(state.keys), list(state.values)
        for index in range(len(keys)):
            hidden, keys[index], values[index] = self._read_layer(
                index, hidden, state, mask, multiply
            )
        is_token = tf.one_hot(
            tokens, self.cached.model.config.n_token, on_value=True, off_value=False
        )
        is_stop = tf.reduce_any(tokens[:, None] == sampling.stops, axis=1)
        return LoopState(
            tuple(keys),
            tuple(values),
            next_slot=(state.next_slot + 1) % self._ring_len,
            filled=tf.minimum(state.filled + 1, self.cached.span.mem_len),
            hidden=hidden[:, 0],
            seen=tf.logical_or(state.seen, is_token),
            is_done=tf.logical_or(state.is_done, is_stop),
        )

    def _read_layer(
        self,
        index: int,
        hidden: tf.Tensor,
        state: LoopState,
        mask: tf.Tensor,
        multiply: Multiply,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the output of a layer, (B, 1, D), and its ring buffers with the new token."""
        layer = self.cached.model.decoder_layers[index]
        n_heads, d_head = layer.attention.n_head, layer.attention.d_head
        projected = matmul_rows(hidden, layer.attention.qkv_kernel, multiply)
        query, key, value = (
            tf.reshape(part, [-1, 1, n_heads, d_head]) for part in tf.split(projected, 3, axis=-1)
        )
        # Write before reading, so that the ring buffers are updated in place.
        slot = state.next_slot
        keys = ops.slice_update(state.keys[index], [0, 0, slot], _merge(key[:, 0])[:, :, None])
        values = ops.slice_update(state.values[index], [0, slot, 0], _merge(value[:, 0])[:, None])
        content_query, position_query = (
            add_bias(query, tf.cast(bias, self.dtype))
            for bias in self.cached.model.get_biases(index)
        )
        content = tf.transpose(content_query, [0, 2, 1, 3])
        content = tf.reshape(content, [-1, 1, d_head]) @ keys
        content = tf.reshape(content, [-1, n_heads, 1, self._ring_len])
        position = self._score_slots(position_query, self.positions[index], slot)
        weights = compute_weights(content, position, mask)
        weights = tf.cast(tf.reshape(weights, [-1, 1, self._ring_len]), self.dtype)
        attended = tf.reshape(weights @ values, [-1, 1, n_heads * d_head])
        change = matmul_rows(attended, layer.attention.o_kernel, multiply)
        return layer.finish(hidden, change, multiply=multiply), keys, values

    def _make_mask(self, state: LoopState) -> tf.Tensor:
        """Returns the slots that the new token sees, (1, R) bool or (B, 1, 1, R)."""
        span = self.cached.span
        distances = (state.next_slot - tf.range(self._ring_len)) % self._ring_len
        furthest = span.mem_len - int(span.same_length and span.counts_self)
        mask = (distances <= furthest)[None]
        if not self.cached.mask_empty_memory:
            return mask
        is_filled = distances <= state.filled[:, None]
        return tf.logical_and(mask, is_filled)[:, None, None]

    def _score_slots(self, query: tf.Tensor, positions: tf.Tensor, slot: tf.Tensor) -> tf.Tensor:
        """Returns the position scores (B, N, 1, R) of queries (B, 1, N, H) of a token at `slot`."""
        rows = tf.transpose(query[:, 0], [1, 0, 2])  # (N, B, H)
        scores = tf.transpose(rows @ positions, [1, 0, 2])
        n_shared = self._ring_len - positions.shape[2]
        if n_shared:  # distances beyond `clamp_len`
            scores = tf.concat([tf.repeat(scores[..., :1], n_shared, axis=-1), scores], axis=-1)
        # From the distances R - 1, ..., 0 to the slots. Slicing a doubled tensor would work too,
        # but XLA pads the operand of such a slice.
        return tf.roll(scores, slot + 1, axis=-1)[:, :, None]

    def make_product(self, state: LoopState) -> Callable[[LoopState], Multiply]:
        """Returns the function that tells how a step multiplies with packed kernels.

        It must be made outside of the loop: for many rows, kernels are restored once, before it.
        """
        if self.is_compiled and state.filled.shape[0] <= MAX_SINGLE_ROWS:
            return _multiply_few_rows
        restored = restore_kernels(self.cached.model.kernels, self.dtype)
        return lambda _: restored


def _multiply_few_rows(state: LoopState) -> Multiply:
    product = functools.partial(multiply_rows, guard=state.next_slot >= 0)
    return lambda kernel, inputs: kernel.multiply_stored(inputs, product)


def take_positions(cached: CachedModel) -> tuple[tf.Tensor, ...]:
    """Returns the position products of the distances P - 1, ..., 0, (N, H, P) for each layer.

    P is M + 1, or `clamp_len` + 1 if that is less. Further distances have the products of the
    first; no token sees those beyond M.
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
