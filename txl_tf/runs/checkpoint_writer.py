"""Writing a checkpoint of a run; see `txl_tf.runs.checkpoint_reader` for what it holds."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import keras
import tensorflow as tf

from txl_tf.data.files import access_path
from txl_tf.errors import UserError, explain
from txl_tf.model import TransformerXL
from txl_tf.runs.checkpoint_files import CHECKPOINTS_NAME, PREFIX, remove_checkpoint
from txl_tf.runs.checkpoint_reader import (
    CONFIG_GROUP,
    ORIGIN_GROUP,
    Origin,
    name_variables,
    write_shaping_fields,
)
from txl_tf.runs.folder import read_run_id

Groups = dict[str, dict[str, tf.Variable]]


class SavedOptimizer(Protocol):
    """What a checkpoint needs to know of an optimizer."""

    @property
    def variables(self) -> list[keras.Variable]:
        """All its variables, the averages among them."""
        ...

    @property
    def averages(self) -> list[tuple[keras.Variable, keras.Variable]]:
        """Each weight and its moving average, if it keeps any."""
        ...


def write_checkpoint(path: str, groups: Mapping[str, Mapping[str, tf.Variable]]) -> None:
    """Writes groups of variables. Their index comes last: a checkpoint that has one is whole.

    Args:
        path: of the checkpoint; its folder is made.
        groups: variables by group and name.

    Raises:
        Exception: What `explain_failed_save` explains.
    """
    with access_path(path):
        tf.io.gfile.makedirs(os.path.dirname(path))
    tf.train.Checkpoint(**{name: dict(group) for name, group in groups.items()}).write(path)


@contextlib.contextmanager
def explain_failed_save(path: str, describe_kept: Callable[[], str] = str) -> Iterator[None]:
    """Turns the errors of a failed save into a `UserError`; nothing of the checkpoint stays.

    Args:
        path: of the checkpoint.
        describe_kept: called after the removal; returns the end of the message.
    """
    try:
        yield
    except (tf.errors.OpError, OSError, UserError) as error:
        remove_checkpoint(path)
        raise UserError(
            f"checkpoint {path} could not be saved: {explain(error)}{describe_kept()}"
        ) from error


def save_weights(
    model_dir: str, model: TransformerXL, *, step: int, optimizer: SavedOptimizer | None = None
) -> str:
    """Writes a checkpoint of a run without memory.

    Args:
        model_dir: the run folder.
        model: its weights.
        step: how many steps made them.
        optimizer: its state is kept; `None`: the weights alone.

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
    path = os.path.join(model_dir, CHECKPOINTS_NAME, f"{PREFIX}-{step}")
    with explain_failed_save(path):
        write_checkpoint(path, groups)
    return path


def group_variables(model: TransformerXL, optimizer: SavedOptimizer) -> Groups:
    """Returns the variables of a checkpoint by group and name, each once."""
    averages = {weight.path: average for weight, average in optimizer.averages}
    own = {id(average) for average in averages.values()}
    rest = [variable for variable in optimizer.variables if id(variable) not in own]
    groups = {"weights": name_variables(model.weights), "optimizer": name_variables(rest)}
    if averages:
        groups["averages"] = {
            path.replace("/", "."): average.value for path, average in averages.items()
        }
    return groups


def make_config_group(model: TransformerXL, *, has_memory: bool = True) -> Groups:
    """Returns the group that holds the model's config, and whether there is a memory."""
    values: dict[str, Any] = {"model": write_shaping_fields(model.config), "has_memory": has_memory}
    return {CONFIG_GROUP: {name: tf.Variable(value) for name, value in values.items()}}


def make_origin_group(origin: Origin) -> Groups:
    """Returns the group that names the step and the run."""
    return {ORIGIN_GROUP: {name: tf.Variable(x) for name, x in make_origin(origin).items()}}


def make_origin(origin: Origin) -> dict[str, tf.Tensor]:
    """Returns the tensors that name the step and the run, by name."""
    tensors = {"step": tf.constant(origin.step, tf.int64)}
    if origin.run_id:
        tensors["run_id"] = tf.constant(origin.run_id)
    return tensors


def write_tensors(path: str, tensors: Mapping[str, tf.Tensor]) -> None:
    """Writes tensors as a checkpoint of tensorflow under their names, in the order of these.

    Args:
        path: of the checkpoint, without `.index`.
        tensors: or arrays.

    Raises:
        tf.errors.OpError: it cannot be written.
    """
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.convert_to_tensor(tensors[name]) for name in names],
    )
