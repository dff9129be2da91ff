"""Reads folders of a Transformer-XL of Hugging Face transformers.

FOLDER/config.json           hyper-parameters, with "model_type": "transfo-xl"
FOLDER/model.safetensors     weights; or shards with an index, or pytorch_model.bin
FOLDER/vocab.txt             the symbols, if the folder has them as text
"""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

from txl_tf.config import EvalConfig, ModelConfig
from txl_tf.data.text.learning import LearningOptions
from txl_tf.data.text.vocabulary import Vocabulary, read_vocabulary_file
from txl_tf.errors import UserError, explain_errors
from txl_tf.model import TransformerXL
from txl_tf.release.hub_weights import FILE_NAMES, assign_tensors, check_model_size, read_tensors

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


class HubConfig(NamedTuple):
    """The config of a model, and the way in which Hugging Face transformers reads a text."""

    model: ModelConfig
    evaluation: EvalConfig


def is_hub_folder(folder: str) -> bool:
    """Returns whether a folder is a Transformer-XL of Hugging Face transformers, even if damaged.

    Weight files with the names of that library are enough, whatever the config states.
    """
    if any(Path(folder, name).is_file() for name in FILE_NAMES):
        return True
    try:
        return _read_object(Path(folder, _CONFIG_NAME)).get("model_type") == MODEL_TYPE
    except UserError:
        return False


def read_hub_config(folder: str) -> HubConfig:
    """Reads the config of a folder of Hugging Face transformers.

    With `same_length` its mask shows M keys, so `counts_self` is set. Only older configs state a
    segment length; otherwise it is 128.

    Args:
        folder: A folder with a config.json.

    Returns:
        The configs of the model and of its evaluation.

    Raises:
        UserError: If there is no such config, or `ModelConfig` cannot express it.

    References:
        https://huggingface.co/docs/transformers/model_doc/transfo-xl.
    """
    path = Path(folder, _CONFIG_NAME)
    settings = _read_object(path)
    with explain_errors(f"`{path}` cannot be read", UserError):
        return _translate(settings)


def load_hub_model(folder: str) -> tuple[TransformerXL, EvalConfig]:
    """Makes a model with the weights of a folder of Hugging Face transformers.

    Args:
        folder: A folder with config.json and, in this order of preference, model.safetensors, its
            shards, or pytorch_model.bin. Weights of 16 bits become float32.

    Returns:
        The model, and the way in which Hugging Face transformers reads a text with it.

    Raises:
        UserError: If a file is missing, cannot be read or needs a package that is not installed;
            if `ModelConfig` cannot express the config; or if a tensor is missing, is not in the
            model or has another shape. All such tensors are named.
    """
    config = read_hub_config(folder)
    tensors = read_tensors(folder)
    check_model_size(folder, config.model, tensors)
    model = TransformerXL(config.model)
    assign_tensors(folder, model, tensors)
    return model, config.evaluation


def read_hub_vocabulary(folder: str) -> Vocabulary | None:
    """Reads the words of a folder of Hugging Face transformers from vocab.txt.

    The vocabulary splits only at white space: texts must be tokenised like the training text
    (Hugging Face's tokenizer first applies the Moses tokenizer).

    Args:
        folder: A folder with config.json, and optionally vocab.txt.

    Returns:
        The vocabulary. If it has the symbols, "<eos>" is the end of a line, and "<UNK>" or "<unk>"
        the unknown word. `None` if the folder has no vocab.txt of words; a line is printed if it
        has another vocabulary.

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
    n_token = read_hub_config(folder).model.n_token
    if len(vocabulary) != n_token:
        raise UserError(f"`{path}` holds {len(vocabulary)} symbols, but the model has {n_token}")
    known = [symbol for symbol in ("<UNK>", "<unk>") if symbol in vocabulary.symbols]
    return dataclasses.replace(
        vocabulary,
        unknown=known[0] if known else None,
        line_end="<eos>" if "<eos>" in vocabulary.symbols else None,
    )


def _read_object(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"`{path}` cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"`{path}` cannot be read: it is not an object")
    return content


def _translate(settings: dict[str, Any]) -> HubConfig:
    """Returns the configs for the settings of Hugging Face transformers, if there are any."""
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
    return HubConfig(
        dataclasses.replace(model, proj_share_all_but_first=_shares_projections(settings, model)),
        EvalConfig(eval_batch_size=1, **reading, counts_self=True),
    )


def _shares_projections(settings: dict[str, Any], model: ModelConfig) -> bool:
    """Returns whether the softmax shares the embedding's projections for all bins but the first.

    Where it shares only some of them, the tensors do not fit the model.
    """
    n_tail = len(model.cutoffs)
    ties = settings.get("tie_projs", [settings.get("proj_share_all_but_first", True)] * 2)
    if type(ties) is not list:
        raise UserError(f"`tie_projs` must be a list. Received: {json.dumps(ties)}")
    has_projections = any(map(model.has_embedding_projection, range(n_tail + 1)))
    return n_tail > 0 and has_projections and any(ties[1:])
