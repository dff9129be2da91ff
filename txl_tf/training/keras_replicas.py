"""Replicas of `tf.distribute` for Keras models, which also run on other backends."""

from typing import Any

import keras
import numpy as np
from keras import ops


def add_over_replicas(values: list[Any]) -> list[Any]:
    """Returns the sums of tensors over the replicas, inside a replica."""
    if find_replica()[1] == 1:
        return values
    import tensorflow as tf

    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)


def find_replica() -> tuple[Any, int]:
    """Returns the index of this replica, and the number of replicas; (0, 1) on other backends."""
    if keras.backend.backend() != "tensorflow":
        return 0, 1
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    index = context.replica_id_in_sync_group if context else 0
    return index, tf.distribute.get_strategy().num_replicas_in_sync


def read_rows(model: keras.Model, variable: keras.Variable) -> np.ndarray:
    """Returns all rows, (B, ...), of a variable whose rows are divided among the replicas."""
    return np.concatenate([ops.convert_to_numpy(x) for x in _list_values(model, variable)])


def write_rows(model: keras.Model, variable: keras.Variable, rows: np.ndarray) -> None:
    """Replaces the rows of all replicas, outside any replica."""
    values = _list_values(model, variable)
    for value, part in zip(values, np.split(rows, len(values)), strict=True):
        value.assign(ops.convert_to_tensor(part, variable.dtype))


def _list_values(model: keras.Model, variable: keras.Variable) -> list[Any]:
    """Returns the variable of each replica that a model was made for."""
    if keras.backend.backend() != "tensorflow":
        return [variable]
    return list(model.distribute_strategy.experimental_local_results(variable.value))
