"""What a SavedModel computes: pure functions of tensors, safe under any number of threads."""

import tensorflow as tf

from txl_tf.cached_model import CachedModel, CachedState
from txl_tf.runs.checkpoint_reader import name_variables

Tensors = dict[str, tf.Tensor]


def to_tensors(state: CachedState) -> Tensors:
    """Returns a state as flat tensors, in float32: clients and JSON know no bfloat16."""
    return {
        "keys": tf.cast(tf.stack(state.keys), tf.float32),  # (L, B, N, M, H)
        "values": tf.cast(tf.stack(state.values), tf.float32),
        "last": tf.cast(state.last, tf.float32),
        "n_read": state.n_read,
    }


def from_tensors(tensors: Tensors, dtype: str) -> CachedState:
    """Reads what `to_tensors` returned."""
    keys, values, last = (tf.cast(tensors[key], dtype) for key in ("keys", "values", "last"))
    return CachedState(tuple(tf.unstack(keys)), tuple(tf.unstack(values)), last, tensors["n_read"])


def _keep_shapes(
    scored: tuple[tf.Tensor, CachedState], old: CachedState
) -> tuple[tf.Tensor, CachedState]:
    """Gives a new state the static shapes of the old one, of which tracing may lose some."""
    for tensor, before in zip(tf.nest.flatten(scored[1]), tf.nest.flatten(old), strict=True):
        tensor.set_shape(before.shape)
    return scored


