"""Segments of a text as data for Keras: a `PyDataset`, and a `tf.data.Dataset` made from it."""

from typing import Any

import keras
import numpy as np
from keras import ops

from txl_tf.data.lanes.evaluation_lanes import EvaluationLanes
from txl_tf.data.lanes.training_lanes import StoredTokens, Tokens
from txl_tf.data.records.reading import Split
from txl_tf.errors import UserError, check_integer

LANES = (
    "row b of a batch must continue where row b of the batch before ended (a lane), because its "
    "memory does: txl_tf.Segments makes such batches"
)


class Segments(keras.utils.PyDataset):
    """The segments of a text in lanes, for `fit` and `evaluate` of a `CausalLM`.

    The text is cut into B lanes of equal length. Batch i holds the i-th segment of T tokens of each
    lane, so row b of a batch continues where row b of the previous batch ended, and its memory
    holds the text before it. Every token except the first is a target exactly once; lanes that end
    early are padded, with a sample weight of 0. All epochs have the same batches.

    A batch depends only on its index. Batches must stay in order: `fit` refuses to shuffle them.

    Args:
        tokens: The ids, (n,) integers, or a split of records, such as
            `txl_tf.data.open_records("data/text8").split("train")`.
        batch_size: B, the number of lanes.
        tgt_len: T, the tokens in a segment.
        document_starts: Whether the inputs mark where documents of the split begin, so that no
            document sees another one. Inputs are then a dict.

    Returns:
        A batch is a tuple: the ids (B, T) int32, or a dict of `ids` and `document_starts` (B, T)
        bool; the targets (B, T) int32, which are the ids one position later; and the sample weights
        (B, T) float32.

    Raises:
        UserError: If there are fewer than 2 tokens, they are not integers (n,) in [0, 2**31),
            `batch_size` is not positive, or `document_starts` is true without documents.
        ValueError: If `tgt_len` is not positive.

    >>> segments = Segments(np.arange(14), batch_size=2, tgt_len=3)
    >>> len(segments)
    3
    >>> ids, targets, weights = segments[1]
    >>> ids.tolist(), targets.tolist(), weights.tolist()
    ([[3, 4, 5], [12, 0, 0]], [[4, 5, 6], [13, 0, 0]], [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    """

    def __init__(
        self,
        tokens: Tokens | np.ndarray,
        *,
        batch_size: int,
        tgt_len: int,
        document_starts: bool = False,
    ) -> None:
        super().__init__()
        check_integer("batch_size", batch_size, 1)
        split = _as_tokens(tokens)
        if document_starts and not len(split.document_starts):
            raise UserError("`document_starts` needs a split of records with documents")
        self._lanes = EvaluationLanes(split, n_lanes=batch_size, tgt_len=tgt_len)
        self.n_token = _bound_ids(split)
        self._has_starts = document_starts
        self.first = 0  # the batch with which the next epoch begins, when a run is resumed

    def __len__(self) -> int:
        return len(self._lanes) - self.first

    def __getitem__(self, index: int) -> tuple[Any, np.ndarray, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        start = self.first + index
        (segment,) = self._lanes.read(start, start + 1)
        ids: Any = segment.ids
        if self._has_starts:
            starts = segment.document_starts.copy()
            if start == 0:  # the memory is that of the previous epoch, the end of the lane
                starts[:, 0] = True
            ids = {"ids": segment.ids, "document_starts": starts}
        return ids, segment.targets, segment.mask.astype(np.float32)

    def to_dataset(self) -> Any:
        """Returns the same batches as a `tf.data.Dataset` with static shapes."""
        import tensorflow as tf

        signature = keras.tree.map_structure(
            lambda array: tf.TensorSpec(array.shape, array.dtype), self[0]
        )
        dataset = tf.data.Dataset.from_generator(
            lambda: map(self.__getitem__, range(len(self))), output_signature=signature
        )
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(self)))
        return dataset.prefetch(tf.data.AUTOTUNE)


def _as_tokens(tokens: Any) -> Tokens:
    """Returns the ids in memory, or the split that was given, with the interface of a split."""
    if hasattr(tokens, "document_starts"):
        split: Tokens = tokens
        return split
    ids = np.asarray(tokens)
    is_integer = ids.ndim == 1 and np.issubdtype(ids.dtype, np.integer)
    if not is_integer or (ids.size and not 0 <= ids.min() <= ids.max() < 2**31):
        raise UserError(
            "`tokens` must be a split of records, or ids (n,) as integers in [0, 2**31). "
            f"Received: shape={ids.shape}, dtype={ids.dtype}"
        )
    return StoredTokens(ids.astype(np.int32))


def _bound_ids(split: Tokens) -> int:
    """Returns a number that is larger than all ids: for records, the size of the vocabulary."""
    if isinstance(split, Split):
        return split.n_token
    return int(split.read(0, len(split)).max(initial=-1)) + 1


def check_ids(x: Any, n_token: int) -> None:
    """Checks that ids or targets, of `Segments` or in arrays, are in [0, V).

    A compiled step would read other entries of the tables for others.
    """
    flat = keras.tree.flatten(x)
    arrays = [each for each in flat if isinstance(each, np.ndarray) or ops.is_tensor(each)]
    integers = [ops.convert_to_numpy(each) for each in arrays if "int" in str(each.dtype)]
    ids = [each for each in integers if each.size]
    lowest = min((int(each.min()) for each in ids), default=0)
    bound = max((int(each.max()) + 1 for each in ids), default=0)
    if isinstance(x, Segments):
        bound = x.n_token
    if lowest < 0:
        raise UserError(
            "ids and targets must not be negative; targets without loss need a sample weight of 0. "
            f"Received: {lowest}"
        )
    if bound > n_token:
        raise UserError(
            f"the data need a model with `n_token` of at least {bound:,}. "
            f"Received: n_token={n_token:,}"
        )


def check_batches(x: Any, batch_size: int | None, n_rows: int) -> tuple[int | None, int | None]:
    """Checks that batches have B rows, as far as possible before they are read.

    Returns:
        The `batch_size` for Keras: B with arrays, and `None` with all other data; and T of the
        first batch, `None` if it is unknown.
    """
    is_array = False
    if isinstance(x, keras.utils.PyDataset):
        ends = sorted({0, (x.num_batches or 1) - 1})  # the last batch may be smaller
        shapes = [keras.tree.flatten(x[index])[0].shape for index in ends]
    elif hasattr(x, "element_spec"):
        shapes = [keras.tree.flatten(x.element_spec)[0].shape]
    else:
        first = keras.tree.flatten(x)[0]
        if not hasattr(first, "shape"):  # a generator
            return None, None
        is_array = True
        shapes = [first.shape]
    found = {shapes[0][0] % n_rows or n_rows} if is_array else {shape[0] for shape in shapes}
    wrong = (found | {n_rows if batch_size is None else batch_size}) - {n_rows}
    if wrong:
        n_found = wrong.pop()
        received = "a number of rows that is not fixed" if n_found is None else f"{n_found} rows"
        raise UserError(
            f"all batches must have {n_rows} rows. Received: {received}. A tf.data.Dataset has "
            f"them after .batch({n_rows}, drop_remainder=True). Also, {LANES}"
        )
    return n_rows if is_array else None, shapes[0][1] if len(shapes[0]) == 2 else None
