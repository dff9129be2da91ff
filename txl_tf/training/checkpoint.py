"""Saving and restoring a run.

The position in the data and the random numbers are functions of the step, so a checkpoint holds
only the weights, their averages, the optimizer and the memory. It also holds the config of the
model, to explain why it cannot be restored into a different model.
"""

import contextlib
import os
import re
import shutil
from dataclasses import KW_ONLY, dataclass

import numpy as np
import tensorflow as tf

from txl_tf.data.files import access_path, exists, list_names, move_file
from txl_tf.errors import UserError, explain
from txl_tf.models.segment_model import SegmentModel
from txl_tf.runs.checkpoint import (
    DAMAGE,
    CheckpointReader,
    MemoryFileError,
    Origin,
    group_variables,
    list_parts,
    remove_checkpoint,
    write_checkpoint,
    write_memory,
)
from txl_tf.runs.checkpoint_choice import (
    CHECKPOINTS_NAME,
    PREFIX,
    list_checkpoints,
    make_path,
)
from txl_tf.runs.folder import make_run_id, read_run_id
from txl_tf.training.optimizer import Optimizer, read_step_count
from txl_tf.training.replica_memory import ReplicaMemory
from txl_tf.training.workers import Workers

# Read errors that do not mean damage: the checkpoint stays in place.
NO_DAMAGE = (
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnavailableError,
)

_ASIDE = "damaged-"  # before the names of files that were set aside
_SHARED = "all processes of a run need the same `model_dir` on a shared file system"


@dataclass(eq=False)
class Checkpointer:
    """The checkpoints of a run: weights, averages, optimizer, step and memory.

    All processes must make the same calls of `restore` and `save`. Each writes the memory of its
    own lanes; then the chief writes the rest, and removes all but the best and the `keep` newest
    checkpoints.

    In the 2019 code: `load_from_checkpoint`.
    """

    model_dir: str
    model: SegmentModel
    optimizer: Optimizer
    memory: ReplicaMemory
    workers: Workers
    _: KW_ONLY
    run_id: str
    keep: int = 5

    def __post_init__(self) -> None:
        self._variables = group_variables(self.model, self.optimizer)

    def restore(self) -> int:
        """Restores the newest readable checkpoint; returns its step, or 0 if there is none.

        A checkpoint that is damaged, or whose parts belong to another step or run, is set aside:
        its files are renamed to `damaged-ckpt-STEP.*`.

        Raises:
            UserError: If a checkpoint belongs to another model, or none of them can be read.
        """
        if self.workers.is_chief:
            # Before any process writes to these files again.
            _clear_torn(self.model_dir, self.workers)
        while True:
            found = list_checkpoints(self.model_dir)
            newest = found[-1][0] if found else -1
            (step,) = map(int, self.workers.broadcast([newest]))
            if step < 0:
                break
            path = make_path(self.model_dir, step)
            damage = self._read(path)
            damaged = np.flatnonzero(self.workers.gather([damage is not None]))
            if not damaged.size:
                return read_step_count(self.optimizer)
            if self.workers.is_chief:
                _set_aside(path)
                reason = damage or f"{self.workers.name(damaged[0])} cannot read it"
                self.workers.say(f"Checkpoint {path} is damaged and was set aside: {reason}")
            self.workers.wait()
        names = list_names(os.path.join(self.model_dir, CHECKPOINTS_NAME))
        is_aside = any(name.startswith(_ASIDE) for name in names)
        (has_damaged,) = self.workers.broadcast([is_aside])
        if has_damaged:
            raise UserError(
                f"`{self.model_dir}` holds no checkpoint that can be read: move its "
                f"{CHECKPOINTS_NAME}/{_ASIDE}* away to start over"
            )
        return 0

    def _read(self, path: str) -> str | None:
        """Reads a checkpoint into model, optimizer and memory; returns its damage or `None`."""
        if not exists(f"{path}.index"):  # the chief has found it
            raise UserError(f"{path} is missing for this process: {_SHARED}")
        try:
            reader = CheckpointReader(path)
            reader.check_weights(self.model)  # first, as another model has another memory
            reader.check_optimizer()
            mismatch = reader.find_mismatch(self.run_id)
            if mismatch:
                return mismatch
            memory = None
            if reader.has_memory:
                memory = reader.read_memory(self.memory.n_tensors, self.memory.lanes)
            for group, variables in self._variables.items():
                reader.restore(group, variables)
        except NO_DAMAGE as error:
            raise UserError(f"checkpoint {path} cannot be read: {explain(error)}") from error
        except (*DAMAGE, MemoryFileError) as error:
            return explain(error)
        if memory is None:
            self.workers.say(f"Checkpoint {path} has no memory: the run starts with an empty one.")
        else:
            self.memory.load(memory)
        return None

    def save(self, *, keep_step: int | None = None) -> str:
        """Saves a checkpoint, removes old ones except the one of `keep_step`; returns its path.

        Raises:
            UserError: If it cannot be written. The older checkpoints are not affected.
        """
        step = read_step_count(self.optimizer)
        path = make_path(self.model_dir, step)
        origin = Origin(step, self.run_id)
        n_parts = self.workers.count
        write_memory(
            path,
            self.memory.gather(),
            origin,
            first_row=self.memory.lanes.start,
            part=self.workers.index,
            n_parts=n_parts,
        )
        self.workers.wait()  # for all parts: the index, written last, marks completion
        if self.workers.is_chief:
            config = self.model.config
            write_checkpoint(path, self._variables, config, origin, n_memory_parts=n_parts)
            for old_step, old in list_checkpoints(self.model_dir)[: -self.keep]:
                if old_step != keep_step:
                    remove_checkpoint(old)
            _clear_torn(self.model_dir, self.workers)
        self.workers.wait()  # no process ends before the checkpoint is complete
        return path


