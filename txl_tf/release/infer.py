"""What the variables of a 2019 checkpoint say of the model: all that fixes its weights."""

import itertools
import math
import os
import re
from collections.abc import Mapping

import tensorflow as tf

from txl_tf.config import ModelConfig
from txl_tf.data.files import check_address
from txl_tf.errors import UserError
from txl_tf.release.checkpoint import SCOPE, open_release_checkpoint, read_weight_shapes

_FEWEST_BYTES = 2  # of a number
Shapes = Mapping[str, tuple[int, ...]]


def find_checkpoint(source: str) -> str:
    """Returns the path of the newest checkpoint in a folder, without `.index`.

    Args:
        source: a folder of the release, with `model/`; that folder itself; or a checkpoint.

    Returns:
        The one that the file `checkpoint` names, if it is there; else the one of the highest step.

    Raises:
        UserError: there is none.
    """
    check_address(source)
    source = source.removesuffix(".index")
    if _is_checkpoint(source):
        return source
    for folder in (os.path.join(source, "model"), source):
        if not tf.io.gfile.isdir(folder):
            continue
        named = _read_checkpoint_file(folder)
        if named:
            return named
        names = {name.removesuffix(".index") for name in tf.io.gfile.listdir(folder)}
        for name in sorted(names, key=lambda name: (_read_step(name), name), reverse=True):
            if _is_checkpoint(os.path.join(folder, name)):
                return os.path.join(folder, name)
    if not tf.io.gfile.exists(source):
        raise UserError(f"`{source}` is not there")
    raise UserError(
        f"`{source}` holds no checkpoint of TensorFlow (files .index and .data-*), nor does its "
        "model/, and no config.json of a Transformer-XL of Hugging Face"
    )


def _read_checkpoint_file(folder: str) -> str | None:
    """Returns the checkpoint that the file `checkpoint` names, if it is in the folder."""
    path = os.path.join(folder, "checkpoint")
    if not tf.io.gfile.exists(path):
        return None
    with tf.io.gfile.GFile(path, "rb") as file:
        found = re.search(rb'^model_checkpoint_path: "([^"\n]+)"', file.read(), re.MULTILINE)
    # Folders are moved: of a path only the name counts.
    name = os.path.basename(found[1].decode("utf-8", "replace")) if found else ""
    prefix = os.path.join(folder, name)
    return prefix if name and _is_checkpoint(prefix) else None


def _is_checkpoint(path: str) -> bool:
    """Tells whether a checkpoint lies at a path: of V2 of the format, or of V1, a single file."""
    if tf.io.gfile.exists(f"{path}.index"):
        return True
    if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
        return False
    try:
        with open_release_checkpoint(path) as reader:
            return bool(reader.get_variable_to_shape_map())
    except UserError:
        return False


def _read_step(name: str) -> int:
    """Returns the step in the name of a checkpoint, model.ckpt-STEP; -1 if it has none."""
    step = re.search(r"-(\d+)$", name)
    return int(step[1]) if step else -1


def infer_config(path: str) -> ModelConfig:
    """Returns the config of the model in a checkpoint of the 2019 release.

    The shapes of its variables determine all of it but dropout and initialisation, on which no
    number of an evaluation depends. Where two configs have equal shapes (with `div_val` = 1 and
    `d_embed` = `d_model` there is no projection to be shared, or not) they compute the same.

    Args:
        path: of the checkpoint without `.index`.

    Raises:
        UserError: it cannot be read, or it is none of the release; what is missing is named.
    """
    with open_release_checkpoint(path) as reader:
        found = read_weight_shapes(reader)
    _check_size(path, found)
    shapes = {
        name.removeprefix(SCOPE): tuple(shape)
        for name, shape in found.items()
        if name.startswith(SCOPE)
    }
    try:
        return _infer_from_shapes(shapes)
    except KeyError as error:
        fault = f"{SCOPE}{error.args[0]} is missing"
    except ValueError as error:
        fault = str(error)
    raise UserError(f"{path} is no checkpoint of the 2019 release: {fault}")


