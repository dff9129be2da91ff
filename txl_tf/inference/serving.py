"""What a SavedModel computes: pure functions of tensors, safe under any number of threads."""

from typing import NamedTuple, Self

import tensorflow as tf

from txl_tf.cached_model import CachedMemory, CachedModel, clear_rows, take_nearest
from txl_tf.runs.checkpoint_reader import name_variables

Tensors = dict[str, tf.Tensor]


class Carry(NamedTuple):
    """What rows carry from segment to segment; all zeros before the first.

    Args:
        keys: for each layer (B, N, M, H) in the compute dtype.
        values: for each layer (B, N, M, H).
        last: (B, D), the hidden state of the last token, which tells the next.
        n_read: (B,) int32, tokens read since the row began; counted up to M + 1.
    """

    keys: tuple[tf.Tensor, ...]
    values: tuple[tf.Tensor, ...]
    last: tf.Tensor
    n_read: tf.Tensor

    @property
    def memory(self) -> CachedMemory:
        """The keys and values, as `CachedModel` takes them."""
        mem_len = self.keys[0].shape[2]
        return CachedMemory(self.keys, self.values, tf.minimum(self.n_read, mem_len))

    def to_tensors(self) -> Tensors:
        """Returns it as flat tensors, in float32: clients and JSON know no bfloat16."""
        return {
            "keys": tf.cast(tf.stack(self.keys), tf.float32),  # (L, B, N, M, H)
            "values": tf.cast(tf.stack(self.values), tf.float32),
            "last": tf.cast(self.last, tf.float32),
            "n_read": self.n_read,
        }

    @classmethod
    def from_tensors(cls, tensors: Tensors, dtype: str) -> Self:
        """Reads what `to_tensors` returned."""
        keys, values, last = (tf.cast(tensors[key], dtype) for key in ("keys", "values", "last"))
        return cls(tuple(tf.unstack(keys)), tuple(tf.unstack(values)), last, tensors["n_read"])


class Reader(tf.Module):
    """Reads rows of ids, segment by segment, and tells the losses of all that have a context.

    Args:
        cached: the model; its weights and all else that it needs are saved with this.
        tgt_len: the most tokens T of a segment.

    Attributes:
        longest_alone: texts of up to so many tokens need no memory, not even an empty one.
    """

    def __init__(self, cached: CachedModel, tgt_len: int):
        super().__init__(name="reader")
        self._cached = cached
        self._tgt_len = tgt_len
        self.longest_alone = cached.find_longest_alone(tgt_len)
        self.weights = name_variables(cached.model.weights)
        # Variables, not constants: a graph must stay below 2 GB.
        self.positions = [
            tf.Variable(products, trainable=False, name=f"positions_{index}")
            for index, products in enumerate(cached.project_positions(tgt_len))
        ]

    def make_carry(self, n_rows: tf.Tensor) -> Carry:
        """Returns what rows carry before their first segment."""
        model, empty = self._cached.model, self._cached.initial_memory(n_rows)
        last = tf.zeros((n_rows, model.config.d_model), model.compute_dtype)
        return Carry(empty.keys, empty.values, last, tf.zeros(n_rows, tf.int32))

    def read(self, ids: tf.Tensor, lengths: tf.Tensor, carry: Carry) -> tuple[tf.Tensor, Carry]:
        """Reads a segment.

        Args:
            ids: (B, t) int32 in [0, V), t at most T.
            lengths: (B,) int32, how many ids of each row count.
            carry: of the segment before.

        Returns:
            -log p of each id in nats, (B, t) float32: 0 of a row's very first, which has nothing
            before it, and behind its length. And what to carry on.
        """
        cached, mem_len = self._cached, carry.keys[0].shape[2]
        if mem_len != cached.span.mem_len:  # none
            cached = cached.without_memory()
        n_keys = mem_len + tf.shape(ids)[1]
        # Those of a shorter segment are the last of a longer one's.
        positions = take_nearest(self.positions, n_keys)
        hidden, memory = cached.read(ids, carry.memory, positions, lengths)
        states = tf.concat([carry.last[:, None], hidden], axis=1)
        nats = cached.model.nll(states[:, :-1], ids)
        places = tf.range(tf.shape(ids)[1])
        counts = tf.logical_and(places < lengths[:, None], places + carry.n_read[:, None] > 0)
        new = Carry(
            memory.keys,
            memory.values,
            tf.gather(states, lengths, axis=1, batch_dims=1),
            tf.minimum(carry.n_read + lengths, self._cached.span.mem_len + 1),
        )
        for tensor, old in zip(tf.nest.flatten(new), tf.nest.flatten(carry), strict=True):
            tensor.set_shape(old.shape)
        return tf.where(counts, nats, 0.0), new

    def read_all(self, ids: tf.Tensor, lengths: tf.Tensor, carry: Carry) -> tuple[tf.Tensor, Carry]:
        """Reads rows of any length, (B, n), in segments of T: as `read` otherwise."""
        n_places = tf.shape(ids)[1]
        parts = tf.TensorArray(
            tf.float32, size=0, dynamic_size=True, infer_shape=False, element_shape=[None, None]
        )

        def read_next(
            index: tf.Tensor, parts: tf.TensorArray, carry: Carry
        ) -> tuple[tf.Tensor, tf.TensorArray, Carry]:
            start = index * self._tgt_len
            segment = ids[:, start : start + self._tgt_len]
            nats, carry = self.read(segment, _clip(lengths - start, self._tgt_len), carry)
            return index + 1, parts.write(index, tf.transpose(nats)), carry

        _, parts, carry = tf.while_loop(
            lambda index, *_: index * self._tgt_len < n_places,
            read_next,
            (tf.constant(0), parts, carry),
            parallel_iterations=1,
        )
        return tf.transpose(parts.concat()), carry


class RaggedScorer(tf.Module):
    """Scores texts of any lengths.

    Args:
        reader: reads them.
        batch_size: how many to read at once.
    """

    def __init__(self, reader: Reader, batch_size: int):
        super().__init__(name="scorer")
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
        carry = self._reader.make_carry(tf.shape(ids)[0])

        def read_alone() -> tf.Tensor:
            keys, values = (
                tuple(states[:, :, :0] for states in part) for part in (carry.keys, carry.values)
            )
            return self._reader.read(ids, lengths, carry._replace(keys=keys, values=values))[0]

        nats = tf.cond(
            tf.shape(ids)[1] <= self._reader.longest_alone,
            read_alone,
            lambda: self._reader.read_all(ids, lengths, carry)[0],
        )
        return tf.RaggedTensor.from_tensor(nats, lengths).flat_values


def make_id_functions(
    reader: Reader, score: tf.function, cached: CachedModel, tgt_len: int
) -> dict[str, tf.function]:
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
        return reader.make_carry(batch_size).to_tensors()

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
        with tf.control_dependencies(_check_step(ids, reset, tensors, tgt_len)):
            carry = Carry.from_tensors(tensors, cached.model.compute_dtype)
            nats, carry = reader.read(ids, lengths, clear_rows(carry, reset))
            log_probs = cached.model.log_probs(carry.last[:, None])[:, 0]
        return {"nats": nats, "log_probs": log_probs, **carry.to_tensors()}

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


def _clip(lengths: tf.Tensor, longest: int) -> tf.Tensor:
    return tf.clip_by_value(lengths, 0, longest)


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
