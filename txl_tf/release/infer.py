"""Infers the config of a model from the variables of a 2019 checkpoint."""

import itertools
import math
import re
from collections.abc import Mapping

import tensorflow as tf

from txl_tf.config import SHAPELESS, ModelConfig
from txl_tf.errors import UserError
from txl_tf.release.names import SCOPE
from txl_tf.release.weights import open_release_checkpoint, read_weight_shapes

_MIN_BYTES = 2  # of a number; checkpoints of the release have 4
Shapes = Mapping[str, tuple[int, ...]]


def infer_config(path: str) -> ModelConfig:
    """Returns the config of the model in a checkpoint of the 2019 release.

    The shapes of its variables determine the config except for dropout and initialization, which do
    not affect evaluations. Configs with equal shapes compute the same function: for example, with
    `div_val` = 1 and `d_embed` = `d_model` there is no projection that could be shared.

    Raises:
        UserError: If the checkpoint cannot be read, or is not of the release. The message names a
            missing variable.
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
        fault = f"its variables have other shapes: {error}"
    raise UserError(f"{path} is not a checkpoint of the 2019 release: {fault}")


def describe_config(config: ModelConfig) -> str:
    """Returns the fields of a config that determine the shapes of the weights, on one line."""
    fields = config.to_json() | {"cutoffs": ",".join(map(str, config.cutoffs))}
    shown = {name: fields[name] for name in fields if name not in SHAPELESS and fields[name] != ""}
    return " ".join(f"{name}={value}" for name, value in shown.items())


def _check_file_size(path: str, shapes: Mapping[str, list[int]]) -> None:
    """Checks that the files are as large as the variables: a damaged index can list any shape."""
    n_bytes = sum(tf.io.gfile.stat(file).length for file in tf.io.gfile.glob(f"{path}.data-*"))
    n_numbers = sum(math.prod(shape) for shape in shapes.values())
    if n_numbers * _MIN_BYTES > n_bytes:
        raise UserError(
            f"{path} is damaged: its index lists {n_numbers:,} numbers, but its files hold only "
            f"{n_bytes:,} bytes"
        )


def _infer_from_shapes(shapes: Shapes) -> ModelConfig:
    """Returns the config whose variables, named without the scope, have these shapes.

    Raises `KeyError` if a variable is missing, and `ValueError` if shapes contradict each other.
    """
    (d_model,), (d_inner,) = shapes["layer_0/ff/LayerNorm/gamma"], shapes["layer_0/ff/layer_1/bias"]
    *layers, n_head, d_head = shapes["r_w_bias"]
    table, tables = "adaptive_embed/lookup_table", "adaptive_embed/cutoff_{}/lookup_table"
    embed_widths = [width for _, width in _list_bins(shapes, table, tables)]
    div_val = 1 if table in shapes else _infer_div_val(embed_widths)
    biases = _list_bins(shapes, "adaptive_softmax/bias", "adaptive_softmax/cutoff_{}/b")
    bins = [size for (size,) in biases]
    widths = [embed_widths[0] // div_val**index for index in range(len(bins))]
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
        d_embed=embed_widths[0],
        n_head=n_head,
        d_head=d_head,
        d_inner=d_inner,
        cutoffs=tuple(itertools.accumulate(bins[:-1])),
        div_val=div_val,
        untie_r=bool(layers),
        proj_share_all_but_first=len(bins) > 1 and not any(is_own[1:]),
        proj_same_dim=same_dim,
    )


def _infer_div_val(widths: list[int]) -> int:
    """Returns the `div_val` with which the embeddings of the bins have these widths."""
    # Widths are rounded down, so several values may fit; the quotient is the intended one.
    quotient = [max(widths[0] // max(widths[1], 1), 1)] if len(widths) > 1 else []
    for div_val in itertools.chain(quotient, range(2, widths[0] + 1)):
        if widths == [widths[0] // div_val**index for index in range(len(widths))]:
            return div_val
    raise ValueError(f"no `div_val` gives embeddings of the widths {widths}")


def _list_bins(shapes: Shapes, whole: str, part: str) -> list[tuple[int, ...]]:
    """Returns the shape of the variable for all bins, or of the variable for each bin."""
    if whole in shapes:
        return [shapes[whole]]
    found = list(itertools.takewhile(shapes.__contains__, map(part.format, itertools.count())))
    if not found:
        raise KeyError(whole)
    return [shapes[name] for name in found]
