"""The tensors that a compiled training step makes, in their order, from configs alone.

XLA gives a tensor memory from the instruction that makes it to the last one that reads it. This
module lists the instructions as `layers/fused_layer.py` and its neighbours issue them, so the
tensors that the backward pass keeps are those that it reads. The order, the copies in another
layout and the operations that XLA repeats for each reader are those in its buffer assignments
(`XLA_FLAGS=--xla_dump_to=FOLDER`); tensors without a row for each token, head or weight are left
out.

Letters: B rows, T segment, M memory, S = M + T, N heads, H head size, D `d_model`, W = N H,
I `d_inner`, E embedding size, n = B T tokens.
"""

from types import SimpleNamespace
from typing import NamedTuple

from txl_tf.config import ModelConfig, TrainConfig
from txl_tf.layers.chunks import choose_chunk, is_taken_at_once

FLOAT_BYTES = 4
LONGEST_SUMMED_AXIS = 32  # XLA sums longer ones in an instruction of its own
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Tensor:
    """A tensor of a step.

    Args:
        part: The part of the model to which it belongs.
        size: Bytes.
        made: Index of the instruction that makes it.
        is_result: Whether the step returns it, so that it lives to the end.

    Attributes:
        last: Index of the last instruction for which it needs memory.
    """

    def __init__(self, part: str, size: int, made: int, *, is_result: bool):
        self.part = part
        self.size = size
        self.made = self.last = made
        self.is_result = is_result


class Sizes(NamedTuple):
    """The numbers of entries of the tensors of a layer, B rows at a time.

    Args:
        hidden: (B, T, D).
        heads: (B, T, W), such as all queries.
        keys: (B, S, W), all keys or all values.
        memory: (B, M, 2 W), keys and values of the memory.
        scores: (B, N, T, S).
        shifted: (N, B T, 1 + S), the scores of the distances.
        distances: (N, 1 + S, H), the keys of the distances.
        inner: (B, T, I).
        slopes: (B, T, N).
    """

    hidden: int
    heads: int
    keys: int
    memory: int
    scores: int
    shifted: int
    distances: int
    inner: int
    slopes: int


def list_step_tensors(
    model: ModelConfig, training: TrainConfig, rows: int, *, is_widened: bool = False
) -> list[Tensor]:
    """Returns the tensors of a forward and backward pass, in the order in which they are made.

    Args:
        model: The model.
        training: Segment, memory, precision and `remat`.
        rows: Number of rows B that are computed at once.
        is_widened: Whether products of 16-bit tensors are computed from float32 copies, as XLA for
            CPUs does.
    """
    step = _Step(model, training, rows, is_widened=is_widened)
    step.run()
    return step.tensors


