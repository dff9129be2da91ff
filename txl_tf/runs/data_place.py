"""The location of a run's records, in a file of its own that comparisons of configs ignore.

Hosts may reach a folder by different paths; the file holds the path that was given last.
"""

import contextlib
import os

from txl_tf.data.files import exists, get_size, is_remote, join_path, read_json, write_json
from txl_tf.data.records.format import JSON_NAME
from txl_tf.errors import UserError
from txl_tf.runs.folder import DATA_NAME, RECORDS_NAME


def remember_data(model_dir: str, data_dir: str) -> None:
    """Saves the folder of a run's records as an absolute path."""
    path = data_dir if is_remote(data_dir) else os.path.abspath(data_dir)
    write_json(os.path.join(model_dir, DATA_NAME), {"data_dir": path})


def knows_data(model_dir: str) -> bool:
    """Returns whether a run has saved the location of its records."""
    return exists(os.path.join(model_dir, DATA_NAME))


def recall_data(model_dir: str) -> str | None:
    """Returns the saved folder of a run's records, which must exist; `None` if none was saved."""
    if not knows_data(model_dir):
        return None
    data_dir = _read(os.path.join(model_dir, DATA_NAME))
    if not is_remote(data_dir) and not os.path.isdir(data_dir):
        raise UserError(
            f"`{data_dir}`, the data folder of `{model_dir}`, no longer exists: pass "
            "--data_dir, the folder of its records"
        )
    return data_dir


def _read(path: str) -> str:
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("data_dir"), str):
        raise UserError(f"`{path}` must be an object with the folder `data_dir`")
    return str(content["data_dir"])


def find_run_data(model_dir: str) -> str | None:
    """Returns the folder of a run's data: its own one, or the one that it was trained on."""
    if _holds_own(model_dir):
        return join_path(model_dir, RECORDS_NAME)
    return recall_data(model_dir)


def name_records(model_dir: str) -> str:
    """Returns the folder of a run's records, whether or not it exists."""
    if not _holds_own(model_dir) and knows_data(model_dir):
        with contextlib.suppress(UserError):
            return _read(os.path.join(model_dir, DATA_NAME))
    return join_path(model_dir, RECORDS_NAME)


def _holds_own(model_dir: str) -> bool:
    return get_size(join_path(join_path(model_dir, RECORDS_NAME), JSON_NAME)) is not None
