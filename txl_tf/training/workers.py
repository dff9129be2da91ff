"""The processes of a run and their communication."""

import contextlib
import re
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from txl_tf.errors import UserError, explain
from txl_tf.training.cluster import read_cluster

# Errors of a collective operation when a process has ended or is shutting down.
LOSSES = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)


class Workers:
    """The processes of a run: a single one, or one on each of several hosts.

    All processes make the same calls in the same order. Information that only one of them has (a
    signal, the time, a file) is shared before any process acts on it, since a process on another
    path would leave the others waiting. The first process is the chief, which writes the shared
    files.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        is_cluster = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self._cluster = read_cluster() if is_cluster else None
        self.strategy = strategy
        self.index = self._cluster.index if self._cluster else 0
        self.count = len(self._cluster.tasks) if self._cluster else 1

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the shared files."""
        return self.index == 0

    def name(self, index: int) -> str:
        """Returns the name of a process for messages."""
        return self._cluster.name(index) if self._cluster else "this process"

    def say(self, line: str) -> None:
        """Prints a line that concerns all processes, once, from the chief."""
        if self.is_chief:
            tqdm.write(line)  # above a progress bar

    def gather(self, values: Sequence[float]) -> np.ndarray:
        """Returns the values (n,) of every process, (count, n) float64; waits for all of them.

        Raises:
            UserError: If a process has ended. The message names it.
        """
        table = np.zeros((self.count, len(values)))
        table[self.index] = values
        if self.count > 1:
            with self.explain_losses():
                table = self._add(tf.constant(table)).numpy()
            # A process may end once it has the values, so all wait until every process has them. An
            # error here means that one has ended since; the next call will report it.
            with contextlib.suppress(*LOSSES):
                self._add(tf.zeros(1)).numpy()
        return table

    def broadcast(self, values: Sequence[float]) -> list[float]:
        """Returns the values of the chief; waits as `gather` does."""
        return self.gather(values)[0].tolist()

    def wait(self) -> None:
        """Waits until every process has made this call, as `gather` does."""
        self.gather([0.0])

    @contextlib.contextmanager
    def explain_losses(self) -> Iterator[None]:
        """Converts TensorFlow's errors about a lost process to a `UserError` that names it."""
        try:
            yield
        except LOSSES as error:
            if not self._cluster:
                raise
            found = re.search(r"aborted by: (.*)", str(error))
            reason = found[1] if found else explain(error)
            matches = re.findall(r"/job:(\w+)(?:/replica:0)?/task:(\d+)", str(error))
            named = {(job, int(number)) for job, number in matches}
            lost = [
                self.name(index)
                for index, task in enumerate(self._cluster.tasks)
                if task in named and index != self.index
            ]
            message = f"this process or another one of the run failed: {reason}"
            if lost:
                message = (
                    f"no answer from {' and '.join(lost)}: start all processes again to resume "
                    f"from the newest checkpoint ({reason})"
                )
            raise UserError(message) from error

    @tf.function
    def _add(self, table: tf.Tensor) -> tf.Tensor:
        """Returns the sum over the processes."""
        n_local = self.strategy.num_replicas_in_sync // self.count

        def add() -> tf.Tensor:
            replica = tf.distribute.get_replica_context()
            is_first = tf.equal(replica.replica_id_in_sync_group % n_local, 0)
            return replica.all_reduce(
                tf.distribute.ReduceOp.SUM, tf.where(is_first, table, tf.zeros_like(table))
            )

        return self.strategy.experimental_local_results(self.strategy.run(add))[0]
