"""Reading, writing and removing a checkpoint of a run.

A checkpoint is the set of files `ckpt-STEP.*`. It holds groups of variables: `weights`, their
`averages` (an EMA or a uniform mean) and `optimizer`. A variable is named after its path in the
model. Two small groups describe the checkpoint itself: `config` holds the model's config and
whether there is a memory, `origin` names the step and the run.

The memory is written first, in one file for each process: `ckpt-STEP.memory-PART-of-PARTS` is a
tensorflow checkpoint whose tensors are called `layer_I/rows_START_STOP` after the lanes that they
hold: lanes, not replicas, because a run may resume with another number of replicas. I is the index
of the tensor. These files also name their origin, so that parts of different checkpoints are never
mixed. The rest is written into a folder `ckpt-STEP_temp`, and its `.index` is moved out last, so
that others may read the run at any moment. Files without an index are the remains of an interrupted
save or removal.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import tensorflow as tf

from txl_tf.config import SHAPELESS, ModelConfig
from txl_tf.config.base import list_differences
from txl_tf.data.files import (
    access_path,
    check_address,
    is_remote,
    list_names,
    make_folder,
    move_file,
)
from txl_tf.errors import UserError, explain
from txl_tf.models.segment_model import SegmentModel
from txl_tf.runs.checkpoint_choice import (
    CHECKPOINTS_NAME,
    PREFIX,
    check_checkpoint_path,
    find_checkpoint,
    is_there,
    is_weights_file,
    list_checkpoints,
    make_path,
)
from txl_tf.runs.folder import make_run_id, read_run_id
from txl_tf.runs.weights_file import join_some, name_weights, open_weights, read_weights_file

# Errors raised while reading a file that is truncated, modified or missing.
DAMAGE = (tf.errors.OpError, IndexError, RuntimeError)
CONFIG_GROUP, ORIGIN_GROUP, AVERAGES_GROUP = "config", "origin", "averages"
RELEASE_SCOPE = "transformer/"  # the scope of all weights in checkpoints of the 2019 release
PATIENCE = 60.0  # seconds until a network file system shows the files of other hosts
_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"  # of the keys that a `tf.train.Checkpoint` writes

Groups = Mapping[str, Mapping[str, tf.Variable]]


class MemoryFileError(UserError):
    """Files of a memory are missing, belong to another checkpoint, or do not hold every lane."""


class Origin(NamedTuple):
    """The step and the run that wrote a part of a checkpoint."""

    step: int
    run_id: str

    def __str__(self) -> str:
        return f"step {self.step} of run {self.run_id}"


class CheckpointReader:
    """Reads a checkpoint, or a file of its memory, by its path without `.index`.

    Raises:
        UserError: If the address does not answer, or `check_checkpoint_path` rejects the path.
        Exception: One of `DAMAGE` if the checkpoint cannot be read; methods may also raise it.
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

    def find_mismatch(self, run_id: str | None) -> str | None:
        """Describes a mismatch with a run, or with the step in the checkpoint's name.

        Returns `None` if the checkpoint matches both.
        """
        origin = self.origin
        match = re.fullmatch(rf"{PREFIX}-(\d+)", os.path.basename(self.path))
        if match and origin.step != int(match[1]):
            return f"it holds the weights of step {origin.step}"
        if run_id and origin.run_id != run_id:
            return f"it belongs to run {origin.run_id}, not to run {run_id}"
        return None

    def check_place(self) -> None:
        """Checks that the checkpoint matches its name and the run of its folder."""
        model_dir = _find_run(self.path)
        mismatch = self.find_mismatch(read_run_id(model_dir) if model_dir else None)
        if mismatch:
            raise UserError(
                f"checkpoint {self.path} does not match its folder and name: {mismatch}"
            )

    def check_weights(self, model: SegmentModel, group: str = "weights") -> None:
        """Checks that a group holds exactly the weights of a model."""
        found = self.list_shapes(group)
        wanted = {name: list(x.shape) for name, x in name_variables(model).items()}
        if found == wanted:
            return
        self.check_config(model.config)
        self._refuse_model(list_differences(found, wanted))

    def check_config(self, config: ModelConfig) -> None:
        """Checks that the checkpoint is of a model with a given config."""
        fields = json.loads(self._find(CONFIG_GROUP, "model"))
        wanted = json.loads(write_shaping_fields(config))
        types = [{"model_type": x.get("model_type")} for x in (fields, wanted)]
        # Fields of different types are not comparable.
        if differences := list_differences(*types) or list_differences(fields, wanted):
            self._refuse_model(differences)

    def check_optimizer(self) -> None:
        """Checks that the checkpoint holds the state of an optimizer, which training needs."""
        if not self.list_shapes("optimizer"):
            raise UserError(explain_bare_weights(f"checkpoint {self.path}", self.path))

    def _refuse_model(self, differences: list[str]) -> NoReturn:
        raise UserError(
            f"checkpoint {self.path} belongs to another model: {join_some(differences)}"
        )

    def restore(self, group: str, variables: Mapping[str, tf.Variable]) -> None:
        """Assigns the values of a group to variables, outside any replica; all of them or none."""
        shapes, values = self.list_shapes(group), {}
        for name, variable in variables.items():
            if shapes.get(name) != list(variable.shape):
                raise UserError(
                    f"checkpoint {self.path} cannot be restored: {name} of {group} must have the "
                    f"shape {list(variable.shape)}. Received: {shapes.get(name, 'none')}"
                )
            values[name] = self.read(group, name)  # fails if it is damaged
        for name, variable in variables.items():
            variable.assign(values[name])

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


