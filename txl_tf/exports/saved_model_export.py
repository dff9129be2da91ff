"""Exports a SavedModel, which scores and generates in a process without txl_tf."""

import dataclasses
import os
from typing import Any

import tensorflow as tf

from txl_tf.config import EvalConfig
from txl_tf.data.files import write_json, write_text
from txl_tf.data.temporary_folders import write_aside
from txl_tf.data.text.vocabulary import CHARACTER_LEVELS
from txl_tf.errors import UserError, check_integer, explain_errors
from txl_tf.exports.description import LanguageModel, describe_model
from txl_tf.exports.saved_model import ServedModel
from txl_tf.models.architecture import check_transformer
from txl_tf.models.cached_model import make_cached
from txl_tf.models.quantization import get_kernel_dtype

_INFO_NAME, _ASSET_NAME, _CARD_NAME = "txl_tf.json", "vocabulary.json", "README.md"


def export_saved_model(
    lm: LanguageModel,
    folder: str | os.PathLike[str],
    *,
    format: str,  # noqa: A002  as the flag
    precision: str | None,
    batch_size: int,
    tgt_len: int | None,
    mask_empty_memory: bool,
) -> tuple[str, ...]:
    """Writes a SavedModel, completely or not at all; see `LanguageModel.export`."""
    check_transformer(lm.config, "an export")
    kernel_dtype = get_kernel_dtype(lm.model)
    if precision not in (None, kernel_dtype):
        raise UserError(
            f"`precision` must be one of {(kernel_dtype,)} with format={format}, whose weights "
            f"`quantize` rounds. Received: precision={precision!r}"
        )
    batch_size = check_integer("batch_size", batch_size, 1)
    tgt_len = lm.evaluation.tgt_len if tgt_len is None else tgt_len
    evaluation = dataclasses.replace(lm.evaluation, tgt_len=tgt_len)
    cached = make_cached(lm.model, evaluation, mask_empty_memory=mask_empty_memory)
    lm.config.check_memory("a SavedModel")
    out, vocabulary = os.fspath(folder), lm.vocabulary
    with write_aside(out) as aside:
        served = ServedModel(cached, vocabulary, batch_size)
        signatures = {
            name: function.get_concrete_function()
            for name, function in served.make_signatures().items()
        }
        if vocabulary is not None:
            asset = os.path.join(aside, _ASSET_NAME)
            write_json(asset, vocabulary.to_json())
            served.vocabulary = tf.saved_model.Asset(asset)
        # The custom gradient of the loss is only for training.
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        with explain_errors(f"`{out}` could not be written", tf.errors.OpError, OSError):
            tf.saved_model.save(served, aside, signatures=signatures, options=options)
        info = {
            **describe_model(lm, cached),
            "batch_size": batch_size,
            "signatures": {name: _describe(signature) for name, signature in signatures.items()},
        }
        write_json(os.path.join(aside, _INFO_NAME), info)
        write_text(os.path.join(aside, _CARD_NAME), _make_card(info))
        if vocabulary is not None:
            os.remove(asset)  # TensorFlow has copied it to `assets/`
    return tuple(signatures)


def _describe(function: Any) -> dict[str, Any]:
    """Returns the dtypes and shapes of a signature's inputs and outputs; -1 means any size."""
    inputs = {spec.name: spec for spec in function.structured_input_signature[0]}
    sides = {"inputs": inputs, "outputs": function.structured_outputs}
    return {
        side: {
            name: {
                "dtype": spec.dtype.name,
                "shape": [-1 if size is None else size for size in spec.shape],
            }
            for name, spec in specs.items()
        }
        for side, specs in sides.items()
    }


def _make_card(info: dict[str, Any]) -> str:
    config = EvalConfig(info["tgt_len"], temperature=info["temperature"], **info["span"])
    vocabulary = info["vocabulary"]
    symbols = f"{vocabulary['symbols']:,} {vocabulary['level']}s" if vocabulary else "none"
    lines = [
        "# Transformer-XL as a SavedModel",
        "",
        f"- Made by txl_tf {info['versions']['txl_tf']}; {_INFO_NAME} contains all settings.",
        f"- Data set: {info.get('dataset', 'unknown')}; step {info.get('step', 0):,}; "
        f"{info['parameters']:,} parameters, kernels in {info['kernel_dtype']}; "
        f"vocabulary: {symbols}.",
        f"- It reads with {config.describe()}.",
        f"- An empty memory is {'hidden' if info['mask_empty_memory'] else 'attended to'}.",
        "- The model imitates its training data. Its text may be wrong or offensive.",
        "",
        "| signature | takes | returns |",
        "|---|---|---|",
    ]
    for name, tensors in info["signatures"].items():
        takes, returns = (
            "; ".join(f"`{key}` {x['dtype']} {x['shape']}" for key, x in tensors[side].items())
            for side in ("inputs", "outputs")
        )
        lines.append(f"| `{name}` | {takes} | {returns} |".replace("-1", "any"))
    return "\n".join([*lines, "", *_make_example(vocabulary)]) + "\n"


def _make_example(vocabulary: dict[str, Any] | None) -> list[str]:
    """Returns the lines of a card that load the SavedModel, from its folder, and score."""
    call = 'score_ids"](ids=tf.constant([[0, 0]]), lengths=tf.constant([2]))'
    imports = ["import tensorflow as tf"]
    if vocabulary:
        call = 'score_text"](texts=tf.constant(["a text", "another"]))'
        if vocabulary["level"] not in CHARACTER_LEVELS:
            imports.append("import tensorflow_text  # registers the operations that split texts")
    return [
        "```python",
        *imports,
        "",
        'model = tf.saved_model.load(".")  # the folder of this file',
        f'print(model.signatures["{call}["nats"])',
        "```",
    ]
