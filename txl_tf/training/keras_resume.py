"""Callbacks that let a restored Keras run continue in the middle of an epoch.

`keras.callbacks.BackupAndRestore` restores the weights and the epoch, and restarts the epoch at its
first batch. A `CausalLM` counts the segments that it reads, so that the epoch can continue.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from txl_tf.data.lanes.segments import Segments
from txl_tf.errors import UserError


class EndEpochs(keras.callbacks.Callback):
    """Records the count of segments at the end of an epoch, before the model is saved there."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.n_before.assign(read_count(self.model.n_read))


class Resume(keras.callbacks.Callback):
    """Starts an epoch at the segment after the last one that a restored run has read.

    Args:
        segments: The data; `None` if they can only start at the first batch.
        backups: The callbacks that save and restore the run.
        initial_epoch: The first epoch of a run that is not restored.
        has_steps: Whether an epoch has `steps_per_epoch`, so that the data go on in the next one.
    """

    def __init__(
        self,
        segments: Segments | None,
        backups: Sequence[keras.callbacks.BackupAndRestore],
        *,
        initial_epoch: int,
        has_steps: bool,
    ):
        super().__init__()
        self._segments = segments
        self._backups = backups
        self._initial_epoch = initial_epoch
        self._has_steps = has_steps

    def on_train_begin(self, logs: Any = None) -> None:
        n_done = read_count(self.model.n_read) - read_count(self.model.n_before)
        if n_done and self._segments is None:
            raise UserError(
                f"the restored run stopped after {n_done} batches of an epoch, and only `Segments` "
                "without `steps_per_epoch` can continue there. Pass `Segments`, or back up only at "
                "the end of epochs"
            )
        if self._has_steps and self.model._initial_epoch:  # noqa: SLF001
            warnings.warn(
                "the data of the restored run begin anew, because of `steps_per_epoch`",
                stacklevel=2,
            )
        if self._segments is None or n_done < len(self._segments):
            return
        # The run was saved after the last segment of its epoch. Keras itself skips epochs by
        # setting this attribute.
        self.model.n_before.assign(read_count(self.model.n_read))
        first = self.model._initial_epoch or self._initial_epoch  # noqa: SLF001
        self.model._initial_epoch = first + 1  # noqa: SLF001

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        for backup in self._backups:  # they would save 0 until their first epoch ends
            backup._current_epoch = epoch  # noqa: SLF001
        if self._segments is not None:
            n_done = read_count(self.model.n_read) - read_count(self.model.n_before)
            self._segments.first = n_done

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # At the end of the data, a compiled function of TensorFlow would count one step too many.
        if self._segments is not None and self._segments.first and batch + 1 >= len(self._segments):
            self._segments.first = 0
            raise StopIteration


def read_count(counter: keras.Variable) -> int:
    """Returns the value of a counter, outside any replica."""
    return int(ops.convert_to_numpy(counter))
