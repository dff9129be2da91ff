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

from txl_tf.data.files import write_json, write_text
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError, explain, require_extra
from txl_tf.exports.model_card import Card, write_card
from txl_tf.exports.weights_file import WEIGHTS_NAME, save_weights_file
from txl_tf.model import SegmentModel
from txl_tf.runs.folder import CONFIG_NAME, VOCABULARY_NAME, RunConfig
from txl_tf.version import __version__

PREFIX = "hf://"
_FILES = (CONFIG_NAME, WEIGHTS_NAME, VOCABULARY_NAME, "README.md")


def is_hub_address(path: str) -> bool:
    """Returns whether a path is an address on the Hub, such as "hf://user/model"."""
    return path.startswith(PREFIX)


def fetch_model(address: str, *, token: str | None = None) -> str:
    """Downloads a model, unless the cache of the Hub's library holds it, and returns its folder.

    Args:
        address: "hf://user/model" for the newest version, or "hf://user/model@revision" for a
            branch, a tag or a commit.
        token: The token of a user; `None` for that of `hf auth login`, if there is one.

    Raises:
        UserError: If the address is not valid, or there is no such model, revision or file.
    """
    match = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@(.+))?", address)
    if not match:
        raise UserError(f"`path` must be hf://user/model or hf://user/model@REVISION: {address}")
    hub = _import_hub()
    with _explain_hub(address):
        folder = hub.snapshot_download(
            match[1],
            revision=match[2],
            allow_patterns=list(_FILES),
            token=token,
            library_name="txl_tf",
            library_version=__version__,
        )
    missing = [name for name in (CONFIG_NAME, WEIGHTS_NAME) if not _has(folder, name)]
    if missing:
        raise UserError(f"`{address}` is no model of txl_tf: it has no {' and no '.join(missing)}")
    return str(folder)


def push_model(
    model: SegmentModel,
    config: RunConfig,
    vocabulary: Vocabulary | None,
    card: Card,
    *,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    message: str | None = None,
) -> str:
    """Uploads a model, and returns the address of the commit.

    Args:
        model: The model.
        config: The config of the run.
        vocabulary: The vocabulary; `None` if only ids are known.
        card: What the model card is made of; its name is that of the repository, "user/model",
            which is made if it is missing.
        private: Whether a new repository is private; `None` for the default of the user.
        token: The token of a user; `None` for that of `hf auth login`.
        revision: The branch, which must exist; `None` for the main one.
        message: The message of the commit.

    Raises:
        UserError: If the Hub refuses the upload, or cannot be reached.
    """
    hub = _import_hub()
    with tempfile.TemporaryDirectory() as folder, _explain_hub(f"{PREFIX}{card.name}"):
        write_shared(folder, model, config, vocabulary, card)
        api = hub.HfApi(token=token, library_name="txl_tf", library_version=__version__)
        api.create_repo(card.name, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=card.name,
            folder_path=folder,
            revision=revision,
            commit_message=message or f"Upload of step {card.step:,} with txl_tf {__version__}",
        )
    return str(commit.commit_url)


def write_shared(
    folder: str, model: SegmentModel, config: RunConfig, vocabulary: Vocabulary | None, card: Card
) -> None:
    """Writes the files of a repository into an empty folder."""
    save_weights_file(folder, model, step=card.step)
    write_json(os.path.join(folder, CONFIG_NAME), config.to_json())
    if vocabulary is not None:
        write_json(os.path.join(folder, VOCABULARY_NAME), vocabulary.to_json())
    write_text(os.path.join(folder, "README.md"), write_card(card))


def _has(folder: str, name: str) -> bool:
    return os.path.isfile(os.path.join(folder, name))


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
