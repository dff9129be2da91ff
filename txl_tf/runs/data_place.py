"""The location of a run's records, in a file of its own that comparisons of configs ignore.

Hosts may reach a folder by different paths; the file holds the path that was given last.
"""

import contextlib
import dataclasses
import os
from typing import Any

from txl_tf.data.files import get_size, is_remote, join_path
from txl_tf.data.records import JSON_NAME
from txl_tf.errors import UserError
from txl_tf.runs.files import exists, read_json, write_json
from txl_tf.runs.folder import DATA_NAME, RECORDS_NAME


@dataclasses.dataclass(frozen=True)
class DataPlace:
    """The location of a data set.

    Args:
        data_dir: The folder of the data set.
        data_format: Its format, one of `txl_tf.cli.data_formats.DATA_FORMATS`.
        record_info_dir: For records of the 2019 release, the folder of their descriptions.
        corpus_info_path: For records of the 2019 release, the description of the corpus.
    """

    data_dir: str
    data_format: str = "records"
    record_info_dir: str | None = None
    corpus_info_path: str | None = None


def remember_data(model_dir: str, place: DataPlace) -> None:
    """Saves the location of a run's records, with absolute paths."""
    content = dataclasses.asdict(place)
    for name in ("data_dir", "record_info_dir", "corpus_info_path"):
        if content[name] is not None and not is_remote(content[name]):
            content[name] = os.path.abspath(content[name])
    write_json(os.path.join(model_dir, DATA_NAME), content)


def knows_data(model_dir: str) -> bool:
    """Returns whether a run has saved the location of its records."""
    return exists(os.path.join(model_dir, DATA_NAME))


def recall_data(model_dir: str) -> DataPlace | None:
    """Returns the saved location of a run's records; `None` if it was not saved.

    Raises:
        UserError: If the file cannot be read, or the folder that it names no longer exists.
    """
    if not knows_data(model_dir):
        return None
    path = os.path.join(model_dir, DATA_NAME)
    try:
        place = DataPlace(**_read(path))
    except TypeError as error:
        raise UserError(f"`{path}` must name the location of a run's data: {error}") from error
    if not is_remote(place.data_dir) and not os.path.isdir(place.data_dir):
        raise UserError(
            f"`{place.data_dir}`, the data folder of `{model_dir}`, no longer exists: pass "
            "--data_dir, the folder of its records"
        )
    return place


def _read(path: str) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("data_dir"), str):
        raise UserError(f"`{path}` must be an object with the folder `data_dir`")
    return content


def find_run_data(model_dir: str) -> DataPlace | None:
    """Returns the location of a run's data: its own folder, or the folder it was trained on.

    Raises:
        UserError: If the saved location cannot be read or no longer exists.
    """
    if _holds_own(model_dir):
        return DataPlace(join_path(model_dir, RECORDS_NAME))
    return recall_data(model_dir)


def name_records(model_dir: str) -> str:
    """Returns the folder of a run's records, whether or not it exists."""
    if not _holds_own(model_dir) and knows_data(model_dir):
        with contextlib.suppress(UserError):
            return str(_read(os.path.join(model_dir, DATA_NAME))["data_dir"])
    return join_path(model_dir, RECORDS_NAME)


def _holds_own(model_dir: str) -> bool:
    return get_size(join_path(join_path(model_dir, RECORDS_NAME), JSON_NAME)) is not None
