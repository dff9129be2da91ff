"""Reads folders of a Transformer-XL of Hugging Face transformers.

FOLDER/config.json           hyper-parameters, with "model_type": "transfo-xl"
FOLDER/model.safetensors     weights; or shards with an index, or pytorch_model.bin
FOLDER/vocab.txt             the symbols, if the folder has them as text
"""

import dataclasses
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from txl_tf.config import EvalConfig, ModelConfig
from txl_tf.data.files import read_json
from txl_tf.data.text.learning import LearningOptions
from txl_tf.data.text.vocabulary import Vocabulary, check_size, read_vocabulary_file
from txl_tf.errors import UserError, explain_errors
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.release.names import list_entries
from txl_tf.release.torch_file import read_torch_file
from txl_tf.release.weights import check_shapes, escape_name

MODEL_TYPE = "transfo-xl"
_CONFIG_NAME = "config.json"
_TOKENIZER_NAME = "tokenizer_config.json"
_VOCABULARY_NAME = "vocab.txt"
_PICKLES = ("vocab.pkl", "vocab.bin")
_TOKENIZERS = ("TransfoXLTokenizer", "TransfoXLTokenizerFast")
# The defaults of Hugging Face transformers: wt103 large. All names but that of the vocabulary size
# are those of the release.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 267_735,
    "n_layer": 18,
    "d_model": 1024,
    "d_embed": 1024,
    "n_head": 16,
    "d_head": 64,
    "d_inner": 4096,
    "cutoffs": [20_000, 40_000, 200_000],
    "div_val": 4,
    "untie_r": True,
    "dropout": 0.1,
    "dropatt": 0.0,
    "init": "normal",
    "init_std": 0.02,
    "proj_init_std": 0.01,
    "init_range": 0.01,
    "layer_norm_epsilon": 1e-5,
}
_READING_DEFAULTS: dict[str, Any] = {
    "tgt_len": 128,  # configs since 2020 do not state it
    "mem_len": 1600,
    "same_length": True,
    "clamp_len": 1000,
}
_ALIASES = {
    "n_token": "vocab_size",
    "hidden_size": "d_model",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
# Settings of which this package supports only one value.
_ONLY = {
    "pre_lnorm": False,
    "attn_type": 0,
    "adaptive": True,
    "ext_len": 0,
    "tie_word_embeddings": True,
    "sample_softmax": -1,
}


_SAFETENSORS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_TORCH = "pytorch_model.bin"
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


class TransformersConfig(NamedTuple):
    """The config of a model, and of how Hugging Face transformers reads text with it."""

    model: ModelConfig
    evaluation: EvalConfig


def is_transformers_folder(folder: str) -> bool:
    """Returns whether a folder is a Transformer-XL of Hugging Face transformers, even if damaged.

    Weight files with the names of that library are sufficient, whatever the config says.
    """
    if any(Path(folder, name).is_file() for name in (_SAFETENSORS, _INDEX, _TORCH)):
        return True
    try:
        return _read_object(Path(folder, _CONFIG_NAME)).get("model_type") == MODEL_TYPE
    except UserError:
        return False


def read_transformers_config(folder: str) -> TransformersConfig:
    """Reads the config of a folder of Hugging Face transformers.

    With `same_length`, its mask shows M keys including the query's own, so `counts_self` is set.
    Only older configs state a segment length; otherwise it is 128.

    Raises:
        UserError: If there is no such config, or `ModelConfig` cannot express it.

    References:
        https://huggingface.co/docs/transformers/model_doc/transfo-xl.
    """
    path = Path(folder, _CONFIG_NAME)
    settings = _read_object(path)
    with explain_errors(f"`{path}` cannot be read", UserError):
        return _translate(settings)


def load_transformers_model(folder: str) -> tuple[TransformerXL, EvalConfig]:
    """Returns the model of a folder, and how Hugging Face transformers reads text with it.

    The weights are in model.safetensors, its shards, or pytorch_model.bin, in this order of
    preference. 16-bit weights become float32.

    Raises:
        UserError: If a file is missing, cannot be read or needs a package that is not installed;
            if `ModelConfig` cannot express the config; or if a tensor is missing, is not in the
            model or has another shape. The message names up to eight such tensors.
    """
    config = read_transformers_config(folder)
    tensors = _read_tensors(folder)
    _check_model_size(folder, config.model, tensors)
    model = TransformerXL(config.model, dtype="float32")
    _assign_tensors(folder, model, tensors)
    return model, config.evaluation


def read_transformers_vocabulary(folder: str) -> Vocabulary | None:
    """Reads the words of a folder of Hugging Face transformers from vocab.txt.

    The vocabulary splits only at white space: texts must be tokenized like the training text
    (Hugging Face's tokenizer first applies the Moses tokenizer). If it has the symbols, "<eos>" is
    the end of a line, and "<UNK>" or "<unk>" the unknown word.

    Returns:
        The vocabulary; `None` if the folder has no vocab.txt of words. If it has another
        vocabulary, a line is printed.

    Raises:
        UserError: If vocab.txt cannot be read, or does not have the size of the model's vocabulary.
    """
    path = Path(folder, _VOCABULARY_NAME)
    if not path.is_file():
        for name in _PICKLES:
            if Path(folder, name).is_file():
                print(f"Ignored {name} in {folder}: pickles can run code. Add {path.name}.")
        return None
    settings = {}
    if Path(folder, _TOKENIZER_NAME).is_file():
        settings = _read_object(Path(folder, _TOKENIZER_NAME))
    tokenizer = settings.get("tokenizer_class", _TOKENIZERS[0])
    if tokenizer not in _TOKENIZERS:
        print(f"Ignored {path.name} in {folder}: it is for {tokenizer}.")
        return None
    options = LearningOptions(lower_case=settings.get("lower_case", False))
    vocabulary = read_vocabulary_file(path, "word", options)
    with explain_errors(f"`{path}`", UserError):
        check_size(vocabulary, read_transformers_config(folder).model.n_token)
    known = [symbol for symbol in ("<UNK>", "<unk>") if symbol in vocabulary.symbols]
    return dataclasses.replace(
        vocabulary,
        unknown=known[0] if known else None,
        line_end="<eos>" if "<eos>" in vocabulary.symbols else None,
    )


def _read_object(path: Path) -> dict[str, Any]:
    content = read_json(str(path))
    if not isinstance(content, dict):
        raise UserError(f"`{path}` must be an object")
    return content


def _translate(settings: dict[str, Any]) -> TransformersConfig:
    """Returns the configs that express the settings of Hugging Face transformers."""
    settings = {_ALIASES.get(name, name): value for name, value in settings.items()}
    if settings.get("model_type") != MODEL_TYPE:
        found = json.dumps(settings.get("model_type"))
        raise UserError(f'`model_type` must be "{MODEL_TYPE}". Received: {found}')
    for name, only in _ONLY.items():
        if settings.get(name, only) != only:
            found = json.dumps(settings[name])
            raise UserError(f"`{name}` must be {json.dumps(only)}. Received: {found}")
    fields = {name: settings.get(name, default) for name, default in _DEFAULTS.items()}
    model = ModelConfig(n_token=fields.pop("vocab_size"), **fields, proj_share_all_but_first=False)
    reading = {name: settings.get(name, default) for name, default in _READING_DEFAULTS.items()}
    if isinstance(reading["clamp_len"], int) and reading["clamp_len"] < 1:  # no limit
        reading["clamp_len"] = -1
    return TransformersConfig(
        dataclasses.replace(model, proj_share_all_but_first=_shares_projections(settings, model)),
        EvalConfig(eval_batch_size=1, **reading, counts_self=True),
    )


def _shares_projections(settings: dict[str, Any], model: ModelConfig) -> bool:
    """Returns whether the softmax shares the embedding's projections for all bins but the first.

    If it shares only some of them, the tensors do not fit the model.
    """
    n_tail = len(model.cutoffs)
    ties = settings.get("tie_projs", [settings.get("proj_share_all_but_first", True)] * 2)
    if type(ties) is not list:
        raise UserError(f"`tie_projs` must be a list. Received: {json.dumps(ties)}")
    has_projections = any(map(model.has_embedding_projection, range(n_tail + 1)))
    return n_tail > 0 and has_projections and any(ties[1:])


class Weight(NamedTuple):
    """A weight of the model, and its source tensors of a shape, which `transform` converts."""

    target: Any
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    transform: Callable[..., np.ndarray]


def list_weights(model: TransformerXL) -> Iterator[Weight]:
    """Yields every weight of a model with its source tensors."""
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


def _list_ties(config: ModelConfig) -> dict[str, str]:
    """Returns, for the other name of each tied tensor, the name that `list_weights` uses.

    A .bin holds the tensor under both names, a .safetensors under one of them.
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


def _check_model_size(folder: str, config: ModelConfig, tensors: Mapping[str, np.ndarray]) -> None:
    """Checks that a model is not far larger than its tensors, before it is built.

    A config can ask for any size. Smaller differences are left to `_assign_tensors`.
    """
    n_stored = sum(array.size for array in tensors.values())
    n_parts = max(config.n_layer, len(config.bins))
    if config.count_parameters() > 2 * n_stored + _SMALL_MODEL or n_parts > len(tensors) + 100:
        raise UserError(
            f"`{folder}` cannot be read: its config describes a far larger model than its weights, "
            f"which are {n_stored:,} numbers in {len(tensors)} tensors"
        )


def _assign_tensors(folder: str, model: TransformerXL, tensors: dict[str, np.ndarray]) -> None:
    """Assigns all tensors of a folder to the weights of a model, as float32."""
    tensors.pop(_FREQUENCIES, None)
    for name, array in tensors.items():
        if array.dtype.name not in _DTYPES:
            raise UserError(
                f"`{folder}` cannot be read: {escape_name(name)} has the dtype {array.dtype.name}"
            )
    for twin, name in _list_ties(model.config).items():
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


def _read_tensors(folder: str) -> dict[str, np.ndarray]:
    """Reads all tensors of a folder, in their own dtypes."""
    readers = {_SAFETENSORS: _read_safetensors, _INDEX: _read_shards, _TORCH: read_torch_file}
    for name, read in readers.items():
        path = Path(folder, name)
        if path.is_file():
            return read(path)
    raise UserError(f"`{folder}` holds no weights: it has neither {_SAFETENSORS} nor {_TORCH}")


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():  # opening a pipe would block
        raise UserError(f"`{path}` cannot be read: it is missing or not a regular file")
    # Dtypes that NumPy lacks raise various errors.
    with explain_errors(f"`{path}` cannot be read", Exception):
        return safetensors.numpy.load_file(path)


def _read_shards(index: Path) -> dict[str, np.ndarray]:
    """Returns the tensors of all files in an index; the files must be in its folder."""
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        paths = [index.with_name(name) for name in names]  # raises if it is in another folder
    except (OSError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UserError(f"`{index}` cannot be read: it does not map tensors to files") from error
    tensors: dict[str, np.ndarray] = {}
    for path in paths:
        tensors |= _read_safetensors(path)
    return tensors