def read_step(path: str) -> int:
    """Returns the step in the name of a checkpoint, `.../ckpt-STEP`, or in a weights file."""
    if is_weights_file(path):
        with open_weights(path) as file:
            return int((file.metadata() or {}).get("step", 0))
    match = re.search(r"-(\d+)$", path)
    if not match:
        raise UserError(f"{path!r} does not end in a step, as in ckpt-1000")
    return int(match[1])


def load_weights(model: SegmentModel, path: str, *, use_ema: bool = True) -> bool:
    """Restores only the weights of a model, from a checkpoint `.../ckpt-STEP` or safetensors.

    Returns whether averaged weights were loaded; `use_ema` prefers them.

    Raises:
        UserError: If the checkpoint cannot be read, belongs to another model, step or run, or comes
            from the 2019 release.
    """
    if is_weights_file(path):
        read_weights_file(model, path)
        return False
    check_not_release(path)
    try:
        reader = CheckpointReader(path)
        reader.check_place()
        group = AVERAGES_GROUP if use_ema and reader.list_shapes(AVERAGES_GROUP) else "weights"
        reader.check_weights(model, group)
        reader.restore(group, name_variables(model))
    except DAMAGE as error:
        fault = f"checkpoint {path} cannot be restored: {explain(error)}"
        raise UserError(fault + _name_whole(path)) from error
    return group == AVERAGES_GROUP


