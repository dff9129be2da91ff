"""Saving and restoring a run."""

import os
import re

import keras
import tensorflow as tf

from txl_tf.errors import UserError
from txl_tf.model import TransformerXL
from txl_tf.training.optimizer import read_step_count

CHECKPOINTS_NAME = "checkpoints"
PREFIX = "ckpt"


class Checkpointer:
    """The checkpoints of a run: weights, optimizer and step.

    Args:
        model_dir: run folder.
        model: the model.
        optimizer: built; its `iterations` is the step.
        keep: how many of the newest checkpoints stay.
    """

    def __init__(
        self,
        model_dir: str,
        model: TransformerXL,
        optimizer: keras.optimizers.Optimizer,
        *,
        keep: int = 5,
    ):
        self.checkpoint = tf.train.Checkpoint(
            weights=_name_variables(model.weights), optimizer=_name_variables(optimizer.variables)
        )
        self.optimizer = optimizer
        self.folder = os.path.join(model_dir, CHECKPOINTS_NAME)
        self.manager = tf.train.CheckpointManager(
            self.checkpoint, self.folder, max_to_keep=keep, checkpoint_name=PREFIX
        )

    def restore(self) -> int:
        """Restores the newest checkpoint, if there is one, and returns the step: 0 if not.

        Raises:
            UserError: the checkpoint cannot be read or is of another model.
        """
        path = self.manager.latest_checkpoint
        if path:
            _restore(self.checkpoint, path)
        return read_step_count(self.optimizer)

    def save(self) -> str:
        """Saves a checkpoint named after the step, and returns its path.

        Raises:
            UserError: it could not be written; the older checkpoints are as they were.
        """
        step = read_step_count(self.optimizer)
        try:
            return self.manager.save(checkpoint_number=step)
        except (tf.errors.OpError, OSError) as error:
            path = os.path.join(self.folder, f"{PREFIX}-{step}")
            for part in tf.io.gfile.glob(f"{path}.*") + tf.io.gfile.glob(f"{path}_temp/*"):
                tf.io.gfile.remove(part)
            newest = self.manager.latest_checkpoint
            kept = f"the newest whole one is {newest}" if newest else "there is no older one"
            reason = str(error).splitlines()[0]
            raise UserError(f"checkpoint {path} could not be saved: {reason}; {kept}") from error


def list_checkpoints(model_dir: str) -> list[tuple[int, str]]:
    """Returns step and path of the checkpoints of a run, the oldest first."""
    state = tf.train.get_checkpoint_state(os.path.join(model_dir, CHECKPOINTS_NAME))
    paths = state.all_model_checkpoint_paths if state else []
    return [(read_step(path), path) for path in paths]


def read_step(path: str) -> int:
    """Returns the step in the name of a checkpoint, `.../ckpt-STEP`."""
    match = re.search(r"-(\d+)$", path)
    if not match:
        raise UserError(f"{path!r} does not end in a step, as in ckpt-1000")
    return int(match[1])


def find_checkpoint(model_dir: str) -> str:
    """Returns the path of the newest checkpoint of a run.

    Raises:
        UserError: there is none.
    """
    checkpoints = list_checkpoints(model_dir)
    if not checkpoints:
        raise UserError(f"`{model_dir}` holds no checkpoint")
    return checkpoints[-1][1]


def load_weights(model: TransformerXL, path: str) -> None:
    """Restores the weights alone from a checkpoint, `.../ckpt-STEP`.

    Raises:
        UserError: the checkpoint cannot be read or is of another model.
    """
    _restore(tf.train.Checkpoint(weights=_name_variables(model.weights)), path)


def _name_variables(variables: list[keras.Variable]) -> dict[str, tf.Variable]:
    """Returns the variables by their paths, the names that they have in a checkpoint.

    `tf.train.Checkpoint(model)` would silently save the few that are attributes of the model: it
    does not look into the lists in which Keras layers hold others.
    """
    named = {variable.path.replace("/", "."): variable.value for variable in variables}
    assert len(named) == len(variables), "paths of variables must differ"
    return named


def _restore(checkpoint: tf.train.Checkpoint, path: str) -> None:
    try:
        status = checkpoint.restore(path)
        status.assert_existing_objects_matched()
        status.expect_partial()
    except (tf.errors.OpError, ValueError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"checkpoint {path} cannot be restored: {reason}") from error
