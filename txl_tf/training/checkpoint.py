"""Saving and restoring a run.

A checkpoint is the files `checkpoints/ckpt-STEP.*` of a run folder. tensorflow writes its `.index`
last, so one that has an index is whole; no other file says which there are.
"""

import os
import re

import keras
import tensorflow as tf

from txl_tf.errors import UserError
from txl_tf.model import TransformerXL
from txl_tf.training.files import explain, explain_errors
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
        self.model_dir = model_dir
        self.model = model
        self.optimizer = optimizer
        self.keep = keep
        self._checkpoint = tf.train.Checkpoint(
            weights=_name_variables(model.weights), optimizer=_name_variables(optimizer.variables)
        )

    def restore(self) -> int:
        """Restores the newest checkpoint, if there is one, and returns the step: 0 if not.

        Raises:
            UserError: the checkpoint cannot be read or is of another model.
        """
        checkpoints = list_checkpoints(self.model_dir)
        if checkpoints:
            _restore(self._checkpoint, self.model, checkpoints[-1][1])
        return read_step_count(self.optimizer)

    def save(self) -> str:
        """Saves a checkpoint named after the step, removes old ones, and returns its path.

        Raises:
            UserError: it could not be written; the older checkpoints are as they were.
        """
        step = read_step_count(self.optimizer)
        path = os.path.join(self.model_dir, CHECKPOINTS_NAME, f"{PREFIX}-{step}")
        try:
            self._checkpoint.write(path)
        except (tf.errors.OpError, OSError) as error:
            _remove(path)
            kept = list_checkpoints(self.model_dir)
            newest = f"the newest whole one is {kept[-1][1]}" if kept else "there is no older one"
            raise UserError(
                f"checkpoint {path} could not be saved: {explain(error)}; {newest}"
            ) from error
        for _, old in list_checkpoints(self.model_dir)[: -self.keep]:
            _remove(old)
        return path


def list_checkpoints(model_dir: str) -> list[tuple[int, str]]:
    """Returns step and path of the whole checkpoints of a run, the oldest first."""
    folder = os.path.join(model_dir, CHECKPOINTS_NAME)
    indices = (re.fullmatch(rf"{PREFIX}-(\d+)\.index", name) for name in _list_names(folder))
    steps = sorted(int(match[1]) for match in indices if match)
    return [(step, os.path.join(folder, f"{PREFIX}-{step}")) for step in steps]


def read_step(path: str) -> int:
    """Returns the step in the name of a checkpoint, `.../ckpt-STEP`.

    Raises:
        UserError: the name does not end in a step.
    """
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
    _restore(tf.train.Checkpoint(weights=_name_variables(model.weights)), model, path)


def _name_variables(variables: list[keras.Variable]) -> dict[str, tf.Variable]:
    """Returns the variables by their paths, the names that they have in a checkpoint.

    `tf.train.Checkpoint(model)` would silently save the few that are attributes of the model: it
    does not look into the lists in which Keras layers hold others.
    """
    named = {variable.path.replace("/", "."): variable.value for variable in variables}
    assert len(named) == len(variables), "paths of variables must differ"
    return named


def _restore(checkpoint: tf.train.Checkpoint, model: TransformerXL, path: str) -> None:
    try:
        _check_weights(path, model)
        status = checkpoint.read(path)
        status.assert_existing_objects_matched()
        status.expect_partial()
    except UserError:
        raise
    except (tf.errors.OpError, ValueError, IndexError, AssertionError) as error:
        raise UserError(f"checkpoint {path} cannot be restored: {explain(error)}") from error


def _check_weights(path: str, model: TransformerXL) -> None:
    """Checks that a checkpoint has the weights of a model, no more and no less.

    tensorflow would say nothing of those that the checkpoint alone has.
    """
    key = re.compile(r"weights/(.*)/\.ATTRIBUTES/VARIABLE_VALUE")  # a dot in a name is doubled
    shapes = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    found = {
        match[1].replace("..", "."): shape
        for match, shape in ((key.fullmatch(name), shape) for name, shape in shapes.items())
        if match
    }
    wanted = {
        name: list(variable.shape) for name, variable in _name_variables(model.weights).items()
    }
    differences = [
        f"{name} is {found.get(name, 'missing')} there and {wanted.get(name, 'missing')} here"
        for name in sorted(found.keys() | wanted.keys())
        if found.get(name) != wanted.get(name)
    ]
    if differences:
        more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise UserError(
            f"checkpoint {path} is of another model: {'; '.join(differences[:3])}{more}"
        )


def _remove(path: str) -> None:
    """Removes the files of a checkpoint, the index first, and what an interrupted save left."""
    folder, name = os.path.split(path)
    with explain_errors(path):
        for part in sorted(_list_names(folder), reverse=True):
            if part.startswith(f"{name}."):
                tf.io.gfile.remove(os.path.join(folder, part))
        if tf.io.gfile.exists(f"{path}_temp"):
            tf.io.gfile.rmtree(f"{path}_temp")


def _list_names(folder: str) -> list[str]:
    with explain_errors(folder):
        return tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
