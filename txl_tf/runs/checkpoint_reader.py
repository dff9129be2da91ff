"""Reading a checkpoint of a run.

A checkpoint holds groups of variables: `weights`, their `averages` (an EMA or a uniform mean) and
`optimizer`. A variable is named after its path in the model. Two small groups describe the
checkpoint itself: `config` holds the model's config and whether there is a memory, `origin` names
the step and the run.

The memory lies beside them, in one file for each process: `ckpt-STEP.memory-PART-of-PARTS` is a
tensorflow checkpoint whose tensors are called `layer_I/rows_START_STOP` after the lanes that they
hold: lanes, not replicas, because a run may resume with another number of replicas. I counts the
tensors of the memory. These files name their origin too, so that parts of different checkpoints are
never mixed.
"""

import contextlib
import json
import os
import re
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from txl_tf.config import SHAPELESS, ModelConfig
from txl_tf.config.base import list_differences
from txl_tf.data.files import check_address, list_names
from txl_tf.errors import UserError, explain
from txl_tf.models.segment_model import SegmentModel
from txl_tf.runs.checkpoint_files import (
    CHECKPOINTS_NAME,
    PREFIX,
    RELEASE_SCOPE,
    check_checkpoint_path,
    find_checkpoint,
    is_there,
    is_weights_file,
    list_checkpoints,
    read_step,
)
from txl_tf.runs.folder import read_run_id
from txl_tf.runs.weights_file import join_some, name_weights, read_weights_file

# Errors raised while reading a file that is truncated, modified or missing.
DAMAGE = (tf.errors.OpError, IndexError, RuntimeError)
CONFIG_GROUP, ORIGIN_GROUP, AVERAGES_GROUP = "config", "origin", "averages"
_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"  # of the keys that a `tf.train.Checkpoint` writes


class MemoryFileError(UserError):
    """Files of a memory are missing, belong to another checkpoint or do not hold every lane."""


class Origin(NamedTuple):
    """The step and the run that wrote a part of a checkpoint."""

    step: int
    run_id: str

    def __str__(self) -> str:
        return f"step {self.step} of run {self.run_id}"


