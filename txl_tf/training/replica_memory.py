"""The memory of a run on its replicas."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from txl_tf.model import TransformerXL
from txl_tf.training.workers import Workers

Memory = Any  # a nest of tensors that only the model opens


class ReplicaMemory:
    """Each replica's rows of the memory, in variables that never leave its device.

    Replica r of R has the lanes r B/R to (r+1) B/R, so any number of replicas sees the same text
    with the same memory. It starts empty.

    Args:
        strategy: where the replicas are; its scope need not be entered.
        model: makes the empty memory.
        rows: lanes of a replica, B/R.
        mem_len: memory length M.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, model: TransformerXL, rows: int, mem_len: int
    ):
        self._strategy = strategy
        with strategy.scope():
            self._variables = keras.tree.map_structure(
                _make_variable, model.initial_memory(rows, mem_len)
            )
        n_local = len(self._list_values(keras.tree.flatten(self._variables)[0]))
        first = Workers(strategy).index * n_local * rows
        self._rows = rows
        self.lanes = range(first, first + n_local * rows)

    def read(self) -> Memory:
        """Returns this replica's memory, inside a replica."""
        return keras.tree.map_structure(lambda variable: variable.read_value(), self._variables)

    def assign(self, memory: Memory) -> None:
        """Changes this replica's memory, inside a replica."""
        keras.tree.map_structure(
            lambda variable, states: variable.assign(states), self._variables, memory
        )

    def gather(self) -> list[tf.Tensor]:
        """Returns the memory of this process' `lanes`: for each layer (lanes, M, D)."""
        return [
            tf.concat([tf.identity(value) for value in self._list_values(variable)], axis=0)
            for variable in keras.tree.flatten(self._variables)
        ]

    def load(self, memory: Sequence[tf.Tensor]) -> None:
        """Changes the memory to what `gather` returned, of any number of replicas."""
        for variable, states in zip(keras.tree.flatten(self._variables), memory, strict=True):
            for index, value in enumerate(self._list_values(variable)):
                value.assign(states[index * self._rows : (index + 1) * self._rows])

    def _list_values(self, variable: tf.Variable) -> tuple[tf.Variable, ...]:
        return self._strategy.experimental_local_results(variable)


def _make_variable(initial: tf.Tensor) -> tf.Variable:
    """Makes a variable that each replica has a value of its own of."""
    return tf.Variable(
        initial,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
