"""Writes a model as a run folder that can be moved."""

import os

from txl_tf.data.files import write_json
from txl_tf.data.temporary_folders import write_aside
from txl_tf.errors import UserError
from txl_tf.exports.description import LanguageModel
from txl_tf.models.quantization import get_kernel_dtype
from txl_tf.runs.checkpoint import save_weights
from txl_tf.runs.checkpoint_choice import WEIGHTS_NAME
from txl_tf.runs.folder import CONFIG_NAME, VOCABULARY_NAME, RunConfig, make_run_folder
from txl_tf.runs.weights_file import write_weights_file


def save_run(lm: LanguageModel, folder: str | os.PathLike[str], *, safetensors: str | None) -> None:
    """Writes a run folder, completely or not at all; see `LanguageModel.save`."""
    if safetensors not in (None, "float32", "float16"):
        raise UserError(f"`safetensors` must be 'float32' or 'float16'. Received: {safetensors!r}")
    if get_kernel_dtype(lm.model) != "float32":
        raise UserError("a quantized model cannot be saved as a run: save it before quantizing it")
    config = RunConfig(lm.dataset, lm.config, lm.training, lm.evaluation)
    with write_aside(os.fspath(folder)) as aside:
        if safetensors is None:
            make_run_folder(aside, config, lm.vocabulary)
            save_weights(aside, lm.model, step=lm.step)
            return
        path = os.path.join(aside, WEIGHTS_NAME)
        write_weights_file(lm.model, path, step=lm.step, dtype=safetensors)
        write_json(os.path.join(aside, CONFIG_NAME), config.to_json())
        if lm.vocabulary is not None:
            write_json(os.path.join(aside, VOCABULARY_NAME), lm.vocabulary.to_json())
