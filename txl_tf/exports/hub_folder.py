"""Models on the Hugging Face Hub: `hf://user/model`, or `hf://user/model@revision`.

A repository holds a run in four files:

config.json          as in a run folder
model.safetensors    the weights, float32
vocabulary.json      as in a run folder; absent if only ids are known
README.md            the model card
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from typing import Any

from txl_tf.config.base import list_differences
from txl_tf.data.files import write_json, write_text
from txl_tf.errors import UserError, explain, explain_errors, require_extra
from txl_tf.exports.model_card import Card, write_card
from txl_tf.runs.checkpoint_reader import name_variables
from txl_tf.runs.folder import CONFIG_NAME, VOCABULARY_NAME
from txl_tf.segment_model import SegmentModel
from txl_tf.version import __version__

PREFIX = "hf://"
_WEIGHTS_NAME, _CARD_NAME = "model.safetensors", "README.md"
_FILES = (CONFIG_NAME, _WEIGHTS_NAME, VOCABULARY_NAME, _CARD_NAME)
_FORMAT = "txl_tf"  # under the key `format`, by which readers of other libraries know their files


def is_hub_address(path: str) -> bool:
    """Returns whether a path is an address on the Hub, such as "hf://user/model"."""
    return path.startswith(PREFIX)


def fetch_model(address: str) -> str:
    """Downloads a model, unless the cache of the Hub's library holds it, and returns its folder."""
    match = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@(.+))?", address)
    if not match:
        raise UserError(f"`path` must be hf://user/model or hf://user/model@REVISION: {address}")
    hub = _import_hub()
    with _explain_hub(address):
        folder = hub.snapshot_download(
            match[1],
            revision=match[2],
            allow_patterns=list(_FILES),
            library_name="txl_tf",
            library_version=__version__,
        )
    needed = (CONFIG_NAME, _WEIGHTS_NAME)
    missing = [name for name in needed if not os.path.isfile(os.path.join(folder, name))]
    if missing:
        raise UserError(f"`{address}` is no model of txl_tf: it has no {' and no '.join(missing)}")
    return str(folder)


def push_model(
    model: SegmentModel,
    card: Card,
    *,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    message: str | None = None,
) -> str:
    """Uploads a model, and returns the address of the commit; see `LanguageModel.push_to_hub`."""
    hub = _import_hub()
    with tempfile.TemporaryDirectory() as folder, _explain_hub(f"{PREFIX}{card.name}"):
        _write_files(folder, model, card)
        api = hub.HfApi(token=token, library_name="txl_tf", library_version=__version__)
        api.create_repo(card.name, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=card.name,
            folder_path=folder,
            revision=revision,
            commit_message=message or f"Upload of step {card.step:,} with txl_tf {__version__}",
        )
    return str(commit.commit_url)


def _write_files(folder: str, model: SegmentModel, card: Card) -> None:
    """Writes the files of a repository into an empty folder."""
    arrays = {name: x.numpy() for name, x in name_variables(model.weights).items()}
    metadata = {"format": _FORMAT, "step": str(card.step)}
    _import_safetensors().numpy.save_file(arrays, os.path.join(folder, _WEIGHTS_NAME), metadata)
    write_json(os.path.join(folder, CONFIG_NAME), card.config.to_json())
    if card.vocabulary is not None:
        write_json(os.path.join(folder, VOCABULARY_NAME), card.vocabulary.to_json())
    write_text(os.path.join(folder, _CARD_NAME), write_card(card))


def load_weights_file(folder: str, model: SegmentModel) -> int:
    """Restores the weights of a model, and returns the number of training steps behind them."""
    path, library = os.path.join(folder, _WEIGHTS_NAME), _import_safetensors()
    with (
        explain_errors(f"`{path}` cannot be read", library.SafetensorError, OSError),
        library.safe_open(path, framework="numpy") as file,
    ):
        arrays = {name: file.get_tensor(name) for name in list(file.keys())}
        metadata = file.metadata() or {}
    if metadata.get("format") != _FORMAT:
        raise UserError(
            f"`{path}` was not written by txl_tf. The weights of other libraries are imported: "
            f"python -m txl_tf.import_release --source {folder} --out RUN"
        )
    variables = name_variables(model.weights)
    found = {name: list(array.shape) for name, array in arrays.items()}
    differences = list_differences(found, {name: list(x.shape) for name, x in variables.items()})
    if differences:
        more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise UserError(
            f"`{path}` holds the weights of another model: {'; '.join(differences[:3])}{more}"
        )
    for name, variable in variables.items():
        variable.assign(arrays[name])
    return int(metadata.get("step", 0))


def _import_safetensors() -> Any:
    with require_extra("hub", _WEIGHTS_NAME):
        import safetensors.numpy
    return safetensors


def _import_hub() -> Any:
    with require_extra("hub", "a model on the Hub"):
        import huggingface_hub
    return huggingface_hub


@contextlib.contextmanager
def _explain_hub(address: str) -> Iterator[None]:
    """Re-raises the errors of the Hub's library as a `UserError` of one line."""
    from huggingface_hub import errors

    try:
        yield
    except UserError:
        raise
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"`{address}`: there is no such model, or it is private: `hf auth login` signs in"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"`{address}`: there is no such revision") from error
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError, ValueError) as error:
        raise UserError(f"`{address}`: {explain(error)}") from error
