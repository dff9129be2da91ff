"""Runs on the Hugging Face Hub: `hf://user/model`, or `hf://user/model@revision`.

A repository holds a run in four files:

config.json          as in a run folder
model.safetensors    the weights, float32 or float16
vocabulary.json      as in a run folder; absent if only ids are known
README.md            the model card
"""

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

from txl_tf.errors import UserError, explain, require_extra
from txl_tf.runs.checkpoint_choice import WEIGHTS_NAME
from txl_tf.runs.folder import CONFIG_NAME, VOCABULARY_NAME
from txl_tf.version import __version__

PREFIX = "hf://"
CARD_NAME = "README.md"
_FILES = (CONFIG_NAME, WEIGHTS_NAME, VOCABULARY_NAME, CARD_NAME)


def is_hub_address(path: str) -> bool:
    """Returns whether a path is an address on the Hub, such as "hf://user/model"."""
    return path.startswith(PREFIX)


def fetch_model(address: str) -> str:
    """Downloads a model, unless the cache of `huggingface_hub` holds it, and returns its folder."""
    match = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@(.+))?", address)
    if not match:
        raise UserError(f"`path` must be hf://user/model or hf://user/model@REVISION: {address}")
    hub = import_hub()
    with explain_hub(address):
        folder = hub.snapshot_download(
            match[1],
            revision=match[2],
            allow_patterns=list(_FILES),
            library_name="txl_tf",
            library_version=__version__,
        )
    needed = (CONFIG_NAME, WEIGHTS_NAME)
    missing = [name for name in needed if not os.path.isfile(os.path.join(folder, name))]
    if missing:
        raise UserError(f"`{address}` is no model of txl_tf: it has no {' and no '.join(missing)}")
    return str(folder)


def import_hub() -> Any:
    """Returns the module `huggingface_hub`, which the extra `hub` installs."""
    with require_extra("hub", "a model on the Hub"):
        import huggingface_hub
    return huggingface_hub


@contextlib.contextmanager
def explain_hub(address: str) -> Iterator[None]:
    """Re-raises errors of `huggingface_hub` as a `UserError` of one line."""
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
    # `HTTPError` covers a Hub that cannot be reached, too: that of httpx2 is no `OSError`.
    except (errors.HTTPError, errors.HFValidationError, OSError, ValueError) as error:
        raise UserError(f"`{address}`: {explain(error)}") from error