class _Step:
    """Records the tensors of a step while it walks through its instructions."""

    def __init__(self, model: ModelConfig, training: TrainConfig, rows: int, *, is_widened: bool):
        self.model, self.training, self.rows = model, training, rows
        self.width = DTYPE_BYTES[training.precision]
        self.is_widened = is_widened and self.width != FLOAT_BYTES
        self.tensors: list[Tensor] = []
        self.n_instructions = 0
        self.content_gradients: list[Tensor] = []
        n_heads, n_tokens = model.n_head, rows * training.window_len
        d_heads, n_keys = n_heads * model.d_head, training.mem_len + training.window_len
        self.n_tokens, self.d_heads, self.n_keys = n_tokens, d_heads, n_keys
        self.n_scored = rows * training.n_scored
        self.sizes = Sizes(
            hidden=n_tokens * model.d_model,
            heads=n_tokens * d_heads,
            keys=rows * n_keys * d_heads,
            memory=rows * training.mem_len * 2 * d_heads,
            scores=n_heads * n_tokens * n_keys,
            shifted=n_heads * n_tokens * (1 + n_keys),
            distances=(1 + n_keys) * d_heads,
            inner=n_tokens * model.d_inner,
            slopes=n_tokens * n_heads,
        )
        self.has_dropped_weights = bool(model.dropatt) or training.reset_at_documents

    # Tensors

    def make(
        self,
        part: str,
        n_entries: int,
        *read: Tensor | None,
        width: int = 0,
        is_result: bool = False,
    ) -> Tensor:
        """Records an instruction and returns the tensor that it makes.

        Args:
            part: The part of the model.
            n_entries: Number of entries.
            read: The tensors that the instruction reads.
            width: Bytes of an entry; those of the compute dtype if 0.
            is_result: Whether the step returns the tensor.
        """
        self.read(*read)
        size = n_entries * (width or self.width)
        tensor = Tensor(part, size, self.n_instructions, is_result=is_result)
        self.n_instructions += 1
        self.tensors.append(tensor)
        return tensor

    def read(self, *tensors: Tensor | None) -> None:
        """Notes that the next instruction reads tensors."""
        for tensor in tensors:
            if tensor is not None:
                tensor.last = self.n_instructions

    def overwrite(self, tensor: Tensor, *read: Tensor | None) -> Tensor:
        """Records an instruction that overwrites a tensor which nothing reads later."""
        self.read(tensor, *read)
        self.n_instructions += 1
        return tensor

    def multiply(self, part: str, n_entries: int, *read: Tensor | None) -> Tensor:
        """Records a product and its rounding to the compute dtype."""
        product = self.make(part, n_entries, *read, width=self.operand)
        return self.round(product, n_entries)

    def round(self, tensor: Tensor, n_entries: int) -> Tensor:
        """Returns a product in the compute dtype."""
        return self.make(tensor.part, n_entries, tensor) if self.is_widened else tensor

    def widen(self, tensor: Tensor, n_entries: int) -> Tensor:
        """Returns the operand of a product: the tensor, or a copy in float32."""
        if not self.is_widened:
            return tensor
        return self.make(tensor.part, n_entries, tensor, width=FLOAT_BYTES)

    def return_gradient(self, n_entries: int, *read: Tensor | None) -> Tensor:
        """Records the gradient of a weight."""
        return self.make("results", n_entries, *read, width=FLOAT_BYTES, is_result=True)

    # The model

    def run(self) -> None:
        """Walks through the forward and the backward pass."""
        model, sizes = self.model, self.sizes
        table = None
        if model.input_rate or self.is_widened:  # otherwise a constant
            table = self.make("hidden states", self.n_keys * model.d_model, width=self.operand)
        embedded = self.embed()
        # With dropout, the first layer's input is also its memory after the step, if that is all.
        is_memory = bool(model.input_rate) and self.training.mem_len == self.training.window_len
        hidden = self.make("hidden states", sizes.hidden, *embedded, is_result=is_memory)
        # Nothing but the arguments is needed for these, and XLA computes them first.
        bins = [self.prepare_bin(index) for index in range(len(model.bins))]
        early = [self.prepare_layer(table) for _ in range(model.n_layer)]
        for tensors in early:
            self.round_memory(tensors)
        layers: list[SimpleNamespace] = []
        for tensors in early:
            if not hidden.is_result:
                self.return_memory(hidden)
            kept = self.run_layer(hidden, tensors)
            if self.training.remat:
                kept = self.keep_input(kept, layers)
            layers.append(kept)
            hidden = kept.output
        gradient = self.run_softmax(hidden, bins)
        for kept in reversed(layers):
            if self.training.remat:
                kept = self.run_layer_again(kept, table)
            gradient = self.differentiate_layer(kept, gradient)
        # XLA sums short axes in the instruction that needs the sums: here the gradient of u.
        if max(self.rows, self.training.window_len) <= LONGEST_SUMMED_AXIS:
            self.read(*self.content_gradients)
        self.differentiate_embedding(embedded, gradient)

    def embed(self) -> list[Tensor]:
        """Returns the embeddings of each bin that the gradients of the projections need."""
        model = self.model
        n_tables = len(model.bins) if model.div_val > 1 else 1
        is_kept = [model.has_embedding_projection(index) for index in range(n_tables)]
        if n_tables == 1 and not model.input_rate:
            is_kept = [True]  # scaled again in the backward pass
        return [
            self.make("embedding", self.n_tokens * model.bin_width(index))
            for index in range(n_tables)
            if is_kept[index]
        ]

    def differentiate_embedding(self, embedded: list[Tensor], gradient: Tensor) -> None:
        model = self.model
        parts = [
            self.make("embedding", self.sizes.hidden, gradient, width=self.operand)
            for _ in embedded
        ]
        for tensor, part in zip(embedded, parts, strict=True):
            self.make("embedding", self.n_tokens * model.d_embed, tensor, part)

    # A layer

    @property
    def operand(self) -> int:
        """Bytes of an entry of a product's operand."""
        return FLOAT_BYTES if self.is_widened else self.width

    def return_memory(self, hidden: Tensor) -> None:
        """Records the memory after the step, (B, M, D)."""
        if self.training.mem_len:
            n_entries = self.rows * self.training.mem_len * self.model.d_model
            self.make("results", n_entries, hidden, is_result=True)

    def prepare_layer(
        self, table: Tensor | None, again: SimpleNamespace | None = None
    ) -> SimpleNamespace:
        """Records keys and values of the memory and the keys of the distances.

        In 16 bits the kernels come before them, rounded; a layer that is computed again has them.
        """
        model, training, memory = self.model, self.training, None
        n_square = model.d_model * self.d_heads
        kernels: list[Tensor | None] = [None] * 6
        if again:
            kernels = again.kernels
        elif self.width != FLOAT_BYTES:
            n_inner = model.d_model * model.d_inner
            of_memory = 2 * n_square * bool(training.mem_len)
            kernels = [
                self.make("kernels in 16 bits", n_entries, width=self.operand)
                for n_entries in (3 * n_square, n_square, n_inner, n_inner, of_memory, n_square)
            ]
        states = None
        if training.mem_len:
            if self.is_widened:
                n_entries = self.rows * training.mem_len * model.d_model
                states = self.make("hidden states", n_entries, width=self.operand)
            memory = self.make("heads", self.sizes.memory, states, kernels[4], width=self.operand)
        distances = self.make("heads", self.sizes.distances, kernels[5], width=self.operand)
        return SimpleNamespace(
            kernels=kernels, states=states, memory=memory, table=table, distances=distances
        )

    def round_memory(self, early: SimpleNamespace) -> None:
        """Rounds the keys and values of the memory, after the products of all layers."""
        if early.memory:
            early.memory = self.round(early.memory, self.sizes.memory)

    def run_layer(self, hidden: Tensor, early: SimpleNamespace) -> SimpleNamespace:
        """Records the forward pass of a layer and returns the tensors that its gradient reads."""
        sizes, operand = self.sizes, self.operand
        kept = SimpleNamespace(**vars(early), hidden=hidden)
        kept.input = self.widen(hidden, sizes.hidden)
        projected = self.multiply("heads", 3 * sizes.heads, kept.input)
        queries = self.make("heads", sizes.heads, projected, width=operand)
        kept.content = self.make("heads", sizes.heads, projected, width=operand)
        values = self.make("heads", sizes.keys, projected, early.memory)
        kept.position = self.make("heads", sizes.heads, projected, width=operand)
        keys = self.make("heads", sizes.keys, projected, early.memory)
        # Products need some operands in one layout here and in another one in their gradients.
        by_head = self.make("heads", sizes.keys, values, width=operand)
        kept.values = self.make("heads", sizes.keys, values, width=operand)
        position = self.make(
            "attention", sizes.shifted, kept.position, early.distances, width=operand
        )
        transposed = self.make("heads", sizes.keys, keys, width=operand)
        kept.keys = self.make("heads", sizes.keys, keys, width=operand)
        content = self.make("attention", sizes.scores, queries, transposed, width=operand)
        position = self.round(position, sizes.shifted)
        content = self.round(content, sizes.scores)
        self.make("attention", sizes.scores, content, position, width=FLOAT_BYTES)
        if self.width == FLOAT_BYTES:
            exponentials = self.overwrite(content, position)
            kept.weights = self.overwrite(exponentials)
        else:
            exponentials = self.make(
                "attention", sizes.scores, position, content, width=FLOAT_BYTES
            )
            kept.weights = self.make("attention", sizes.scores, exponentials)
        weights = self.drop_weights(kept.weights)
        kept.dropped = None if self.has_dropped_weights else weights
        kept.attended = self.multiply("heads", sizes.heads, weights, by_head)
        kept.joined = kept.attended  # of a single head
        if self.model.n_head > 1 or self.is_widened:
            kept.joined = self.make("heads", sizes.heads, kept.attended, width=operand)
        # The gradient of the norm computes its input again, from `hidden` and what is added.
        kept.attention_change = self.multiply("hidden states", sizes.hidden, kept.joined)
        hidden = self.make("hidden states", sizes.hidden, kept.attention_change, hidden)
        kept.middle = self.widen(hidden, sizes.hidden)
        # The product and its rectified values: the gradients of both kernels read one each.
        kept.inner = self.make("feed-forward", sizes.inner, kept.middle, width=operand)
        kept.rectified = self.make("feed-forward", sizes.inner, kept.inner)
        if self.is_widened:
            kept.inner, rectified = kept.rectified, kept.rectified
            kept.rectified = self.widen(rectified, sizes.inner)
        kept.change = self.multiply("hidden states", sizes.hidden, kept.rectified)
        kept.output = self.make("hidden states", sizes.hidden, kept.change, hidden)
        return kept

    def drop_weights(self, weights: Tensor) -> Tensor:
        """Returns the attention weights after dropout, as the operand of a product."""
        if not self.has_dropped_weights and not self.is_widened:
            return weights
        return self.make("attention", self.sizes.scores, weights, width=self.operand)

    def differentiate_layer(self, kept: SimpleNamespace, gradient: Tensor) -> Tensor:
        """Records the backward pass of a layer; takes and returns the gradient of its output."""
        gradient = self.differentiate_feed_forward(kept, gradient)
        return self.differentiate_attention(kept, gradient)

    def differentiate_feed_forward(self, kept: SimpleNamespace, gradient: Tensor) -> Tensor:
        sizes, operand = self.sizes, self.operand
        n_kernel = self.model.d_model * self.model.d_inner
        d_change = self.differentiate_norm(gradient, kept.change)
        d_rectified = self.make(
            "feed-forward", sizes.inner, d_change, kept.kernels[3], width=operand
        )
        self.return_gradient(n_kernel, kept.rectified, d_change)
        d_inner = self.make("feed-forward", sizes.inner, d_rectified, kept.inner, width=operand)
        d_middle = self.make("hidden states", sizes.hidden, d_inner, kept.kernels[2], width=operand)
        self.return_gradient(n_kernel, kept.middle, d_inner)
        return self.overwrite(gradient, d_middle, kept.change)

    def differentiate_norm(self, gradient: Tensor, change: Tensor) -> Tensor:
        """Returns the gradient of what a residual connection adds."""
        size, operand = self.sizes.hidden, self.operand
        self.make("hidden states", size, gradient, change, width=operand)
        return self.make("hidden states", size, gradient, change, width=operand)

    def differentiate_attention(self, kept: SimpleNamespace, gradient: Tensor) -> Tensor:
        sizes, operand, n_square = self.sizes, self.operand, self.model.d_model * self.d_heads
        has_memory = bool(self.training.mem_len)
        d_change = self.differentiate_norm(gradient, kept.attention_change)
        d_joined = self.multiply("heads", sizes.heads, d_change, kept.kernels[1])
        self.return_gradient(n_square, kept.joined, d_change)
        d_attended = self.make("heads", sizes.heads, d_joined, width=operand)
        weights = kept.dropped or self.drop_weights(kept.weights)
        transposed = self.make("heads", sizes.heads, d_joined, width=operand)
        slopes = self.make("heads", sizes.slopes, d_joined, kept.attended, width=FLOAT_BYTES)
        d_weights = self.make("attention", sizes.scores, d_attended, kept.values, width=operand)
        d_values = self.multiply("heads", sizes.keys, transposed, weights)
        # The weights are delayed by a zero that depends on the gradient if some are dropped.
        late = d_joined if self.has_dropped_weights else None
        places = [d_weights, kept.weights]
        # With a single row the scores of the distances need no other order of the axes, and XLA
        # computes their gradient from the weights, too.
        is_single = self.rows == 1
        if is_single:
            d_scores = self.make("attention", sizes.scores, *places, slopes, late)
        else:
            d_scores = self.overwrite(places[self.is_widened], *places, slopes, late)
        d_scores = self.widen(d_scores, sizes.scores)
        if is_single:
            d_position = self.make("attention", sizes.shifted, *places, slopes, width=operand)
        d_segment_values = self.make("heads", sizes.heads, d_values, width=operand)
        d_content = self.multiply("heads", sizes.heads, d_scores, kept.keys)
        if not is_single:
            d_position = self.make("attention", sizes.shifted, d_scores, width=operand)
        self.content_gradients.append(d_content)
        d_keys = self.multiply("heads", sizes.keys, kept.content, d_scores)
        d_shifted = self.multiply("heads", sizes.heads, d_position, kept.distances)
        d_distances = self.make("heads", sizes.distances, kept.position, d_position, width=operand)
        d_segment_keys = self.make("heads", sizes.heads, d_keys, width=operand)
        d_memory = None
        if has_memory:
            d_memory = self.make("heads", sizes.memory, d_values, d_keys, width=operand)
        d_queries = self.make("heads", sizes.heads, d_content, d_shifted, width=operand)
        d_rows = self.make("heads", self.n_keys * self.d_heads, d_distances, width=operand)
        of_memory = None
        if has_memory:
            of_memory = self.make("heads", 2 * n_square, d_memory, kept.states, width=FLOAT_BYTES)
        parts = d_segment_values, d_segment_keys, d_queries
        d_segment = self.make("heads", 3 * sizes.heads, *parts, width=operand)
        self.return_gradient(n_square, d_rows, kept.table)
        d_input = self.make(
            "hidden states", sizes.hidden, d_segment, kept.kernels[0], width=operand
        )
        of_segment = self.return_gradient(3 * n_square, kept.input, d_segment)
        self.overwrite(gradient, d_input, kept.attention_change)
        self.overwrite(of_segment, of_memory)
        return gradient

    # Gradient checkpointing

    def keep_input(self, kept: SimpleNamespace, layers: list[SimpleNamespace]) -> SimpleNamespace:
        """Returns what the forward pass keeps of a layer that the backward pass computes again.

        XLA keeps what the layer below normalized last, and normalizes it again. Only without
        dropout it takes the input from the results, if the memory after the step is all of it.
        """
        sources = [layers[-1].change if layers else kept.hidden]
        if self.training.mem_len == self.training.window_len and not self.model.dropout:
            sources = []
        return SimpleNamespace(
            sources=sources, kernels=kept.kernels, change=kept.change, output=kept.output
        )

    def run_layer_again(self, kept: SimpleNamespace, table: Tensor | None) -> SimpleNamespace:
        """Records the forward pass of a layer in the backward pass."""
        hidden = self.make("hidden states", self.sizes.hidden, *kept.sources)
        early = self.prepare_layer(table, kept)
        self.round_memory(early)
        # All that goes into the layer is copied, so that XLA does not join both computations.
        if table is not None:
            n_entries = self.n_keys * self.model.d_model
            early.table = self.make("hidden states", n_entries, table, width=self.operand)
        if self.training.mem_len and early.states is None:
            n_entries = self.rows * self.training.mem_len * self.model.d_model
            early.states = self.make("hidden states", n_entries)
        return self.run_layer(hidden, early)

    # Softmax

    def prepare_bin(self, index: int) -> SimpleNamespace:
        """Records the tensors of a bin that do not depend on the hidden states."""
        model = self.model
        low, high = model.bins[index]
        width, n_rows = model.bin_width(index), high - low
        n_rows += len(model.cutoffs) * (index == 0)
        is_whole = index == 0 and is_taken_at_once(self.n_scored, n_rows)
        is_slice = bool(model.cutoffs) and (index == 0 or model.div_val == 1)
        bin_ = SimpleNamespace(index=index, n_rows=n_rows, width=width, is_whole=is_whole)
        bin_.chunk = self.n_scored if is_whole else choose_chunk(self.n_scored, n_rows)
        bin_.table = self.make_float(n_rows * width) if is_slice else None
        if not is_whole:
            # The gradient of a table is a result; those of its slices are joined to one.
            is_result = not model.cutoffs or (model.div_val > 1 and index > 0)
            bin_.gradient = self.make_float(n_rows * width, is_result=is_result)
            bin_.d_hidden = self.make_float(self.sizes.hidden)
        return bin_

    def make_float(self, n_entries: int, *read: Tensor | None, is_result: bool = False) -> Tensor:
        return self.make("softmax", n_entries, *read, width=FLOAT_BYTES, is_result=is_result)

    def run_softmax(self, hidden: Tensor, bins: list[SimpleNamespace]) -> Tensor:
        """Records both passes of the loss and returns the gradient of the hidden states."""
        model = self.model
        if model.output_rate or self.width != FLOAT_BYTES:
            hidden = self.make_float(self.sizes.hidden, hidden)
        head, *tails = bins
        logits = None
        if head.is_whole:
            states = hidden
            if model.projects_hidden(0):
                states = self.make_float(self.n_scored * head.width, hidden)
            logits = self.make_float(self.n_scored * head.n_rows, states, head.table)
            if states is hidden:
                biased = self.make_float(self.n_scored * head.n_rows, logits)
        loops = [*([] if head.is_whole else [head]), *reversed(tails)]
        for bin_ in loops:
            self.run_chunk(hidden, bin_)
        if logits:
            if states is not hidden:
                biased = self.make_float(self.n_scored * head.n_rows, logits)
            exponentials = self.overwrite(biased)
        for bin_ in loops:
            self.differentiate_chunk(hidden, bin_)
        gradients = [bin_.d_hidden for bin_ in loops]
        if logits:
            self.make_float(self.n_scored, exponentials)
            d_logits = self.overwrite(logits)
            d_states = self.make_float(self.n_scored * head.width, d_logits, head.table)
            is_table = not model.cutoffs
            head.gradient = self.make_float(
                head.n_rows * head.width, states, d_logits, is_result=is_table
            )
            if states is not hidden:
                self.make_float(head.width * model.d_model, d_states, hidden)
                d_states = self.make_float(self.sizes.hidden, d_states)
            gradients.append(d_states)
        gradient = self.make("hidden states", self.sizes.hidden, *gradients)
        if model.cutoffs:
            self.join_tables(bins)
        return gradient

    def join_tables(self, bins: list[SimpleNamespace]) -> None:
        """Records the gradient of a table whose slices belong to several bins."""
        if self.model.div_val > 1:
            n_rows = self.model.bins[0][1]  # without those of the clusters
            self.return_gradient(n_rows * bins[0].width, bins[0].gradient)
            return
        n_entries = self.model.n_token * self.model.d_embed
        self.return_gradient(n_entries, *(bin_.gradient for bin_ in bins))

    def run_chunk(self, hidden: Tensor, bin_: SimpleNamespace) -> None:
        """Records a turn of the loop over the chunks of a bin in the forward pass."""
        logits = self.compute_chunk_logits(hidden, bin_)
        biased = self.make_float(bin_.chunk * bin_.n_rows, logits)
        exponentials = self.overwrite(biased)
        self.make_float(bin_.chunk, exponentials, logits)

    def compute_chunk_logits(self, hidden: Tensor, bin_: SimpleNamespace) -> Tensor:
        rows = self.make_float(bin_.chunk * self.model.d_model, hidden)
        if self.model.projects_hidden(bin_.index):
            rows = self.make_float(bin_.chunk * bin_.width, rows)
        return self.make_float(bin_.chunk * bin_.n_rows, rows, bin_.table)

    def differentiate_chunk(self, hidden: Tensor, bin_: SimpleNamespace) -> None:
        """Records a turn of the loop over the chunks of a bin in the backward pass."""
        logits = self.compute_chunk_logits(hidden, bin_)
        d_logits = self.overwrite(logits)
        d_rows = self.make_float(bin_.chunk * self.model.d_model, d_logits)
        d_table = self.make_float(bin_.n_rows * bin_.width, d_logits)
        # They are added to the sums of all chunks, in their place. What the loop reads stays alive.
        self.make_float(1, d_rows, d_table, bin_.gradient, bin_.d_hidden, bin_.table, hidden)
