"""Where the records of a run are: a file beside its config, which no comparison of configs reads.

Hosts may know a folder by different paths; the one that was given last stands in the file.
"""

import contextlib
import dataclasses
import os
from typing import Any, Self

from txl_tf.data.files import get_size, is_remote, join_path
from txl_tf.data.records import JSON_NAME
from txl_tf.errors import UserError
from txl_tf.runs.files import exists, read_json, write_json
from txl_tf.runs.folder import DATA_NAME, RECORDS_NAME


@dataclasses.dataclass(frozen=True)
class DataPlace:
    """A data set on disk.

    Args:
        data_dir: its folder.
        data_format: how it lies there, one of `txl_tf.cli.data_formats.DATA_FORMATS`.
        record_info_dir: of records of the 2019 release, where their descriptions are.
        corpus_info_path: of these, where the description of the corpus is.
    """

    data_dir: str
    data_format: str = "records"
    record_info_dir: str | None = None
    corpus_info_path: str | None = None

    def make_absolute(self) -> Self:
        """Returns the place as any working folder knows it."""
        names = ("data_dir", "record_info_dir", "corpus_info_path")
        paths = {name: getattr(self, name) for name in names}
        return dataclasses.replace(
            self,
            **{
                name: path if path is None or is_remote(path) else os.path.abspath(path)
                for name, path in paths.items()
            },
        )


def remember_data(model_dir: str, place: DataPlace) -> None:
    """Writes where the records of a run are, unless the file says so already."""
    content = dataclasses.asdict(place.make_absolute())
    path = os.path.join(model_dir, DATA_NAME)
    try:
        is_known = exists(path) and _read(path) == content
    except UserError:  # damaged: it is written anew
        is_known = False
    if not is_known:
        write_json(path, content)


def knows_data(model_dir: str) -> bool:
    """Tells whether a run remembers where its records are."""
    return exists(os.path.join(model_dir, DATA_NAME))


def recall_data(model_dir: str) -> DataPlace | None:
    """Returns where the records of a run are; `None` if that is not known.

    Raises:
        UserError: the file cannot be read, or the folder that it names is gone.
    """
    if not knows_data(model_dir):
        return None
    path = os.path.join(model_dir, DATA_NAME)
    try:
        place = DataPlace(**_read(path))
    except TypeError as error:
        raise UserError(f"`{path}` must say where the data of a run are: {error}") from error
    if not is_remote(place.data_dir) and not os.path.isdir(place.data_dir):
        raise UserError(
            f"`{place.data_dir}`, where `{model_dir}` has its data, is not there any more: pass "
            "--data_dir, the folder of its records"
        )
    return place


def _read(path: str) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("data_dir"), str):
        raise UserError(f"`{path}` must be an object with the folder `data_dir`")
    return content


def find_run_data(model_dir: str) -> DataPlace | None:
    """Returns where the data of a run are: in its own folder, or where it was trained.

    Raises:
        UserError: as `recall_data`.
    """
    if _holds_own(model_dir):
        return DataPlace(join_path(model_dir, RECORDS_NAME))
    return recall_data(model_dir)


def name_records(model_dir: str) -> str:
    """Returns the folder of the records of a run, whether it is there or not."""
    if not _holds_own(model_dir) and knows_data(model_dir):
        with contextlib.suppress(UserError):
            return str(_read(os.path.join(model_dir, DATA_NAME))["data_dir"])
    return join_path(model_dir, RECORDS_NAME)


def _holds_own(model_dir: str) -> bool:
    return get_size(join_path(join_path(model_dir, RECORDS_NAME), JSON_NAME)) is not None
