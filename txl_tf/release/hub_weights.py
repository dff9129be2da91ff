"""The tensors of Hugging Face transformers' Transformer-XL, and the weights that they become."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from txl_tf.config import ModelConfig
from txl_tf.errors import UserError, require_extra
from txl_tf.model import TransformerXL
from txl_tf.release.checkpoint import check_shapes, escape_name

FILE_NAMES = _SAFETENSORS, _INDEX, _TORCH = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
)
_FREQUENCIES = "transformer.pos_emb.inv_freq"  # of the sinusoids, which are not weights
_DTYPES = ("float16", "bfloat16", "float32", "float64")
_SMALL_MODEL = 2**20  # parameters; below this number, memory needs no check
_EMBEDDING, _LAYERS, _SOFTMAX = "transformer.word_emb", "transformer.layers", "crit"


class Weight(NamedTuple):
    """A weight of the model and the tensors that it is made from.

    Args:
        target: The variable of the model.
        sources: The names of the tensors.
        shape: The shape of each tensor.
        transform: Makes the values of the weight from the tensors.
    """

    target: Any
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    transform: Callable[..., np.ndarray]


def list_weights(model: TransformerXL) -> Iterator[Weight]:
    """Yields every weight of a model with its tensors: the complete mapping."""
    yield from _list_bias_weights(model)
    for index, layer in enumerate(model.decoder_layers):
        scope = f"{_LAYERS}.{index}.dec_attn"
        yield _transpose(layer.attention.qkv_kernel, f"{scope}.qkv_net.weight")
        yield _transpose(layer.attention.r_kernel, f"{scope}.r_net.weight")
        yield _transpose(layer.attention.o_kernel, f"{scope}.o_net.weight")
        yield _keep(layer.attention_norm.gamma, f"{scope}.layer_norm.weight")
        yield _keep(layer.attention_norm.beta, f"{scope}.layer_norm.bias")
        scope = f"{_LAYERS}.{index}.pos_ff"
        yield _transpose(layer.feed_forward.inner.kernel, f"{scope}.CoreNet.0.weight")
        yield _keep(layer.feed_forward.inner.bias, f"{scope}.CoreNet.0.bias")
        yield _transpose(layer.feed_forward.outer.kernel, f"{scope}.CoreNet.3.weight")
        yield _keep(layer.feed_forward.outer.bias, f"{scope}.CoreNet.3.bias")
        yield _keep(layer.feed_forward_norm.gamma, f"{scope}.layer_norm.weight")
        yield _keep(layer.feed_forward_norm.beta, f"{scope}.layer_norm.bias")
    embedding = model.embedding
    pairs = zip(embedding.tables, embedding.projections, strict=True)
    for index, (table, projection) in enumerate(pairs):
        yield _keep(table, f"{_EMBEDDING}.emb_layers.{index}.weight")
        if projection is not None:
            yield _transpose(projection, f"{_EMBEDDING}.emb_projs.{index}")
    yield from _list_softmax_weights(model)


def _list_bias_weights(model: TransformerXL) -> Iterator[Weight]:
    config = model.config
    pairs = ((model.content_bias, "r_w_bias"), (model.position_bias, "r_r_bias"))
    for target, name in pairs:
        if config.untie_r:
            sources = tuple(f"{_LAYERS}.{index}.dec_attn.{name}" for index in range(config.n_layer))
            shape = (config.n_head, config.d_head)
            yield Weight(target, sources, shape, lambda *arrays: np.stack(arrays))
        else:
            yield _keep(target, f"transformer.{name}")


def _list_softmax_weights(model: TransformerXL) -> Iterator[Weight]:
    config, softmax = model.config, model.softmax
    if config.cutoffs:
        yield _keep(softmax.cluster_weight, f"{_SOFTMAX}.cluster_weight")
        yield _keep(softmax.cluster_bias, f"{_SOFTMAX}.cluster_bias")
    for index, (low, high) in enumerate(config.bins):
        bias, projection = softmax.biases[index], softmax.projections[index]
        if config.div_val > 1:
            yield _keep(bias, f"{_SOFTMAX}.out_layers.{index}.bias")
        else:  # one bias for all bins
            source = f"{_SOFTMAX}.out_layers.0.bias"
            yield Weight(bias, (source,), (config.n_token,), _make_slice(low, high))
        if projection is not None:
            yield _transpose(projection, f"{_SOFTMAX}.out_projs.{index}")


def _keep(target: Any, source: str) -> Weight:
    return Weight(target, (source,), tuple(target.shape), np.asarray)


def _transpose(target: Any, source: str) -> Weight:
    return Weight(target, (source,), tuple(target.shape)[::-1], np.transpose)


def _make_slice(low: int, high: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: array[low:high]


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
        for name in ("r_w_bias", "r_r_bias"):
            for index in range(config.n_layer):
                ties[f"{_LAYERS}.{index}.dec_attn.{name}"] = f"transformer.{name}"
    return ties


def check_model_size(folder: str, config: ModelConfig, tensors: Mapping[str, np.ndarray]) -> None:
    """Checks that a model is not much larger than its tensors, before it is made.

    A config can ask for any size. Smaller differences are left to `assign_tensors`, which names
    the tensors.

    Args:
        folder: The folder that the message names.
        config: The config of the model.
        tensors: The tensors by name.

    Raises:
        UserError: If the model has far more parameters, layers or bins than the tensors.
    """
    n_stored = sum(array.size for array in tensors.values())
    n_parts = max(config.n_layer, len(config.bins))
    if config.count_parameters() > 2 * n_stored + _SMALL_MODEL or n_parts > len(tensors) + 100:
        raise UserError(
            f"`{folder}` cannot be read: its config describes a far larger model than its weights, "
            f"which are {n_stored:,} numbers in {len(tensors)} tensors"
        )


def assign_tensors(folder: str, model: TransformerXL, tensors: dict[str, np.ndarray]) -> None:
    """Assigns the tensors of a folder to the weights of a model.

    Args:
        folder: The folder that messages name.
        model: The model, which takes the tensors as float32.
        tensors: The tensors by name; second names are removed from it.

    Raises:
        UserError: If a tensor is missing, is not in the model, has another shape or is not of
            floating-point numbers, or if tensors that the model shares differ. All are named.
    """
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
    """Reads all tensors of a folder, in their own dtypes.

    Raises:
        UserError: If there is no file of weights, it cannot be read, or it needs a package that is
            not installed.
    """
    readers = {_SAFETENSORS: _read_safetensors, _INDEX: _read_shards, _TORCH: _read_torch}
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


def _read_torch(path: Path) -> dict[str, np.ndarray]:
    from txl_tf.release.torch_file import read_torch_file

    return read_torch_file(path)
