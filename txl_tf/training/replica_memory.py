"""The memory of a training run on its replicas."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from txl_tf.models.segment_model import SegmentModel
from txl_tf.training.step import Memory
from txl_tf.training.workers import Workers


class ReplicaMemory:
    """Each replica's rows of the memory, in variables that never leave its device.

    Replica r of R holds the lanes r B/R to (r+1) B/R, so any number of replicas sees the same text
    with the same memory. The memory starts empty. `lanes` are those of this process; for
    `mask_empty`, see `initial_memory`.
    """

    def __init__(
        self,
        workers: Workers,
        model: SegmentModel,
        rows: int,
        mem_len: int,
        *,
        mask_empty: bool = False,
    ):
        self._strategy = workers.strategy
        with self._strategy.scope():
            self._variables = keras.tree.map_structure(
                _make_variable, model.initial_memory(rows, mem_len, mask_empty)
            )
        n_local = len(self._list_values(keras.tree.flatten(self._variables)[0]))
        first = workers.index * n_local * rows
        self._rows = rows
        self.n_tensors = len(keras.tree.flatten(self._variables))
        self.lanes = range(first, first + n_local * rows)

    def read(self) -> Memory:
        """Returns the memory of this replica, inside a replica."""
        return keras.tree.map_structure(lambda variable: variable.read_value(), self._variables)

    def assign(self, memory: Memory) -> None:
        """Replaces the memory of this replica, inside a replica."""
        keras.tree.map_structure(
            lambda variable, states: variable.assign(states), self._variables, memory
        )

    def gather(self) -> list[tf.Tensor]:
        """Returns the memory of the lanes of this process, a list of tensors (lanes, ...)."""
        return [
            tf.concat([tf.identity(value) for value in self._list_values(variable)], axis=0)
            for variable in keras.tree.flatten(self._variables)
        ]

    def load(self, memory: Sequence[tf.Tensor]) -> None:
        """Replaces the memory with a result of `gather`, from any number of replicas."""
        for variable, states in zip(keras.tree.flatten(self._variables), memory, strict=True):
            for index, value in enumerate(self._list_values(variable)):
                value.assign(states[index * self._rows : (index + 1) * self._rows])

    def _list_values(self, variable: tf.Variable) -> tuple[tf.Variable, ...]:
        return self._strategy.experimental_local_results(variable)


def _make_variable(initial: tf.Tensor) -> tf.Variable:
    """Returns a variable with a separate value on each replica."""
    return tf.Variable(
        initial,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