def _set_aside(path: str) -> None:
    """Renames the files of a checkpoint so that it is no longer found."""
    with access_path(path):
        for part in list_parts(path):
            folder, name = os.path.split(part)
            move_file(part, os.path.join(folder, f"{_ASIDE}{name}"))


def _clear_torn(model_dir: str, workers: Workers) -> None:
    """Removes what interrupted saves and removals have left: files without an index."""
    folder = os.path.join(model_dir, CHECKPOINTS_NAME)
    complete = {os.path.basename(path) for _, path in list_checkpoints(model_dir)}
    names = list_names(folder)
    for name in complete:
        if f"{name}_temp" in names:  # only the removal of this folder was interrupted
            shutil.rmtree(os.path.join(folder, f"{name}_temp"), ignore_errors=True)
    found = (re.match(rf"{PREFIX}-\d+(?=[._])", name) for name in names)
    for name in sorted({match[0] for match in found if match} - complete):
        path = os.path.join(folder, name)
        remains = ", ".join(map(os.path.basename, list_parts(path))) or f"{name}_temp"
        remove_checkpoint(path)
        workers.say(
            f"Removed the remains of an interrupted save or removal of checkpoint {path}: {remains}"
        )


def share_run_id(workers: Workers, model_dir: str) -> str:
    """Returns the id of a run, the same in all its processes.

    It is the id in the run folder; or else the id that the newest checkpoint names, since the
    folder may have been copied without `run.json`; or else a new one.
    """
    number = 0
    if workers.is_chief:
        number = int(read_run_id(model_dir) or _find_named_run(model_dir) or make_run_id(), 16)
    (number,) = map(int, workers.broadcast([number]))  # below 2^53, exact in float64
    return f"{number:012x}"


def _find_named_run(model_dir: str) -> str | None:
    """Returns the run id that the newest checkpoint names; `None` if there is none."""
    for _, path in list_checkpoints(model_dir)[-1:]:
        with contextlib.suppress(*DAMAGE):  # reported when it is restored
            return CheckpointReader(path).origin.run_id
    return None
