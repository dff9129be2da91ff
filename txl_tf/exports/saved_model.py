"""The functions of a SavedModel: pure functions of tensors that any number of threads may call."""

import math
from typing import Any

import tensorflow as tf

from txl_tf.data.text.tokenizer import Detokenizer, Tokenizer
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.generation.sampling import UNIFORMS_PER_BLOCK, StandardSampler, draw_uniforms
from txl_tf.generation.token_loop import TokenLoop, take_positions
from txl_tf.layers.memory import clear_rows
from txl_tf.models.cached_model import CachedModel, CachedState
from txl_tf.runs.checkpoint import name_variables

Tensors = dict[str, tf.Tensor]


class ServedModel(tf.Module):
    """The content of a SavedModel: weights, position products, vocabulary and functions.

    Without a vocabulary, it has only the signatures that take ids.
    """

    def __init__(self, cached: CachedModel, vocabulary: Vocabulary | None, batch_size: int):
        super().__init__(name="txl_tf")
        self._cached = cached
        self._batch_size = batch_size
        self.weights = name_variables(cached.model)
        self.positions = cached.positions
        self.tokenizer = None if vocabulary is None else StrictTokenizer(vocabulary)

    def make_signatures(self) -> dict[str, tf.function]:
        """Returns the signatures by name; as attributes, they would be traced a second time."""
        ragged = tf.RaggedTensorSpec((None, None), tf.int32)
        # Both scoring signatures share this function, so it is traced and saved once.
        score = tf.function(self.score, input_signature=[ragged], autograph=False)
        signatures = _make_id_signatures(score, self._cached)
        if self.tokenizer is not None:
            signatures["score_text"] = _make_score_text(score, self.tokenizer)
            signatures["generate_text"] = self._make_generate_text(self.tokenizer)
        return signatures

    def score(self, texts: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns -log p of each token in nats, 0 for the first of each text, ragged (n, ids)."""
        # Batches of texts of similar lengths need little padding.
        order = tf.argsort(texts.row_lengths(), stable=True)
        ordered = tf.gather(texts, order)
        losses = tf.map_fn(
            lambda start: self._score_batch(ordered[start : start + self._batch_size]),
            tf.range(0, tf.shape(order)[0], self._batch_size),
            fn_output_signature=tf.RaggedTensorSpec([None], tf.float32),
            parallel_iterations=1,
        )
        nats = tf.RaggedTensor.from_row_splits(losses.flat_values, ordered.row_splits)
        return tf.gather(nats, tf.argsort(order))

    def _score_batch(self, texts: tf.RaggedTensor) -> tf.Tensor:
        """Returns the losses of a batch of texts, concatenated, (ids,) float32."""
        ids, lengths = texts.to_tensor(), tf.cast(texts.row_lengths(), tf.int32)
        n_rows, memoryless = tf.shape(ids)[0], self._cached.without_memory()
        nats = tf.cond(
            tf.shape(ids)[1] <= min(self._cached.max_len_without_memory, self._cached.tgt_len),
            lambda: memoryless.score_ids(ids, memoryless.initial_state(n_rows), lengths)[0],
            lambda: self.score_rows(ids, lengths, self._cached.initial_state(n_rows))[0],
        )
        return tf.RaggedTensor.from_tensor(nats, lengths).flat_values

    def score_rows(
        self, ids: tf.Tensor, lengths: tf.Tensor, state: CachedState
    ) -> tuple[tf.Tensor, CachedState]:
        """Scores rows (B, n) int32 of any length in segments; see `CachedModel.score_ids`."""
        tgt_len = self._cached.tgt_len
        losses = tf.TensorArray(
            tf.float32, size=0, dynamic_size=True, infer_shape=False, element_shape=[None, None]
        )

        def score_next(
            index: tf.Tensor, losses: tf.TensorArray, state: CachedState
        ) -> tuple[tf.Tensor, tf.TensorArray, CachedState]:
            start = index * tgt_len
            counts = tf.clip_by_value(lengths - start, 0, tgt_len)
            segment = ids[:, start : start + tgt_len]
            nats, state = _keep_shapes(self._cached.score_ids(segment, state, counts), state)
            return index + 1, losses.write(index, tf.transpose(nats)), state

        _, losses, state = tf.while_loop(
            lambda index, *_: index * tgt_len < tf.shape(ids)[1],
            score_next,
            (tf.constant(0), losses, state),
            parallel_iterations=1,
        )
        return tf.transpose(losses.concat()), state

    def _make_generate_text(self, tokenizer: "StrictTokenizer") -> tf.function:
        """Returns the signature that continues a text; the unknown symbol is never drawn."""
        cached, vocabulary = self._cached, tokenizer.vocabulary
        n_token = len(vocabulary)
        detokenizer = Detokenizer(vocabulary)
        is_allowed = [symbol != vocabulary.unknown for symbol in vocabulary.symbols]
        signature = [
            tf.TensorSpec((), tf.string, "text"),
            tf.TensorSpec((), tf.int32, "length"),
            tf.TensorSpec((), tf.float32, "temperature"),
            tf.TensorSpec((), tf.int32, "top_k"),
            tf.TensorSpec((), tf.int32, "seed"),
        ]

        @tf.function(input_signature=signature, autograph=False)
        def generate_text(
            text: tf.Tensor,
            length: tf.Tensor,
            temperature: tf.Tensor,
            top_k: tf.Tensor,
            seed: tf.Tensor,
        ) -> Tensors:
            ids = tokenizer.tokenize(text[None]).to_tensor()
            is_temperature = (temperature >= 0) & tf.math.is_finite(temperature)
            rules = {
                "`text` must hold at least one token": tf.shape(ids)[1] > 0,
                "`length` must not be negative": length >= 0,
                "`temperature` must be 0 or more": is_temperature,
                "`top_k` must be 0, for all, or more": top_k >= 0,
                "`seed` must not be negative": seed >= 0,
            }
            with tf.control_dependencies(_check(rules)):
                ids, length = tf.ensure_shape(ids, (1, None)), tf.identity(length)
            _, state = self.score_rows(ids, tf.shape(ids)[1][None], cached.initial_state(1))
            blocks = tf.map_fn(
                lambda block: draw_uniforms(seed, block),
                tf.range(-(-length // UNIFORMS_PER_BLOCK)),
                fn_output_signature=tf.float32,
            )
            uniforms = tf.reshape(blocks, (-1, 1))[:length]

            def draw(n_candidates: tf.Tensor | None, *, by_bins: bool = False) -> tf.Tensor:
                loop = TokenLoop(cached, take_positions(cached))
                return loop.run(
                    loop.begin(state, tf.zeros((1, n_token), tf.bool)),
                    uniforms,
                    length,
                    {"temperature": temperature, "n_candidates": n_candidates},
                    tf.constant(is_allowed),
                    tf.zeros(n_token, tf.bool),  # no stop
                    sampler=StandardSampler(),
                    by_bins=by_bins,
                )[0]

            def draw_from_all() -> tf.Tensor:
                if not cached.model.config.cutoffs:
                    return draw(None)
                needs_one_bin = tf.logical_or(tf.equal(temperature, 0), tf.equal(temperature, 1))
                return tf.cond(needs_one_bin, lambda: draw(None, by_bins=True), lambda: draw(None))

            tokens = tf.cond(top_k > 0, lambda: draw(tf.minimum(top_k, n_token)), draw_from_all)
            return {"text": detokenizer.detokenize(tokens[:, 0], before=ids[0, -1])}

        return generate_text


class StrictTokenizer(tf.Module):
    """Encodes texts in a graph; fails for text that the vocabulary cannot encode."""

    def __init__(self, vocabulary: Vocabulary):
        super().__init__(name="tokenizer")
        self.vocabulary = vocabulary
        self._tokenizer = Tokenizer(vocabulary)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of texts (n,), ragged (n, ids) int32 in [0, V)."""
        if self.vocabulary.level != "byte":  # otherwise invalid UTF-8 would be replaced silently
            texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="strict")
        ids = self._tokenizer.tokenize(texts)
        found, n_token = ids.flat_values, len(self.vocabulary)
        rule = "a text holds a symbol that the vocabulary does not know"
        with tf.control_dependencies(_check({rule: (found >= 0) & (found < n_token)})):
            return ids.with_flat_values(tf.identity(found))