class CheckpointReader:
    """Reads a checkpoint, or a file of its memory, by its path without `.index`.

    Raises:
        UserError: If the address does not answer, or `check_checkpoint_path` refuses the path.
        Exception: One of `DAMAGE` if it cannot be read. Every method may raise it too.
    """

    def __init__(self, path: str):
        check_address(path)
        check_checkpoint_path(path)
        self.path = path
        # `tf.train.load_checkpoint` would search for the path with a glob pattern first, which
        # some remote file systems do not support.
        self._reader = tf.compat.v1.train.NewCheckpointReader(path)
        self.keys: dict[str, list[int]] = self._reader.get_variable_to_shape_map()

    def get_tensor(self, key: str) -> Any:
        """Returns the tensor under a key of the file, as a NumPy array or scalar."""
        return self._reader.get_tensor(key)

    def read(self, group: str, name: str) -> np.ndarray:
        """Returns the value of a variable."""
        return self.get_tensor(_make_key(group, name))

    def list_shapes(self, group: str) -> dict[str, list[int]]:
        """Returns the shapes of a group's variables by name; empty if there is no such group."""
        key = re.compile(re.escape(_make_key(group, "NAME")).replace("NAME", "(.*)"))
        matches = ((key.fullmatch(name), shape) for name, shape in self.keys.items())
        return {match[1].replace("..", "."): shape for match, shape in matches if match}

    def _find(self, group: str, name: str) -> Any:
        """Returns a value that describes the checkpoint itself."""
        for key in (_make_key(group, name), f"{group}/{name}"):  # the second in files of the memory
            if key in self.keys:
                return self.get_tensor(key)
        raise UserError(f"{self.path} is no checkpoint of a run of txl_tf: it lacks {group}/{name}")

    @property
    def origin(self) -> Origin:
        """The step and the run that the file names."""
        step, run_id = (self._find(ORIGIN_GROUP, name) for name in Origin._fields)
        return Origin(int(step), run_id.decode())

    @property
    def has_memory(self) -> bool:
        """Whether the checkpoint was written with a memory."""
        return bool(self._find(CONFIG_GROUP, "has_memory"))

    def find_mismatch(self, step: int, run_id: str | None) -> str | None:
        """Describes how the weights differ from a step of a run; `None` if they belong to it."""
        origin = self.origin
        if origin.step != step:
            return f"it holds the weights of step {origin.step}"
        if run_id and origin.run_id != run_id:
            return f"it belongs to run {origin.run_id}, not to run {run_id}"
        return None

    def check_place(self) -> None:
        """Checks that the checkpoint matches the step in its name and the run of its folder."""
        folder, name = os.path.split(self.path)
        match = re.fullmatch(rf"{PREFIX}-(\d+)", name)
        if not match:
            return
        model_dir, parent = os.path.split(folder)
        run_id = read_run_id(model_dir) if parent == CHECKPOINTS_NAME else None
        mismatch = self.find_mismatch(int(match[1]), run_id)
        if mismatch:
            raise UserError(
                f"checkpoint {self.path} does not match its folder and name: {mismatch}"
            )

    def check_not_release(self) -> None:
        """Checks that this is not a checkpoint of the 2019 release."""
        if not any(key.startswith(RELEASE_SCOPE) for key in self.keys):
            return
        # The layout of the download: NAME/model/model.ckpt-0 beside NAME/data.
        folder = os.path.dirname(self.path) or "."
        source = os.path.dirname(folder) if os.path.basename(folder) == "model" else folder
        raise UserError(
            f"{self.path} is a checkpoint of the 2019 release. Make a run of it first: "
            f"txl import_release --source {shlex.quote(source or '.')} "
            "--out MODEL_DIR"
        )

    def check_weights(self, model: SegmentModel, group: str = "weights") -> None:
        """Checks that a group holds exactly the weights of a model."""
        found = self.list_shapes(group)
        wanted = {name: list(x.shape) for name, x in name_variables(model.weights).items()}
        if found == wanted:
            return
        fields = json.loads(self._find(CONFIG_GROUP, "model"))
        wanted_fields = json.loads(write_shaping_fields(model.config))
        types = [{"model_type": x.get("model_type")} for x in (fields, wanted_fields)]
        differences = (
            list_differences(*types)  # the other fields of another type say nothing
            or list_differences(fields, wanted_fields)
            or list_differences(found, wanted)
        )
        raise UserError(
            f"checkpoint {self.path} belongs to another model: {join_some(differences)}"
        )

    def restore(self, group: str, variables: Mapping[str, tf.Variable]) -> None:
        """Assigns the values of a group to variables, outside any replica."""
        shapes = self.list_shapes(group)
        for name, variable in variables.items():
            if shapes.get(name) != list(variable.shape):
                raise UserError(
                    f"checkpoint {self.path} cannot be restored: {name} of {group} must have the "
                    f"shape {list(variable.shape)}. Received: {shapes.get(name, 'none')}"
                )
            variable.assign(self.read(group, name))

    def read_memory(self, n_tensors: int, rows: range) -> list[tf.Tensor]:
        """Reads some lanes of the memory, regardless of which processes wrote them.

        Returns:
            `n_tensors` tensors (rows, ...).

        Raises:
            MemoryFileError: If a file or a lane is missing, or the origin of a file differs from
                that of the weights.
        """
        matches = list_memory_parts(self.path)
        n_parts = {int(match[2]) for match in matches}
        if n_parts != {len(matches)}:
            raise MemoryFileError(f"the memory of {self.path} is incomplete: {len(matches)} files")
        pieces: list[list[tuple[int, int, np.ndarray]]] = [[] for _ in range(n_tensors)]
        for name in sorted(match[0].removesuffix(".index") for match in matches):
            reader = CheckpointReader(os.path.join(os.path.dirname(self.path), name))
            if reader.origin != self.origin:
                raise MemoryFileError(
                    f"its parts are of different checkpoints: {name} names {reader.origin}, the "
                    f"weights name {self.origin}"
                )
            for key in reader.keys:
                match = re.fullmatch(r"layer_(\d+)/rows_(\d+)_(\d+)", key)
                if match and int(match[1]) < n_tensors:
                    start, stop = int(match[2]), int(match[3])
                    pieces[int(match[1])].append((start, stop, reader.get_tensor(key)))
        return [self._join_rows(each, rows) for each in pieces]

    def _join_rows(self, pieces: list[tuple[int, int, np.ndarray]], rows: range) -> tf.Tensor:
        """Joins the states of some lanes from pieces (first lane, end, states)."""
        found, place = [], rows.start
        for start, stop, states in sorted(pieces, key=lambda piece: piece[0]):
            if start <= place < min(stop, rows.stop):
                found.append(states[place - start : rows.stop - start])
                place = min(stop, rows.stop)
        if place < rows.stop:
            raise MemoryFileError(f"the memory of {self.path} lacks lane {place}")
        return tf.concat(found, axis=0)


