"""The processes of a run, and what they tell each other."""

import contextlib
import re
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from txl_tf.errors import UserError, explain
from txl_tf.training.cluster import Cluster

# What a collective operation raises when a process is gone, or says that it will be.
LOSSES = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)


class Workers:
    """The processes of a run: one, or one on each of several hosts.

    They go on in step: each makes the same calls in the same order. What one alone can know, a
    signal, the time, a file, is told to all before any acts on it, since a process that took
    another way would leave the others waiting. The first is the chief, and writes what they share.

    Args:
        strategy: the run's.

    Attributes:
        index: which of them this process is.
        count: how many there are.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        is_cluster = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self._cluster = Cluster.from_environment() if is_cluster else None
        self._strategy = strategy
        self.index = self._cluster.index if self._cluster else 0
        self.count = len(self._cluster.tasks) if self._cluster else 1

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what all share."""
        return self.index == 0

    def name(self, index: int) -> str:
        """Returns what people know a process by."""
        if not self._cluster:
            return "this process"
        return self._cluster.name(index)

    def say(self, line: str) -> None:
        """Prints a line that concerns all processes: once, by the chief."""
        if self.is_chief:
            print(line)

    def gather(self, values: Sequence[float]) -> np.ndarray:
        """Returns what every process passed, (count, n) float64; waits for all of them.

        Args:
            values: n numbers, the same n everywhere.

        Raises:
            UserError: a process is gone; the message names it.
        """
        table = np.zeros((self.count, len(values)))
        table[self.index] = values
        if self.count > 1:
            with self.explain_losses():
                table = self._add(tf.constant(table)).numpy()
        return table

    def broadcast(self, values: Sequence[float]) -> list[float]:
        """Returns what the chief passed; as `gather`."""
        return self.gather(values)[0].tolist()

    def wait(self) -> None:
        """Waits until every process has come here; as `gather`."""
        self.gather([0.0])

    @contextlib.contextmanager
    def explain_losses(self) -> Iterator[None]:
        """Turns what tensorflow raises when a process is gone into a `UserError` that names it."""
        try:
            yield
        except LOSSES as error:
            if self.count == 1:
                raise
            lost = " and ".join(map(self.name, self._find_lost(str(error))))
            found = re.search(r"aborted by: (.*)", str(error))
            reason = found[1] if found else explain(error)
            if not lost:
                raise UserError(
                    f"this process or another one of the run failed: {reason}"
                ) from error
            raise UserError(
                f"no answer from {lost} any more: start all processes again, and they go on from "
                f"the newest checkpoint ({reason})"
            ) from error

    def _find_lost(self, message: str) -> list[int]:
        """Returns the other processes that an error names."""
        assert self._cluster
        found = re.findall(r"/job:(\w+)(?:/replica:0)?/task:(\d+)", message)
        named = {(job, int(number)) for job, number in found}
        tasks = enumerate(self._cluster.tasks)
        return [index for index, task in tasks if task in named and index != self.index]

    @tf.function
    def _add(self, table: tf.Tensor) -> tf.Tensor:
        """Returns the sum over the processes."""
        n_local = self._strategy.num_replicas_in_sync // self.count

        def add() -> tf.Tensor:
            replica = tf.distribute.get_replica_context()
            is_first = tf.equal(replica.replica_id_in_sync_group % n_local, 0)
            return replica.all_reduce(
                tf.distribute.ReduceOp.SUM, tf.where(is_first, table, tf.zeros_like(table))
            )

        return self._strategy.experimental_local_results(self._strategy.run(add))[0]