class Reader(tf.Module):
    """Scores rows of ids of any length, segment by segment.

    Args:
        cached: the model; its weights and positions are saved with this.
    """

    def __init__(self, cached: CachedModel):
        super().__init__(name="reader")
        self._cached = cached
        self.weights = name_variables(cached.model.weights)
        self.positions = cached.positions

    def score_alone(self, ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """Scores rows (B, n) as `score`, without a memory, where `longest_alone` allows it."""
        alone = self._cached.without_memory()
        return alone.score_read(ids, alone.initial_state(tf.shape(ids)[0]), lengths)[0]

    def score(
        self, ids: tf.Tensor, lengths: tf.Tensor, state: CachedState
    ) -> tuple[tf.Tensor, CachedState]:
        """Scores rows of any length, (B, n) int32, in segments: as `CachedModel.score_read`."""
        tgt_len = self._cached.tgt_len
        parts = tf.TensorArray(
            tf.float32, size=0, dynamic_size=True, infer_shape=False, element_shape=[None, None]
        )

        def score_next(
            index: tf.Tensor, parts: tf.TensorArray, state: CachedState
        ) -> tuple[tf.Tensor, tf.TensorArray, CachedState]:
            start = index * tgt_len
            counts = tf.clip_by_value(lengths - start, 0, tgt_len)
            segment = ids[:, start : start + tgt_len]
            nats, state = _keep_shapes(self._cached.score_read(segment, state, counts), state)
            return index + 1, parts.write(index, tf.transpose(nats)), state

        _, parts, state = tf.while_loop(
            lambda index, *_: index * tgt_len < tf.shape(ids)[1],
            score_next,
            (tf.constant(0), parts, state),
            parallel_iterations=1,
        )
        return tf.transpose(parts.concat()), state


class RaggedScorer(tf.Module):
    """Scores texts of any lengths.

    Args:
        cached: the model.
        reader: scores rows with it.
        batch_size: how many to read at once.
    """

    def __init__(self, cached: CachedModel, reader: Reader, batch_size: int):
        super().__init__(name="scorer")
        self._cached = cached
        self._reader = reader
        self._batch_size = batch_size

    def score(self, texts: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns -log p of each token, 0 of each text's first.

        Args:
            texts: ragged (n, ids) int32 in [0, V).

        Returns:
            Ragged (n, ids) float32, in nats.
        """
        # Those of a batch are of like lengths: little is padded.
        order = tf.argsort(texts.row_lengths(), stable=True)
        ordered = tf.gather(texts, order)
        n_batches = -(-tf.shape(order)[0] // self._batch_size)
        parts = tf.TensorArray(tf.float32, size=n_batches, infer_shape=False, element_shape=[None])

        def score_next(index: tf.Tensor, parts: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            start = index * self._batch_size
            batch = ordered[start : start + self._batch_size]
            return index + 1, parts.write(index, self._score_batch(batch))

        _, parts = tf.while_loop(
            lambda index, _: index < n_batches,
            score_next,
            (tf.constant(0), parts),
            parallel_iterations=1,
        )
        nats = tf.RaggedTensor.from_row_splits(parts.concat(), ordered.row_splits)
        return tf.gather(nats, tf.argsort(order))

    def _score_batch(self, texts: tf.RaggedTensor) -> tf.Tensor:
        """Returns the losses of a few texts, one after the other, (ids,) float32."""
        ids, lengths = texts.to_tensor(), tf.cast(texts.row_lengths(), tf.int32)
        nats = tf.cond(
            tf.shape(ids)[1] <= self._cached.longest_alone,
            lambda: self._reader.score_alone(ids, lengths),
            lambda: self._reader.score(ids, lengths, self._cached.initial_state(tf.shape(ids)[0]))[
                0
            ],
        )
        return tf.RaggedTensor.from_tensor(nats, lengths).flat_values


def make_id_functions(score: tf.function, cached: CachedModel) -> dict[str, tf.function]:
    """Returns the signatures that take ids, by name; `score` is `RaggedScorer.score`."""
    config, mem_len = cached.model.config, cached.span.mem_len
    states = (config.n_layer, None, config.n_head, mem_len, config.d_head)
    carried = [
        tf.TensorSpec(states, tf.float32, "keys"),
        tf.TensorSpec(states, tf.float32, "values"),
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
        return to_tensors(cached.initial_state(batch_size))

    signature = [ids_spec, lengths_spec, tf.TensorSpec((None,), tf.bool, "reset"), *carried]

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
            state = from_tensors(tensors, cached.model.compute_dtype).reset(reset)
            nats, state = _keep_shapes(cached.score_read(ids, state, lengths), state)
            log_probs = cached.log_probs(state)
        return {"nats": nats, "log_probs": log_probs, **to_tensors(state)}

    return {"score_ids": score_ids, "initial_memory": initial_memory, "step": step}


def _check_step(
    ids: tf.Tensor, reset: tf.Tensor, carried: Tensors, tgt_len: int
) -> list[tf.Operation]:
    """Returns what fails in a graph where the tensors of a step do not fit."""
    n_rows, n_places = tf.unstack(tf.shape(ids))
    rows = {"reset": reset, **carried}
    checks = [
        tf.debugging.assert_equal(
            tf.shape(tensor)[1 if tensor.shape.rank == 5 else 0],
            n_rows,
            message=f"`{name}` must have as many rows as `ids`",
        )
        for name, tensor in rows.items()
    ]
    rule = f"`ids` must be rows of 1 to {tgt_len}, the segment length"
    n_read = "`n_read` must be what the last step gave: 0 or more"
    return [
        *checks,
        tf.debugging.assert_non_negative(carried["n_read"], message=n_read),
        tf.debugging.assert_positive(n_places, message=rule),
        tf.debugging.assert_less_equal(n_places, tgt_len, message=rule),
    ]


def _check_rows(ids: tf.Tensor, lengths: tf.Tensor, n_token: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns ids with zeros behind each row's length, and the lengths; a graph checks both."""
    n_rows, n_places = tf.unstack(tf.shape(ids))
    rows = tf.debugging.assert_equal(
        tf.shape(lengths)[0], n_rows, message="`lengths` must have as many rows as `ids`"
    )
    with tf.control_dependencies([rows]):
        inside = tf.range(n_places) < lengths[:, None]
        ids = tf.where(inside, ids, 0)
    wrong_lengths = "`lengths` must be from 0 to the places of `ids`"
    checks = [
        tf.debugging.assert_non_negative(lengths, message=wrong_lengths),
        tf.debugging.assert_less_equal(lengths, n_places, message=wrong_lengths),
        check_ids(ids, n_token, f"`ids` must be at least 0 and below {n_token}"),
    ]
    with tf.control_dependencies(checks):
        return tf.identity(ids), tf.identity(lengths)


def check_ids(ids: tf.Tensor, n_token: int, rule: str) -> tf.Operation:
    """Returns what fails in a graph where an id is none of the vocabulary."""
    is_known = tf.logical_and(ids >= 0, ids < n_token)
    return tf.debugging.Assert(tf.reduce_all(is_known), [rule], name="check_ids")
