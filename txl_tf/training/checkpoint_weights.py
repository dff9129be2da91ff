"""The variables in a checkpoint, by group and name.

Weights, their averages and the optimizer are groups; a variable is called after its path.
"""

import json
import os
import re
import shlex
from typing import Any

import keras
import tensorflow as tf

from txl_tf.config import SHAPELESS
from txl_tf.config_base import list_differences
from txl_tf.errors import UserError
from txl_tf.model import TransformerXL
from txl_tf.training.checkpoint_files import CHECKPOINTS_NAME, PREFIX
from txl_tf.training.checkpoint_origin import Origin, check_origin, make_origin_group
from txl_tf.training.files import explain, explain_errors, open_checkpoint
from txl_tf.training.memory_files import MemoryFileError
from txl_tf.training.optimizer import ReducedOptimizer
from txl_tf.training.run_folder import read_run_id

# What reading a file raises that is cut, changed or missing.
DAMAGE = (tf.errors.OpError, MemoryFileError, IndexError, RuntimeError)
RELEASE_SCOPE = "transformer/"  # all weights of the 2019 release are under it
_CONFIG_NAME, _HAS_MEMORY = "config", "has_memory"


def load_weights(model: TransformerXL, path: str, *, use_averages: bool = True) -> bool:
    """Restores the weights alone from a checkpoint, `.../ckpt-STEP`.

    Args:
        model: gets them.
        path: of the checkpoint.
        use_averages: take their averages where the checkpoint has any.

    Returns:
        Whether they are averages.

    Raises:
        UserError: the checkpoint cannot be read, is of another model, step or run than it should
            be, or of the 2019 release.
    """
    check_not_release(path)
    try:
        check_origin(path)
        group = "averages" if use_averages and read_shapes(path, "averages") else "weights"
        check_weights(path, model, group)
        restore_variables(tf.train.Checkpoint(**{group: name_variables(model.weights)}), path)
    except DAMAGE as error:
        raise UserError(f"checkpoint {path} cannot be restored: {explain(error)}") from error
    return group == "averages"


