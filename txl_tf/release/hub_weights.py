"""The tensors of Hugging Face transformers' Transformer-XL, and the weights that they become."""

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from txl_tf.config import ModelConfig
from txl_tf.errors import UserError, require_extra
from txl_tf.model import TransformerXL
from txl_tf.release.checkpoint import check_shapes, escape_name, list_entries
from txl_tf.release.torch_file import read_torch_file

FILE_NAMES = _SAFETENSORS, _INDEX, _TORCH = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
)
_BIASES = ("r_w_bias", "r_r_bias")
_FREQUENCIES = "transformer.pos_emb.inv_freq"  # of the sinusoids, which are not weights
_DTYPES = ("float16", "bfloat16", "float32", "float64")
_SMALL_MODEL = 2**20  # parameters; below this number, memory needs no check
_EMBEDDING, _LAYERS, _SOFTMAX = "transformer.word_emb", "transformer.layers", "crit"
# The names of the release as patterns, and what they become.
_RENAMES = {
    r"layer_(\d+)/rel_attn/LayerNorm/": rf"{_LAYERS}.\1.dec_attn.layer_norm.",
    r"layer_(\d+)/rel_attn/(\w+)/": rf"{_LAYERS}.\1.dec_attn.\2_net.",
    r"layer_(\d+)/ff/LayerNorm/": rf"{_LAYERS}.\1.pos_ff.layer_norm.",
    r"layer_(\d+)/ff/layer_1/": rf"{_LAYERS}.\1.pos_ff.CoreNet.0.",
    r"layer_(\d+)/ff/layer_2/": rf"{_LAYERS}.\1.pos_ff.CoreNet.3.",
    r"(kernel|gamma)$": "weight",
    r"beta$": "bias",
    r"adaptive_embed/cutoff_(\d+)/lookup_table": rf"{_EMBEDDING}.emb_layers.\1.weight",
    r"adaptive_embed/lookup_table": f"{_EMBEDDING}.emb_layers.0.weight",
    r"adaptive_embed/cutoff_(\d+)/proj_W": rf"{_EMBEDDING}.emb_projs.\1",
    r"adaptive_embed/proj_W": f"{_EMBEDDING}.emb_projs.0",
    r"adaptive_softmax/cutoff_0/cluster_W": f"{_SOFTMAX}.cluster_weight",
    r"adaptive_softmax/cutoff_0/cluster_b": f"{_SOFTMAX}.cluster_bias",
    r"adaptive_softmax/cutoff_(\d+)/proj": rf"{_SOFTMAX}.out_projs.\1",
    r"adaptive_softmax/cutoff_(\d+)/b": rf"{_SOFTMAX}.out_layers.\1.bias",
    r"adaptive_softmax/": f"{_SOFTMAX}.out_layers.0.",
    r"^r_": "transformer.r_",
}


class Weight(NamedTuple):
    """A weight of the model, and the tensors of a shape that `transform` makes its values from."""

    target: Any
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    transform: Callable[..., np.ndarray]


def list_weights(model: TransformerXL) -> Iterator[Weight]:
    """Yields every weight of a model with its tensors: the complete mapping."""
    config, n_biases = model.config, 0
    for name, target in list_entries(model):
        source, shape = name, tuple(target.shape)
        for pattern, renamed in _RENAMES.items():
            source = re.sub(pattern, renamed, source)
        if config.untie_r and name in _BIASES:
            sources = tuple(f"{_LAYERS}.{index}.dec_attn.{name}" for index in range(config.n_layer))
            yield Weight(target, sources, shape[1:], lambda *arrays: np.stack(arrays))
        elif name.endswith("/b") and config.div_val == 1:  # one bias for all bins
            shared, bounds = f"{_SOFTMAX}.out_layers.0.bias", slice(*config.bins[n_biases])
            yield Weight(target, (shared,), (config.n_token,), operator.itemgetter(bounds))
            n_biases += 1
        elif re.search(r"/(kernel|proj|proj_W)$", name):
            yield Weight(target, (source,), shape[::-1], np.transpose)
        else:
            yield Weight(target, (source,), shape, np.asarray)


