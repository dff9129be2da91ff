"""Replicas of `tf.distribute` for models of Keras, which also run on other backends."""

from typing import Any

import keras


def find_replica() -> tuple[Any, int]:
    """Returns the index of this replica, and the number of replicas; (0, 1) on other backends."""
    if keras.backend.backend() != "tensorflow":
        return 0, 1
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    index = context.replica_id_in_sync_group if context else 0
    return index, tf.distribute.get_strategy().num_replicas_in_sync


def list_values(model: keras.Model, variable: keras.Variable) -> list[Any]:
    """Returns the variable of each replica that a model was made for, outside any replica."""
    if keras.backend.backend() != "tensorflow":
        return [variable]
    return list(model.distribute_strategy.experimental_local_results(variable.value))