def save_weights(
    model_dir: str, model: TransformerXL, *, step: int, optimizer: ReducedOptimizer | None = None
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
        UserError: it cannot be written.
    """
    groups = {"weights": name_variables(model.weights)}
    if optimizer is not None:
        groups = group_variables(model, optimizer)
    groups |= make_config_group(model, has_memory=False)
    groups |= make_origin_group(Origin(step, read_run_id(model_dir)))
    path = os.path.join(model_dir, CHECKPOINTS_NAME, f"{PREFIX}-{step}")
    with explain_errors(path):
        tf.io.gfile.makedirs(os.path.dirname(path))
    try:
        tf.train.Checkpoint(**groups).write(path)
    except (tf.errors.OpError, OSError) as error:
        raise UserError(f"checkpoint {path} could not be saved: {explain(error)}") from error
    return path


def check_not_release(path: str) -> None:
    """Checks that a checkpoint, if it can be read, is not one of the 2019 release.

    Raises:
        UserError: it is.
    """
    try:
        names = open_checkpoint(path).get_variable_to_shape_map()
    except DAMAGE:
        return  # whoever restores it says so
    if any(name.startswith(RELEASE_SCOPE) for name in names):
        # As it is downloaded: NAME/model/model.ckpt-0, beside NAME/data.
        folder = os.path.dirname(path) or "."
        source = os.path.dirname(folder) if os.path.basename(folder) == "model" else folder
        raise UserError(
            f"{path} is a checkpoint of the 2019 release. Make a run of it first: "
            f"python -m txl_tf.import_release --source {shlex.quote(source or '.')} --out MODEL_DIR"
        )


def group_variables(
    model: TransformerXL, optimizer: ReducedOptimizer
) -> dict[str, dict[str, tf.Variable]]:
    """Returns the variables of a checkpoint by group and path, each once."""
    averages = {weight.path: average for weight, average in optimizer.averages}
    own = {id(average) for average in averages.values()}
    rest = [variable for variable in optimizer.variables if id(variable) not in own]
    groups = {"weights": name_variables(model.weights), "optimizer": name_variables(rest)}
    if averages:
        groups["averages"] = {
            path.replace("/", "."): average.value for path, average in averages.items()
        }
    return groups


def make_config_group(
    model: TransformerXL, *, has_memory: bool = True
) -> dict[str, dict[str, tf.Variable]]:
    """Returns what a checkpoint says of itself: the model's config, and whether it has a memory."""
    values = {"model": _write_config(model), _HAS_MEMORY: has_memory}
    return {_CONFIG_NAME: {name: tf.Variable(value) for name, value in values.items()}}


def holds_memory(path: str) -> bool:
    """Tells whether a checkpoint has a memory; one that others made has none.

    Raises:
        Exception: one of `DAMAGE`.
    """
    reader, key = open_checkpoint(path), make_key(_CONFIG_NAME, _HAS_MEMORY)
    return bool(reader.get_tensor(key)) if reader.has_tensor(key) else True


def _write_config(model: TransformerXL) -> str:
    """Returns the fields of a config that shape the weights, as a text."""
    fields = model.config.to_json()
    return json.dumps({name: fields[name] for name in fields if name not in SHAPELESS})


def _read_config(path: str) -> dict[str, Any]:
    """Returns the config of the model in a checkpoint; empty where there is none."""
    reader, key = open_checkpoint(path), make_key(_CONFIG_NAME, "model")
    return json.loads(reader.get_tensor(key)) if reader.has_tensor(key) else {}


def name_variables(variables: list[keras.Variable]) -> dict[str, tf.Variable]:
    """Returns the variables by their paths, the names that they have in a checkpoint.

    `tf.train.Checkpoint(model)` would silently save the few that are attributes of the model: it
    does not look into the lists in which Keras layers hold others.
    """
    named = {variable.path.replace("/", "."): variable.value for variable in variables}
    assert len(named) == len(variables), "paths of variables must differ"
    return named


def restore_variables(checkpoint: tf.train.Checkpoint, path: str) -> None:
    """Restores what a checkpoint of tensorflow tracks.

    Raises:
        UserError: it tracks less.
        Exception: one of `DAMAGE`.
    """
    try:
        status = checkpoint.read(path)
        status.assert_existing_objects_matched()
        status.expect_partial()
    except AssertionError as error:
        raise UserError(f"checkpoint {path} cannot be restored: {explain(error)}") from error


def make_key(group: str, name: str) -> str:
    """Returns what a variable of a group is called in the files of a checkpoint."""
    return f"{group}/{name.replace('.', '..')}/.ATTRIBUTES/VARIABLE_VALUE"


def read_shapes(path: str, group: str) -> dict[str, list[int]]:
    """Returns the shapes of a group of variables by name; none if there is no such group.

    Raises:
        Exception: one of `DAMAGE`.
    """
    key = re.compile(re.escape(make_key(group, "NAME")).replace("NAME", "(.*)"))
    shapes = open_checkpoint(path).get_variable_to_shape_map()
    return {
        match[1].replace("..", "."): shape
        for match, shape in ((key.fullmatch(name), shape) for name, shape in shapes.items())
        if match
    }


def check_weights(path: str, model: TransformerXL, group: str = "weights") -> None:
    """Checks that a checkpoint has the weights of a model, no more and no less.

    tensorflow would say nothing of those that the checkpoint alone has.
    """
    found = read_shapes(path, group)
    wanted = {
        name: list(variable.shape) for name, variable in name_variables(model.weights).items()
    }
    if found != wanted:
        fields = list_differences(_read_config(path), json.loads(_write_config(model)))
        differences = fields or list_differences(found, wanted)
        more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise UserError(
            f"checkpoint {path} is of another model: {'; '.join(differences[:3])}{more}"
        )