def list_ties(config: ModelConfig) -> dict[str, str]:
    """Returns the second names of tensors, and the first names that they stand for.

    A .bin holds both, a .safetensors only one of them.
    """
    ties = {}
    n_tables = len(config.bins) if config.div_val > 1 else 1
    for index in range(n_tables):
        ties[f"{_SOFTMAX}.out_layers.{index}.weight"] = f"{_EMBEDDING}.emb_layers.{index}.weight"
    for index in range(len(config.bins)):
        source = index if config.div_val > 1 else 0
        if config.has_embedding_projection(source) and not config.has_softmax_projection(index):
            ties[f"{_SOFTMAX}.out_projs.{index}"] = f"{_EMBEDDING}.emb_projs.{source}"
    if not config.untie_r:
        for name in _BIASES:
            for index in range(config.n_layer):
                ties[f"{_LAYERS}.{index}.dec_attn.{name}"] = f"transformer.{name}"
    return ties


def check_model_size(folder: str, config: ModelConfig, tensors: Mapping[str, np.ndarray]) -> None:
    """Checks that a model is not far larger than its tensors, before it is made.

    A config can ask for any size. Smaller differences are left to `assign_tensors`.
    """
    n_stored = sum(array.size for array in tensors.values())
    n_parts = max(config.n_layer, len(config.bins))
    if config.count_parameters() > 2 * n_stored + _SMALL_MODEL or n_parts > len(tensors) + 100:
        raise UserError(
            f"`{folder}` cannot be read: its config describes a far larger model than its weights, "
            f"which are {n_stored:,} numbers in {len(tensors)} tensors"
        )


def assign_tensors(folder: str, model: TransformerXL, tensors: dict[str, np.ndarray]) -> None:
    """Assigns the tensors of a folder, all of them, to the weights of a model, as float32."""
    tensors.pop(_FREQUENCIES, None)
    for name, array in tensors.items():
        if array.dtype.name not in _DTYPES:
            raise UserError(
                f"`{folder}` cannot be read: {escape_name(name)} has the dtype {array.dtype.name}"
            )
    for twin, name in list_ties(model.config).items():
        if twin not in tensors:
            continue
        array = tensors.pop(twin)
        if not np.array_equal(tensors.setdefault(name, array), array, equal_nan=True):
            raise UserError(f"`{folder}` cannot be read: {twin} and {name} must be equal")
    weights = list(list_weights(model))
    needed = {source: list(weight.shape) for weight in weights for source in weight.sources}
    check_shapes(folder, needed, {name: list(array.shape) for name, array in tensors.items()})
    for target, sources, _, transform in weights:
        target.assign(transform(*(tensors[source].astype("float32") for source in sources)))


def read_tensors(folder: str) -> dict[str, np.ndarray]:
    """Reads all tensors of a folder, in their own dtypes."""
    readers = {_SAFETENSORS: _read_safetensors, _INDEX: _read_shards, _TORCH: read_torch_file}
    for name, read in readers.items():
        path = Path(folder, name)
        if path.is_file():
            return read(path)
    raise UserError(f"`{folder}` holds no weights: it has neither {_SAFETENSORS} nor {_TORCH}")


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    with require_extra("hub", f"`{path}`"):
        import safetensors.numpy
    if not path.is_file():  # opening a pipe would block
        raise UserError(f"`{path}` cannot be read: it is missing or not a regular file")
    try:
        return safetensors.numpy.load_file(path)
    except Exception as error:  # dtypes that NumPy lacks raise various errors
        raise UserError(f"`{path}` cannot be read: {error}") from error


def _read_shards(index: Path) -> dict[str, np.ndarray]:
    """Returns the tensors of all files that an index names, which must be in its folder."""
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        paths = [index.with_name(name) for name in names]  # raises if it is in another folder
    except (OSError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UserError(f"`{index}` cannot be read: it does not map tensors to files") from error
    tensors: dict[str, np.ndarray] = {}
    for path in paths:
        tensors |= _read_safetensors(path)
    return tensors
