"""Writing a SavedModel: a folder that a process with tensorflow alone scores and generates with."""

import os
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tensorflow as tf

from txl_tf.cached_model import CachedModel
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.errors import UserError, explain_errors
from txl_tf.inference.serving import RaggedScorer, Reader, make_id_functions
from txl_tf.inference.serving_text import StrictTokenizer, Writer, make_text_functions
from txl_tf.runs.files import write_aside, write_json, write_text
from txl_tf.version import __version__

FORMAT_VERSION = 1
INFO_NAME, VOCABULARY_NAME, CARD_NAME = "txl_tf.json", "vocabulary.json", "README.md"
BATCH_SIZE = 8


class ServedModel(tf.Module):
    """What is saved: weights, products of positions, vocabulary, and the functions of all.

    Args:
        cached: the model.
        vocabulary: what turns texts into ids; `None`: then there are no functions of texts.
        batch_size: how many texts are read at once.
    """

    def __init__(self, cached: CachedModel, vocabulary: Vocabulary | None, batch_size: int):
        super().__init__(name="txl_tf")
        self._cached = cached
        self.reader = Reader(cached)
        self.scorer = RaggedScorer(cached, self.reader, batch_size)
        if vocabulary is not None:
            self.tokenizer = StrictTokenizer(vocabulary)
            self.writer = Writer(self.tokenizer, self.reader, cached, vocabulary)

    def make_functions(self) -> dict[str, tf.function]:
        """Returns the signatures by name; as attributes they would be traced a second time."""
        ragged = tf.RaggedTensorSpec((None, None), tf.int32)
        # One function for both signatures that score: traced, and saved, once.
        score = tf.function(self.scorer.score, input_signature=[ragged], autograph=False)
        functions = make_id_functions(score, self._cached)
        if hasattr(self, "tokenizer"):
            functions |= make_text_functions(self.tokenizer, score, self.writer)
        return functions


def export_saved_model(
    out: str,
    cached: CachedModel,
    vocabulary: Vocabulary | None,
    *,
    batch_size: int = BATCH_SIZE,
    origin: dict[str, Any] | None = None,
) -> tuple[str, ...]:
    """Writes a SavedModel, whole or not at all: docs/serving.md tells its signatures.

    Args:
        out: the folder, new or empty.
        cached: the model.
        vocabulary: its symbols; `None`: the signatures of ids alone are written.
        batch_size: how many texts are read at once; more take more memory.
        origin: what else to tell of the model, as JSON.

    Returns:
        The names of the signatures.

    Raises:
        UserError: the folder holds something, or cannot be written; nothing of it stays.
    """
    if batch_size < 1:
        raise UserError(f"`batch_size` must be positive. Received: batch_size={batch_size}")
    model = cached.model
    with write_aside(out) as aside:
        served = ServedModel(cached, vocabulary, batch_size)
        signatures = {
            name: function.get_concrete_function()
            for name, function in served.make_functions().items()
        }
        if vocabulary is not None:
            asset = os.path.join(aside, VOCABULARY_NAME)
            write_json(asset, vocabulary.to_json())
            served.vocabulary = tf.saved_model.Asset(asset)
        # The loss has a gradient of its own, for training.
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        with explain_errors(f"`{out}` could not be written", tf.errors.OpError, OSError):
            tf.saved_model.save(served, aside, signatures=signatures, options=options)
        info = {
            "format_version": FORMAT_VERSION,
            "versions": _read_versions(),
            "git_revision": _read_revision(),
            **(origin or {}),
            "model": model.config.to_json(),
            "parameters": model.config.count_parameters(),
            "dtype_policy": model.dtype_policy.name,
            "vocabulary": vocabulary and {"level": vocabulary.level, "symbols": len(vocabulary)},
            "span": cached.span.to_json(),
            "tgt_len": cached.tgt_len,
            "mask_empty_memory": cached.mask_empty_memory,
            "batch_size": batch_size,
            "signatures": {name: _describe(each) for name, each in signatures.items()},
        }
        write_json(os.path.join(aside, INFO_NAME), info)
        write_text(os.path.join(aside, CARD_NAME), _make_card(info))
        if vocabulary is not None:
            os.remove(asset)  # there is a copy in `assets/`
    return tuple(signatures)


def _describe(function: Any) -> dict[str, Any]:
    """Returns dtypes and shapes of what a signature takes and gives; -1 for any size."""

    def list_tensors(specs: dict[str, Any]) -> dict[str, Any]:
        return {
            name: {
                "dtype": spec.dtype.name,
                "shape": [-1 if size is None else size for size in spec.shape],
            }
            for name, spec in specs.items()
        }

    inputs = {spec.name: spec for spec in function.structured_input_signature[0]}
    return {
        "inputs": list_tensors(inputs),
        "outputs": list_tensors(function.structured_outputs),
    }


def _make_card(info: dict[str, Any]) -> str:
    """Returns a text for people that says what the folder holds."""
    span, vocabulary = info["span"], info["vocabulary"]
    symbols = f"{vocabulary['symbols']:,} {vocabulary['level']}s" if vocabulary else "ids alone"
    lines = [
        "# A Transformer-XL as a SavedModel",
        "",
        f"- Made by txl_tf {info['versions']['txl_tf']}; {INFO_NAME} holds all settings.",
        f"- Data set: {info.get('dataset', 'unknown')}; step {info.get('step', 0):,}; "
        f"{info['parameters']:,} parameters; vocabulary: {symbols}.",
        f"- Segments of {info['tgt_len']}, memory of {span['mem_len']}, "
        f"same_length {str(span['same_length']).lower()}, clamp_len {span['clamp_len']}.",
        f"- An empty memory is {'hidden' if info['mask_empty_memory'] else 'attended to'}.",
        "- It continues texts like those that it was trained on; what it writes may be wrong or "
        "offensive.",
        "",
        "| signature | takes | gives |",
        "|---|---|---|",
    ]
    for name, tensors in info["signatures"].items():
        cells = (
            "; ".join(
                f"`{key}` {each['dtype']} {_write_shape(each['shape'])}"
                for key, each in tensors[part].items()
            )
            for part in ("inputs", "outputs")
        )
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _write_shape(shape: list[int]) -> str:
    return f"({', '.join('any' if size < 0 else str(size) for size in shape)})"


def _read_versions() -> dict[str, str]:
    names = ("tensorflow", "keras", "tensorflow-text")
    return {"txl_tf": __version__, **{name: version(name) for name in names}}


def _read_revision() -> str | None:
    """Returns the git revision of the package's own tree; `None` where it is not in one."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        ran = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True
        )
    except OSError:  # there is no git
        return None
    return ran.stdout.strip() or None
