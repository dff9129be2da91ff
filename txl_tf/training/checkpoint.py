"""Saving and restoring a run.

A checkpoint is the files `checkpoints/ckpt-STEP.*` of a run folder: first those of the memory, then
weights and optimizer, whose `.index` tensorflow writes last of all. So one that has an index is
whole; no other file says which there are. Position in the data and random states are functions of
the step.

Averages of the weights are named after these, in a group of their own: to evaluate them, no
optimizer is needed.
"""

import os
import re
from collections.abc import Callable

import keras
import tensorflow as tf

from txl_tf.errors import UserError
from txl_tf.model import TransformerXL
from txl_tf.training.files import explain, explain_errors, list_names
from txl_tf.training.memory_files import MemoryFileError, read_memory, write_memory
from txl_tf.training.optimizer import ReducedOptimizer, read_step_count
from txl_tf.training.replica_memory import ReplicaMemory

CHECKPOINTS_NAME = "checkpoints"
PREFIX = "ckpt"
# What reading a file raises that is cut, changed or missing; and what has other causes.
DAMAGE = (tf.errors.OpError, MemoryFileError, IndexError, RuntimeError)
NO_DAMAGE = (
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnavailableError,
)


class Checkpointer:
    """The checkpoints of a run: weights, their averages, optimizer, step and memory.

    Args:
        model_dir: run folder.
        model: the model.
        optimizer: built; its `iterations` is the step.
        memory: of all lanes.
        keep: how many of the newest checkpoints stay.
        warn: called with a line on a checkpoint that is set aside.
    """

    def __init__(
        self,
        model_dir: str,
        model: TransformerXL,
        optimizer: ReducedOptimizer,
        memory: ReplicaMemory,
        *,
        keep: int = 5,
        warn: Callable[[str], None] = print,
    ):
        self.model_dir = model_dir
        self.model = model
        self.optimizer = optimizer
        self.memory = memory
        self.keep = keep
        self.warn = warn
        self._checkpoint = tf.train.Checkpoint(**_group_variables(model, optimizer))

    def restore(self) -> int:
        """Restores the newest checkpoint that can be read; returns the step, 0 if there is none.

        One that is damaged is set aside, its files called `damaged-ckpt-STEP.*`.

        Raises:
            UserError: a checkpoint is of another model, or none of those there can be read.
        """
        checkpoints = list_checkpoints(self.model_dir)
        for _, path in reversed(checkpoints):
            try:
                _check_weights(path, self.model)  # another model would lack a memory too
                memory = read_memory(path, self.model.config.n_layer, self.memory.lanes)
                _restore(self._checkpoint, path)
            except NO_DAMAGE as error:
                raise UserError(f"checkpoint {path} cannot be read: {explain(error)}") from error
            except DAMAGE as error:
                _set_aside(path)
                self.warn(f"Checkpoint {path} is damaged and was set aside: {explain(error)}")
                continue
            self.memory.load(memory)
            return read_step_count(self.optimizer)
        if checkpoints:
            raise UserError(f"`{self.model_dir}` holds no checkpoint that can be read")
        return 0

    def save(self, *, keep_step: int | None = None) -> str:
        """Saves a checkpoint named after the step, removes old ones, and returns its path.

        Args:
            keep_step: step of an older checkpoint that stays.

        Raises:
            UserError: it could not be written; the older checkpoints are as they were.
        """
        step = read_step_count(self.optimizer)
        path = os.path.join(self.model_dir, CHECKPOINTS_NAME, f"{PREFIX}-{step}")
        try:
            with explain_errors(path):
                tf.io.gfile.makedirs(os.path.dirname(path))
            write_memory(path, self.memory.gather(), first_row=self.memory.lanes.start)
            self._checkpoint.write(path)
        except (tf.errors.OpError, OSError) as error:
            remove_checkpoint(path)
            kept = list_checkpoints(self.model_dir)
            newest = f"the newest whole one is {kept[-1][1]}" if kept else "there is no older one"
            raise UserError(
                f"checkpoint {path} could not be saved: {explain(error)}; {newest}"
            ) from error
        for old_step, old in list_checkpoints(self.model_dir)[: -self.keep]:
            if old_step != keep_step:
                remove_checkpoint(old)
        _remove_torn(self.model_dir)
        return path


