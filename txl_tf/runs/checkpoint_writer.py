"""Writing a checkpoint of a run; `txl_tf.runs.checkpoint_reader` describes its contents."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from txl_tf.config import ModelConfig
from txl_tf.data.files import make_folder
from txl_tf.errors import UserError, explain
from txl_tf.models.segment_model import SegmentModel
from txl_tf.runs.checkpoint_files import make_path, remove_checkpoint
from txl_tf.runs.checkpoint_reader import (
    AVERAGES_GROUP,
    CONFIG_GROUP,
    ORIGIN_GROUP,
    MemoryFileError,
    Origin,
    list_memory_parts,
    name_variables,
    write_shaping_fields,
)
from txl_tf.runs.folder import make_run_id, read_run_id

PATIENCE = 60.0  # seconds until a network file system shows the files of other hosts
Groups = dict[str, dict[str, tf.Variable]]


def write_checkpoint(path: str, groups: Mapping[str, Mapping[str, tf.Variable]]) -> None:
    """Writes groups of variables, and their index last: a checkpoint with an index is complete."""
    make_folder(os.path.dirname(path))
    tf.train.Checkpoint(**{name: dict(group) for name, group in groups.items()}).write(path)


@contextlib.contextmanager
def explain_failed_save(path: str, describe_kept: Callable[[], str] = str) -> Iterator[None]:
    """Converts the errors of a failed save to a `UserError` and removes the partial checkpoint.

    `describe_kept`, which is called afterwards, returns the end of the message.
    """
    try:
        yield
    except (tf.errors.OpError, OSError, UserError) as error:
        remove_checkpoint(path)
        raise UserError(
            f"checkpoint {path} could not be saved: {explain(error)}{describe_kept()}"
        ) from error


def save_weights(model_dir: str, model: SegmentModel, *, step: int, optimizer: Any = None) -> str:
    """Writes a checkpoint of a run without a memory, and returns its path.

    Without an optimizer it holds only weights, of `step` steps of training.
    """
    groups = {"weights": name_variables(model.weights)}
    if optimizer is not None:
        groups = group_variables(model, optimizer)
    groups |= make_config_group(model.config, has_memory=False)
    groups |= make_origin_group(Origin(step, read_run_id(model_dir) or make_run_id()))
    path = make_path(model_dir, step)
    with explain_failed_save(path):
        write_checkpoint(path, groups)
    return path


def group_variables(model: SegmentModel, optimizer: Any) -> Groups:
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


def make_config_group(config: ModelConfig, *, has_memory: bool = True) -> Groups:
    """Returns the group that holds the model's config and whether there is a memory."""
    fields = tf.Variable(write_shaping_fields(config))
    return {CONFIG_GROUP: {"model": fields, "has_memory": tf.Variable(has_memory)}}


def make_origin_group(origin: Origin) -> Groups:
    """Returns the group that names the step and the run."""
    return {ORIGIN_GROUP: {name: tf.Variable(x) for name, x in make_origin(origin).items()}}


def make_origin(origin: Origin) -> dict[str, tf.Tensor]:
    """Returns the tensors of the origin group by name."""
    return {
        "step": tf.constant(origin.step, tf.int64),
        "run_id": tf.constant(origin.run_id),
    }


def write_memory(
    path: str,
    memory: Sequence[tf.Tensor],
    origin: Origin,
    *,
    first_row: int,
    part: int = 0,
    n_parts: int = 1,
) -> None:
    """Writes the lanes of this process, tensors (rows, ...), beside a checkpoint."""
    make_folder(os.path.dirname(path))
    tensors = {
        f"layer_{index}/rows_{first_row}_{first_row + states.shape[0]}": states
        for index, states in enumerate(memory)
    }
    tensors |= {f"{ORIGIN_GROUP}/{name}": x for name, x in make_origin(origin).items()}
    write_tensors(f"{path}.memory-{part:05d}-of-{n_parts:05d}", tensors)


def wait_for_memory(path: str, n_parts: int) -> None:
    """Waits until the files of the memory of all processes exist, `PATIENCE` seconds at most."""
    end = time.monotonic() + PATIENCE
    while True:
        n_found = sum(int(match[2]) == n_parts for match in list_memory_parts(path))
        if n_found == n_parts:
            return
        if time.monotonic() > end:
            raise MemoryFileError(
                f"only {n_found} of {n_parts} processes have written into this folder: all need "
                "the same `model_dir` on a shared file system"
            )
        time.sleep(1.0)


def write_tensors(path: str, tensors: Mapping[str, tf.Tensor]) -> None:
    """Writes tensors or arrays under their names as a tensorflow checkpoint, sorted by name."""
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.convert_to_tensor(tensors[name]) for name in names],
    )
