"""Infers the config of a model from the variables of a 2019 checkpoint."""

import itertools
import math
import re
from collections.abc import Mapping

import tensorflow as tf

from txl_tf.config import SHAPELESS, ModelConfig
from txl_tf.errors import UserError
from txl_tf.release.checkpoint import SCOPE, open_release_checkpoint, read_weight_shapes

_MIN_BYTES = 2  # of a number; checkpoints of the release have 4
Shapes = Mapping[str, tuple[int, ...]]


def infer_config(path: str) -> ModelConfig:
    """Returns the config of the model in a checkpoint of the 2019 release.

    The shapes of its variables determine the config except for dropout and initialisation, which
    no evaluation depends on. Configs with equal shapes compute the same function: for example,
    with `div_val` = 1 and `d_embed` = `d_model` there is no projection that could be shared.

    Args:
        path: The path of the checkpoint without `.index`.

    Raises:
        UserError: If it cannot be read, or is not a checkpoint of the release. The message names
            the missing variable.
    """
    with open_release_checkpoint(path) as reader:
        found = read_weight_shapes(reader)
    _check_file_size(path, found)
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
    raise UserError(f"{path} is not a checkpoint of the 2019 release: {fault}")


def describe_config(config: ModelConfig) -> str:
    """Returns the fields of a config that shape the weights, on one line."""
    fields = config.to_json() | {"cutoffs": ",".join(map(str, config.cutoffs))}
    shown = {name: fields[name] for name in fields if name not in SHAPELESS and fields[name] != ""}
    return " ".join(f"{name}={value}" for name, value in shown.items())


def _check_file_size(path: str, shapes: Mapping[str, list[int]]) -> None:
    """Checks that the files are as large as the variables; a damaged index can list any shape."""
    n_bytes = sum(tf.io.gfile.stat(file).length for file in tf.io.gfile.glob(f"{path}.data-*"))
    n_numbers = sum(math.prod(shape) for shape in shapes.values())
    if n_numbers * _MIN_BYTES > n_bytes:
        raise UserError(
            f"{path} is damaged: its index lists {n_numbers:,} numbers, but its files hold only "
            f"{n_bytes:,} bytes"
        )


def _infer_from_shapes(shapes: Shapes) -> ModelConfig:
    """Returns the config that gives variables these shapes, by name without the scope.

    Raises `KeyError` if a variable is missing, and `ValueError` if shapes contradict each other.
    """
    (d_model,) = _get(shapes, "layer_0/ff/LayerNorm/gamma", rank=1)
    (d_inner,) = _get(shapes, "layer_0/ff/layer_1/bias", rank=1)
    untie_r = len(shapes.get("r_w_bias", ())) == 3
    *_, n_head, d_head = _get(shapes, "r_w_bias", rank=2 + untie_r)
    tables, div_val = _infer_tables(shapes)
    bins = _list_bins(shapes)
    widths = [tables[0][1] // div_val**index for index in range(len(bins))]
    is_own = [f"adaptive_softmax/cutoff_{index}/proj" in shapes for index in range(len(bins))]
    # The embedding shows whether bins of the model's width are projected.
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
    """Returns the shapes of the embedding tables, and `div_val`."""
    if "adaptive_embed/lookup_table" in shapes:
        return [_get(shapes, "adaptive_embed/lookup_table", rank=2)], 1
    tables = _get_bins(shapes, "adaptive_embed", "lookup_table", rank=2)
    n_tables = len(tables)
    widths = [width for _, width in tables]
    quotient = [widths[0] // max(widths[1], 1)] if n_tables > 1 else []
    # Widths are rounded down, so several values may fit; the quotient is the intended one.
    for div_val in itertools.chain(quotient, range(2, widths[0] + 1)):
        if widths == [widths[0] // div_val**index for index in range(n_tables)]:
            return tables, div_val
    raise ValueError(f"no `div_val` gives embeddings of the widths {widths}")


def _list_bins(shapes: Shapes) -> list[int]:
    """Returns the number of tokens in each bin of the softmax."""
    if "adaptive_softmax/bias" in shapes:
        return list(_get(shapes, "adaptive_softmax/bias", rank=1))
    return [size for (size,) in _get_bins(shapes, "adaptive_softmax", "b", rank=1)]


def _get_bins(shapes: Shapes, scope: str, name: str, *, rank: int) -> list[tuple[int, ...]]:
    """Returns the shape of a variable of each bin."""
    n_bins = sum(bool(re.fullmatch(rf"{scope}/cutoff_\d+/{name}", found)) for found in shapes)
    if not n_bins:
        raise KeyError(f"{scope}/{'bias' if name == 'b' else name}")
    return [_get(shapes, f"{scope}/cutoff_{index}/{name}", rank=rank) for index in range(n_bins)]


def _get(shapes: Shapes, name: str, *, rank: int) -> tuple[int, ...]:
    """Returns the shape of a variable, which must have so many axes."""
    if len(shapes[name]) != rank:
        raise ValueError(f"{SCOPE}{name} has the shape {list(shapes[name])}, not {rank} axes")
    return shapes[name]