def _make_id_signatures(score: tf.function, cached: CachedModel) -> dict[str, tf.function]:
    """Returns the signatures that take ids, by name; `score` is `ServedModel.score`."""
    config, mem_len = cached.model.config, cached.span.mem_len
    cache_shape = (config.n_layer, None, config.n_head, mem_len, config.d_head)
    memory = [
        tf.TensorSpec(cache_shape, tf.float32, "keys"),
        tf.TensorSpec(cache_shape, tf.float32, "values"),
        tf.TensorSpec((None, config.d_model), tf.float32, "last"),
        tf.TensorSpec((None,), tf.int32, "n_read"),
    ]
    ids_spec = tf.TensorSpec((None, None), tf.int32, "ids")
    lengths_spec = tf.TensorSpec((None,), tf.int32, "lengths")

    @tf.function(input_signature=[ids_spec, lengths_spec], autograph=False)
    def score_ids(ids: tf.Tensor, lengths: tf.Tensor) -> Tensors:
        ids, lengths = _check_rows(ids, lengths, config.n_token)
        nats = score(tf.RaggedTensor.from_tensor(ids, lengths))
        return {"nats": nats.to_tensor(shape=tf.shape(ids))}

    @tf.function(input_signature=[tf.TensorSpec((), tf.int32, "batch_size")], autograph=False)
    def initial_memory(batch_size: tf.Tensor) -> Tensors:
        return _to_tensors(cached.initial_state(batch_size))

    signature = [ids_spec, lengths_spec, tf.TensorSpec((None,), tf.bool, "reset"), *memory]

    @tf.function(input_signature=signature, autograph=False)
    def step(
        ids: tf.Tensor,
        lengths: tf.Tensor,
        reset: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        last: tf.Tensor,
        n_read: tf.Tensor,
    ) -> Tensors:
        ids, lengths = _check_rows(ids, lengths, config.n_token)
        tensors = {"keys": keys, "values": values, "last": last, "n_read": n_read}
        with tf.control_dependencies(_check_step(ids, reset, tensors, cached.tgt_len)):
            state = clear_rows(_from_tensors(tensors, cached.model.compute_dtype), reset)
            nats, state = _keep_shapes(cached.score_ids(ids, state, lengths), state)
            log_probs = cached.log_probs(state)
        return {"nats": nats, "log_probs": log_probs, **_to_tensors(state)}

    return {"score_ids": score_ids, "initial_memory": initial_memory, "step": step}