def load_choice(
    model: SegmentModel, model_dir: str, choice: str | int | None = None, *, use_ema: bool = True
) -> tuple[str, bool]:
    """Restores the weights of a checkpoint of a run, chosen as in `find_checkpoint`.

    If a training in progress removes the checkpoint before it is read, the choice is repeated.

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
    """Checks that a checkpoint, if readable, is not from the 2019 release."""
    if is_weights_file(path):
        return
    try:
        keys = CheckpointReader(path).keys
    except DAMAGE:  # reported when it is restored
        return
    if any(key.startswith(RELEASE_SCOPE) for key in keys):
        # The layout of the download: NAME/model/model.ckpt-0 beside NAME/data.
        folder = os.path.dirname(path) or "."
        source = os.path.dirname(folder) if os.path.basename(folder) == "model" else folder
        raise UserError(
            f"{path} is a checkpoint of the 2019 release. Make a run of it first: "
            f"txl import_release --source {shlex.quote(source or '.')} --out MODEL_DIR"
        )


def explain_bare_weights(source: str, path: str) -> str:
    """Returns, for messages, how to train on from weights that have no state of an optimizer."""
    return (
        f"{source} holds only weights: start from them in a new `model_dir`, with "
        f"--warm_start_path={shlex.quote(path)}"
    )


def _find_run(path: str) -> str | None:
    """Returns the run folder that contains a checkpoint; `None` if there is none."""
    model_dir, name = os.path.split(os.path.dirname(path))
    return model_dir if name == CHECKPOINTS_NAME else None


def _name_whole(path: str) -> str:
    """Returns, for a message, the newest readable checkpoint before a damaged one."""
    model_dir = _find_run(path)
    found = list_checkpoints(model_dir) if model_dir else []
    steps = {each: step for step, each in found}
    for step, older in reversed(found):
        if step >= steps.get(path, 0):  # for a renamed one, no older one is known
            continue
        with contextlib.suppress(*DAMAGE):
            reader = CheckpointReader(older)
            for key in reader.keys:
                reader.get_tensor(key)
            return f". An older one is whole: checkpoint={step} reads it"
    return ""


def name_variables(model: SegmentModel) -> dict[str, tf.Variable]:
    """Returns TensorFlow's variables of the weights by their names in a checkpoint."""
    return {name: weight.value for name, weight in name_weights(model).items()}


def group_variables(model: SegmentModel, optimizer: Any) -> Groups:
    """Returns the variables of a checkpoint by group and name, each one once."""
    # An average has the name of its weight, so that it can be restored in its place.
    names = {id(weight): name for name, weight in name_weights(model).items()}
    averages = {names[id(weight)]: average for weight, average in optimizer.averaged_weights}
    average_ids = {id(average) for average in averages.values()}
    rest = [variable for variable in optimizer.variables if id(variable) not in average_ids]
    slots = {variable.path.replace("/", "."): variable.value for variable in rest}
    assert len(slots) == len(rest), "paths of variables must be unique"
    groups = {"weights": name_variables(model), "optimizer": slots}
    if averages:
        groups[AVERAGES_GROUP] = {name: average.value for name, average in averages.items()}
    return groups


def save_weights(model_dir: str, model: SegmentModel, *, step: int, optimizer: Any = None) -> None:
    """Writes a checkpoint of a run without a memory.

    Without an optimizer, it holds only the weights after `step` steps of training.
    """
    groups: Groups = {"weights": name_variables(model)}
    if optimizer is not None:
        groups = group_variables(model, optimizer)
    origin = Origin(step, read_run_id(model_dir) or make_run_id())
    write_checkpoint(make_path(model_dir, step), groups, model.config, origin)


def write_checkpoint(
    path: str, groups: Groups, config: ModelConfig, origin: Origin, *, n_memory_parts: int = 0
) -> None:
    """Writes groups of variables, after all processes have written the files of their memory.

    Raises:
        UserError: If the checkpoint cannot be written. Its files are removed.
    """
    with _explain_failed_save(path):
        make_folder(os.path.dirname(path))
        _wait_for_memory(path, n_memory_parts)
        described = {
            CONFIG_GROUP: {
                "model": tf.Variable(write_shaping_fields(config)),
                "has_memory": tf.Variable(n_memory_parts > 0),
            },
            ORIGIN_GROUP: {name: tf.Variable(x) for name, x in _describe_origin(origin).items()},
            **{name: dict(group) for name, group in groups.items()},
        }
        _write_aside(path, tf.train.Checkpoint(**described))