def list_memory_parts(path: str) -> list[re.Match[str]]:
    """Returns a match for each file of a memory, with the part and the number of parts."""
    folder, name = os.path.split(path)
    pattern = re.compile(re.escape(name) + r"\.memory-(\d+)-of-(\d+)\.index")
    return [match for match in map(pattern.fullmatch, list_names(folder)) if match]


def load_weights(model: SegmentModel, path: str, *, use_ema: bool = True) -> bool:
    """Restores only the weights of a model from a checkpoint, `.../ckpt-STEP`, or safetensors.

    Returns whether the averaged weights were loaded, which are preferred with `use_ema`.

    Raises:
        UserError: If the checkpoint cannot be read, belongs to another model, step or run, or is
            of the 2019 release.
    """
    if is_weights_file(path):
        read_weights_file(model, path)
        return False
    try:
        reader = CheckpointReader(path)
        reader.check_not_release()
        reader.check_place()
        group = AVERAGES_GROUP if use_ema and reader.list_shapes(AVERAGES_GROUP) else "weights"
        reader.check_weights(model, group)
        reader.restore(group, name_variables(model.weights))
    except DAMAGE as error:
        fault = f"checkpoint {path} cannot be restored: {explain(error)}"
        raise UserError(fault + _name_whole(path)) from error
    return group == AVERAGES_GROUP


def _name_whole(path: str) -> str:
    """Returns, for a message, the newest older checkpoint beside a damaged one that is readable."""
    folder, damaged = os.path.split(path)
    model_dir, name = os.path.split(folder)
    found = list_checkpoints(model_dir) if name == CHECKPOINTS_NAME else []
    for step, older in reversed(found):
        if os.path.basename(older) == damaged or step > read_step(path):
            continue
        with contextlib.suppress(*DAMAGE):
            reader = CheckpointReader(older)
            for key in reader.keys:
                reader.get_tensor(key)
            return f". An older one is whole: checkpoint={step} reads it"
    return ""


def load_choice(
    model: SegmentModel, model_dir: str, choice: str | int | None = None, *, use_ema: bool = True
) -> tuple[str, bool]:
    """Restores the weights of a checkpoint of a run, chosen as in `find_checkpoint`.

    A training that goes on may remove the checkpoint before it is read: the choice is then made
    again.

    Returns:
        The path of the checkpoint, and the result of `load_weights`.
    """
    while True:
        path = find_checkpoint(model_dir, choice)
        try:
            return path, load_weights(model, path, use_ema=use_ema)
        except UserError:
            if is_there(path):
                raise


def check_not_release(path: str) -> None:
    """Checks that a checkpoint, if it is readable, is not of the 2019 release."""
    if is_weights_file(path):
        return
    with contextlib.suppress(*DAMAGE):  # reported when it is restored
        CheckpointReader(path).check_not_release()


def name_variables(variables: list[keras.Variable]) -> dict[str, tf.Variable]:
    """Returns TensorFlow's variables by path, their name in a checkpoint."""
    return {name: variable.value for name, variable in name_weights(variables).items()}


def write_shaping_fields(config: ModelConfig) -> str:
    """Returns the fields of a config that shape the weights, as JSON."""
    fields = config.to_json()
    return json.dumps({name: fields[name] for name in fields if name not in SHAPELESS})


def _make_key(group: str, name: str) -> str:
    return f"{group}/{name.replace('.', '..')}{_SUFFIX}"