def _make_score_text(score: tf.function, tokenizer: StrictTokenizer) -> tf.function:
    """Returns the signature that scores texts; `score` is `ServedModel.score`."""

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, "texts")], autograph=False)
    def score_text(texts: tf.Tensor) -> Tensors:
        ids = tokenizer.tokenize(texts)
        nats = score(ids)
        tokens = tf.maximum(tf.cast(ids.row_lengths(), tf.int32) - 1, 0)
        sums = tf.reduce_sum(tf.cast(nats, tf.float64), axis=1)
        bpc = sums / tf.cast(tokens, tf.float64) / math.log(2)
        return {
            "nats": tf.cast(sums, tf.float32),
            "tokens": tokens,
            "bpc": tf.cast(bpc, tf.float32),
            "token_ids": ids.flat_values,
            "token_nats": nats.flat_values,
            "row_splits": ids.row_splits,
        }

    return score_text


def _to_tensors(state: CachedState) -> Tensors:
    """Returns a state as flat tensors in float32, as clients and JSON do not support bfloat16."""
    return {
        "keys": tf.cast(tf.stack(state.keys), tf.float32),  # (L, B, N, M, H)
        "values": tf.cast(tf.stack(state.values), tf.float32),
        "last": tf.cast(state.last, tf.float32),
        "n_read": state.n_read,
    }


def _from_tensors(tensors: Tensors, dtype: str) -> CachedState:
    keys, values, last = (tf.cast(tensors[key], dtype) for key in ("keys", "values", "last"))
    return CachedState(tuple(tf.unstack(keys)), tuple(tf.unstack(values)), last, tensors["n_read"])


def _keep_shapes(
    scored: tuple[tf.Tensor, CachedState], old: CachedState
) -> tuple[tf.Tensor, CachedState]:
    """Gives a new state the static shapes of the old one, which tracing may lose."""
    for tensor, before in zip(tf.nest.flatten(scored[1]), tf.nest.flatten(old), strict=True):
        tensor.set_shape(before.shape)
    return scored


def _check_step(ids: tf.Tensor, reset: tf.Tensor, memory: Tensors, tgt_len: int) -> list[Any]:
    n_rows, width = tf.unstack(tf.shape(ids))
    rules = {
        f"`ids` must be rows of 1 to {tgt_len}, the segment length": (width > 0)
        & (width <= tgt_len),
        "`n_read` must be the value of the previous step: 0 or more": memory["n_read"] >= 0,
    }
    for name, tensor in {"reset": reset, **memory}.items():
        axis = 1 if tensor.shape.rank == 5 else 0
        rules[f"`{name}` must have as many rows as `ids`"] = tf.shape(tensor)[axis] == n_rows
    return _check(rules)


def _check_rows(ids: tf.Tensor, lengths: tf.Tensor, n_token: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the checked ids, with zeros beyond the length of each row, and the lengths."""
    n_rows, width = tf.unstack(tf.shape(ids))
    same_rows = {"`lengths` must have as many rows as `ids`": tf.shape(lengths)[0] == n_rows}
    with tf.control_dependencies(_check(same_rows)):
        ids = tf.where(tf.range(width) < lengths[:, None], ids, 0)
    rules = {
        "`lengths` must be from 0 to the width of `ids`": (lengths >= 0) & (lengths <= width),
        f"`ids` must be at least 0 and below {n_token}": (ids >= 0) & (ids < n_token),
    }
    with tf.control_dependencies(_check(rules)):
        return tf.identity(ids), tf.identity(lengths)


def _check(rules: dict[str, tf.Tensor]) -> list[Any]:
    """Returns assertions of rules, which are bool tensors of any shape, by error message."""
    return [tf.debugging.Assert(tf.reduce_all(holds), [rule]) for rule, holds in rules.items()]