def _write_aside(path: str, checkpoint: tf.train.Checkpoint) -> None:
    """Writes a checkpoint in a folder of its own, and moves its complete files out, index last."""
    if is_remote(path):  # a storage shows a file when it is complete, and would copy to rename
        checkpoint.write(path)
        return
    folder, name = os.path.split(path)
    aside = f"{path}_temp"
    make_folder(aside)
    checkpoint.write(os.path.join(aside, name))
    for part in reversed(list_parts(os.path.join(aside, name))):
        move_file(part, os.path.join(folder, os.path.basename(part)))
    shutil.rmtree(aside, ignore_errors=True)  # the checkpoint is complete


def write_memory(
    path: str,
    memory: Sequence[tf.Tensor],
    origin: Origin,
    *,
    first_row: int,
    part: int = 0,
    n_parts: int = 1,
) -> None:
    """Writes the lanes of this process, tensors (rows, ...), beside a checkpoint.

    Raises:
        UserError: If they cannot be written. The files of the checkpoint are removed.
    """
    tensors = {
        f"layer_{index}/rows_{first_row}_{first_row + states.shape[0]}": states
        for index, states in enumerate(memory)
    }
    tensors |= {f"{ORIGIN_GROUP}/{name}": x for name, x in _describe_origin(origin).items()}
    with _explain_failed_save(path):
        make_folder(os.path.dirname(path))
        write_tensors(f"{path}.memory-{part:05d}-of-{n_parts:05d}", tensors)


def _wait_for_memory(path: str, n_parts: int) -> None:
    """Waits until the memory files of all processes exist, `PATIENCE` seconds at most."""
    end = time.monotonic() + PATIENCE
    while True:
        n_found = sum(int(match[2]) == n_parts for match in list_memory_parts(path))
        if n_found == n_parts:
            return
        if time.monotonic() > end:
            raise UserError(
                f"only {n_found} of {n_parts} processes have written into this folder: all need "
                "the same `model_dir` on a shared file system"
            )
        time.sleep(1.0)


def write_tensors(path: str, tensors: Mapping[str, tf.Tensor]) -> None:
    """Writes named tensors or arrays as a TensorFlow checkpoint, sorted by name."""
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.convert_to_tensor(tensors[name]) for name in names],
    )


@contextlib.contextmanager
def _explain_failed_save(path: str) -> Iterator[None]:
    """Converts the errors of a failed save to a `UserError` and removes the partial checkpoint."""
    try:
        yield
    except (tf.errors.OpError, OSError, UserError) as error:
        remove_checkpoint(path)
        fault = f"checkpoint {path} could not be saved: {explain(error)}"
        model_dir = _find_run(path)
        kept = list_checkpoints(model_dir) if model_dir else []
        raise UserError(
            f"{fault}; the newest checkpoint is {kept[-1][1]}" if kept else fault
        ) from error


def _describe_origin(origin: Origin) -> dict[str, tf.Tensor]:
    return {"step": tf.constant(origin.step, tf.int64), "run_id": tf.constant(origin.run_id)}


def write_shaping_fields(config: ModelConfig) -> str:
    """Returns the fields of a config that determine the shapes of the weights, as JSON."""
    fields = config.to_json()
    return json.dumps({name: fields[name] for name in fields if name not in SHAPELESS})


def _make_key(group: str, name: str) -> str:
    return f"{group}/{name.replace('.', '..')}{_SUFFIX}"


def list_parts(path: str) -> list[str]:
    """Returns the files of a checkpoint, index first: without it, the others are ignored."""
    folder, name = os.path.split(path)
    parts = [part for part in list_names(folder) if part.startswith(f"{name}.")]
    parts.sort(key=lambda part: part != f"{name}.index")
    return [os.path.join(folder, part) for part in parts]


def remove_checkpoint(path: str) -> None:
    """Removes a checkpoint, its index first, and the remains of an interrupted save."""
    with access_path(path):
        for part in list_parts(path):
            tf.io.gfile.remove(part)
        if tf.io.gfile.exists(f"{path}_temp"):
            tf.io.gfile.rmtree(f"{path}_temp")
