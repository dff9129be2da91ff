"""Writing a checkpoint of a run; `txl_tf.runs.checkpoint_reader` describes its contents."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import keras
import tensorflow as tf

from txl_tf.data.files import access_path
from txl_tf.errors import UserError, explain
from txl_tf.model import SegmentModel
from txl_tf.runs.checkpoint_files import make_path, remove_checkpoint
from txl_tf.runs.checkpoint_reader import (
    AVERAGES_GROUP,
    CONFIG_GROUP,
    ORIGIN_GROUP,
    Origin,
    name_variables,
    write_shaping_fields,
)
from txl_tf.runs.folder import read_run_id

Groups = dict[str, dict[str, tf.Variable]]


class SavedOptimizer(Protocol):
    """The part of an optimizer that a checkpoint saves."""

    @property
    def variables(self) -> list[keras.Variable]:
        """All its variables, including the averages."""
        ...

    @property
    def averaged_weights(self) -> list[tuple[keras.Variable, keras.Variable]]:
        """Each weight with its average; empty if the optimizer keeps none."""
        ...


def write_checkpoint(path: str, groups: Mapping[str, Mapping[str, tf.Variable]]) -> None:
    """Writes groups of variables, and their index last: a checkpoint with an index is complete.

    Args:
        path: The path of the checkpoint; its folder is created.
        groups: The variables by group and name.

    Raises:
        Exception: One of the errors that `explain_failed_save` converts.
    """
    with access_path(path):
        tf.io.gfile.makedirs(os.path.dirname(path))
    tf.train.Checkpoint(**{name: dict(group) for name, group in groups.items()}).write(path)


@contextlib.contextmanager
def explain_failed_save(path: str, describe_kept: Callable[[], str] = str) -> Iterator[None]:
    """Converts the errors of a failed save to a `UserError` and removes the partial checkpoint.

    Args:
        path: The path of the checkpoint.
        describe_kept: Called after the removal; returns the end of the message.
    """
    try:
        yield
    except (tf.errors.OpError, OSError, UserError) as error:
        remove_checkpoint(path)
        raise UserError(
            f"checkpoint {path} could not be saved: {explain(error)}{describe_kept()}"
        ) from error


def save_weights(
    model_dir: str, model: SegmentModel, *, step: int, optimizer: SavedOptimizer | None = None
) -> str:
    """Writes a checkpoint of a run without a memory.

    Args:
        model_dir: The run folder.
        model: The model whose weights are saved.
        step: The number of training steps behind the weights.
        optimizer: The optimizer whose state is saved as well; `None` for the weights only.

    Returns:
        The path of the checkpoint.

    Raises:
        UserError: If it cannot be written.
    """
    groups = {"weights": name_variables(model.weights)}
    if optimizer is not None:
        groups = group_variables(model, optimizer)
    groups |= make_config_group(model, has_memory=False)
    groups |= make_origin_group(Origin(step, read_run_id(model_dir)))
    path = make_path(model_dir, step)
    with explain_failed_save(path):
        write_checkpoint(path, groups)
    return path


def group_variables(model: SegmentModel, optimizer: SavedOptimizer) -> Groups:
    """Returns the variables of a checkpoint by group and name, each of them once."""
    # An average has the name of its weight, so that it can be restored in its place.
    averages = {
        weight.path.replace("/", "."): average for weight, average in optimizer.averaged_weights
    }
    average_ids = {id(average) for average in averages.values()}
    rest = [variable for variable in optimizer.variables if id(variable) not in average_ids]
    groups = {"weights": name_variables(model.weights), "optimizer": name_variables(rest)}
    if averages:
        groups[AVERAGES_GROUP] = {name: average.value for name, average in averages.items()}
    return groups


def make_config_group(model: SegmentModel, *, has_memory: bool = True) -> Groups:
    """Returns the group that holds the model's config and whether there is a memory."""
    values: dict[str, Any] = {"model": write_shaping_fields(model.config), "has_memory": has_memory}
    return {CONFIG_GROUP: {name: tf.Variable(value) for name, value in values.items()}}


def make_origin_group(origin: Origin) -> Groups:
    """Returns the group that names the step and the run."""
    return {ORIGIN_GROUP: {name: tf.Variable(x) for name, x in make_origin(origin).items()}}


def make_origin(origin: Origin) -> dict[str, tf.Tensor]:
    """Returns the tensors of the origin group by name."""
    tensors = {"step": tf.constant(origin.step, tf.int64)}
    if origin.run_id:
        tensors["run_id"] = tf.constant(origin.run_id)
    return tensors


def write_tensors(path: str, tensors: Mapping[str, tf.Tensor]) -> None:
    """Writes tensors under their names as a tensorflow checkpoint, sorted by name.

    Args:
        path: The path of the checkpoint, without `.index`.
        tensors: The tensors or arrays by name.

    Raises:
        tf.errors.OpError: If the checkpoint cannot be written.
    """
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.convert_to_tensor(tensors[name]) for name in names],
    )