def _check_size(path: str, shapes: Mapping[str, list[int]]) -> None:
    """Checks that a checkpoint is as large as its variables: an index can state any shape.

    Raises:
        UserError: it is not.
    """
    folder, base = os.path.split(path)
    files = [
        os.path.join(folder, name)
        for name in tf.io.gfile.listdir(folder or ".")
        if name == base or name.startswith(f"{base}.data-")  # V1 of the format is one file
    ]
    n_bytes = sum(tf.io.gfile.stat(file).length for file in files)
    n_numbers = sum(math.prod(shape) for shape in shapes.values())
    if files and n_numbers * _FEWEST_BYTES > n_bytes:
        raise UserError(
            f"{path} is damaged: its index lists {n_numbers:,} numbers, its files hold "
            f"{n_bytes:,} bytes"
        )


def _infer_from_shapes(shapes: Shapes) -> ModelConfig:
    """Returns the config that goes with the shapes of variables, by name without the scope.

    Raises:
        KeyError: a variable is missing.
        ValueError: shapes contradict each other.
    """
    (d_model,) = _get(shapes, "layer_0/ff/LayerNorm/gamma", rank=1)
    (d_inner,) = _get(shapes, "layer_0/ff/layer_1/bias", rank=1)
    untie_r = len(shapes.get("r_w_bias", ())) == 3
    *_, n_head, d_head = _get(shapes, "r_w_bias", rank=2 + untie_r)
    tables, div_val = _infer_tables(shapes)
    bins = _list_bins(shapes)
    widths = [tables[0][1] // div_val**index for index in range(len(bins))]
    is_own = [f"adaptive_softmax/cutoff_{index}/proj" in shapes for index in range(len(bins))]
    # Whether bins of the model's width are projected shows in the embedding's, if there are any.
    same_dim = div_val == 1 or all(
        f"adaptive_embed/cutoff_{index}/proj_W" in shapes
        for index, width in enumerate(widths)
        if width == d_model
    )
    return ModelConfig(
        n_token=sum(bins),
        n_layer=len({name.split("/")[0] for name in shapes if re.match(r"layer_\d+/", name)}),
        d_model=d_model,
        d_embed=tables[0][1],
        n_head=n_head,
        d_head=d_head,
        d_inner=d_inner,
        cutoffs=tuple(itertools.accumulate(bins[:-1])),
        div_val=div_val,
        untie_r=untie_r,
        proj_share_all_but_first=len(bins) > 1 and not any(is_own[1:]),
        proj_same_dim=same_dim,
    )


def _infer_tables(shapes: Shapes) -> tuple[list[tuple[int, ...]], int]:
    """Returns the shapes of the embedding's tables, and `div_val`."""
    if "adaptive_embed/lookup_table" in shapes:
        return [_get(shapes, "adaptive_embed/lookup_table", rank=2)], 1
    pattern = re.compile(r"adaptive_embed/cutoff_\d+/lookup_table")
    n_tables = len(list(filter(pattern.fullmatch, shapes)))
    if not n_tables:
        raise KeyError("adaptive_embed/lookup_table")
    tables = [
        _get(shapes, f"adaptive_embed/cutoff_{index}/lookup_table", rank=2)
        for index in range(n_tables)
    ]
    widths = [width for _, width in tables]
    quotient = [widths[0] // max(widths[1], 1)] if n_tables > 1 else []
    # Widths are rounded down, so several may do; the quotient is the one that was meant.
    for div_val in itertools.chain(quotient, range(2, widths[0] + 1)):
        if widths == [widths[0] // div_val**index for index in range(n_tables)]:
            return tables, div_val
    raise ValueError(f"no `div_val` gives embeddings of the widths {widths}")


def _list_bins(shapes: Shapes) -> list[int]:
    """Returns how many tokens each bin of the softmax has."""
    if "adaptive_softmax/bias" in shapes:
        return list(_get(shapes, "adaptive_softmax/bias", rank=1))
    pattern = re.compile(r"adaptive_softmax/cutoff_\d+/b")
    n_bins = len(list(filter(pattern.fullmatch, shapes)))
    if not n_bins:
        raise KeyError("adaptive_softmax/bias")
    return [
        _get(shapes, f"adaptive_softmax/cutoff_{index}/b", rank=1)[0] for index in range(n_bins)
    ]


def _get(shapes: Shapes, name: str, *, rank: int) -> tuple[int, ...]:
    """Returns the shape of a variable.

    Raises:
        KeyError: it is missing.
        ValueError: it has another rank.
    """
    if len(shapes[name]) != rank:
        raise ValueError(f"{SCOPE}{name} has the shape {list(shapes[name])}, not {rank} axes")
    return shapes[name]