def list_checkpoints(model_dir: str) -> list[tuple[int, str]]:
    """Returns step and path of the whole checkpoints of a run, the oldest first."""
    folder = os.path.join(model_dir, CHECKPOINTS_NAME)
    indices = (re.fullmatch(rf"{PREFIX}-(\d+)\.index", name) for name in list_names(folder))
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


def load_weights(model: TransformerXL, path: str, *, use_averages: bool = True) -> bool:
    """Restores the weights alone from a checkpoint, `.../ckpt-STEP`.

    Args:
        model: gets them.
        path: of the checkpoint.
        use_averages: take their averages where the checkpoint has any.

    Returns:
        Whether they are averages.

    Raises:
        UserError: the checkpoint cannot be read or is of another model.
    """
    try:
        group = "averages" if use_averages and read_shapes(path, "averages") else "weights"
        _check_weights(path, model, group)
        _restore(tf.train.Checkpoint(**{group: _name_variables(model.weights)}), path)
    except DAMAGE as error:
        raise UserError(f"checkpoint {path} cannot be restored: {explain(error)}") from error
    return group == "averages"


def _group_variables(
    model: TransformerXL, optimizer: ReducedOptimizer
) -> dict[str, dict[str, tf.Variable]]:
    """Returns the variables of a checkpoint by group and path, each once."""
    averages = {weight.path: average for weight, average in optimizer.averages}
    own = {id(average) for average in averages.values()}
    rest = [variable for variable in optimizer.variables if id(variable) not in own]
    groups = {"weights": _name_variables(model.weights), "optimizer": _name_variables(rest)}
    if averages:
        groups["averages"] = {
            path.replace("/", "."): average.value for path, average in averages.items()
        }
    return groups


def _name_variables(variables: list[keras.Variable]) -> dict[str, tf.Variable]:
    """Returns the variables by their paths, the names that they have in a checkpoint.

    `tf.train.Checkpoint(model)` would silently save the few that are attributes of the model: it
    does not look into the lists in which Keras layers hold others.
    """
    named = {variable.path.replace("/", "."): variable.value for variable in variables}
    assert len(named) == len(variables), "paths of variables must differ"
    return named


def _restore(checkpoint: tf.train.Checkpoint, path: str) -> None:
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
    shapes = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    return {
        match[1].replace("..", "."): shape
        for match, shape in ((key.fullmatch(name), shape) for name, shape in shapes.items())
        if match
    }


def _check_weights(path: str, model: TransformerXL, group: str = "weights") -> None:
    """Checks that a checkpoint has the weights of a model, no more and no less.

    tensorflow would say nothing of those that the checkpoint alone has.
    """
    found = read_shapes(path, group)
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


def _list_parts(path: str) -> list[str]:
    """Returns the files of a checkpoint, the index first: without it the others are none."""
    folder, name = os.path.split(path)
    parts = [part for part in list_names(folder) if part.startswith(f"{name}.")]
    parts.sort(key=lambda part: part != f"{name}.index")
    return [os.path.join(folder, part) for part in parts]


def _set_aside(path: str) -> None:
    """Gives the files of a checkpoint a name under which nothing looks for them."""
    with explain_errors(path):
        for part in _list_parts(path):
            folder, name = os.path.split(part)
            tf.io.gfile.rename(part, os.path.join(folder, f"damaged-{name}"), overwrite=True)


def _remove_torn(model_dir: str) -> None:
    """Removes what saves left that were killed: files of checkpoints without an index."""
    folder = os.path.join(model_dir, CHECKPOINTS_NAME)
    whole = {os.path.basename(path) for _, path in list_checkpoints(model_dir)}
    found = (re.match(rf"{PREFIX}-\d+(?=[._])", name) for name in list_names(folder))
    for name in {match[0] for match in found if match} - whole:
        remove_checkpoint(os.path.join(folder, name))


def remove_checkpoint(path: str) -> None:
    """Removes the files of a checkpoint, the index first, and what an interrupted save left."""
    with explain_errors(path):
        for part in _list_parts(path):
            tf.io.gfile.remove(part)
        if tf.io.gfile.exists(f"{path}_temp"):
            tf.io.gfile.rmtree(f"{path}_temp")
