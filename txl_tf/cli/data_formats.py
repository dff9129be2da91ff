"""Opens a data set in any supported format: the one that flags name, or that of a run."""

import os
from typing import TYPE_CHECKING

from absl import flags

from txl_tf.cli.flags import define_flag
from txl_tf.data.files import is_remote
from txl_tf.data.reading import open_records
from txl_tf.data.writing import holds_records
from txl_tf.errors import UserError

if TYPE_CHECKING:
    from txl_tf.data.data_set import DataSet
    from txl_tf.runs.data_place import DataPlace

RECORDS, RELEASE = DATA_FORMATS = ("records", "release2019")


def open_data_set(
    place: "DataPlace",
    *,
    train_batch_size: int | None = None,
    eval_batch_size: int | None = None,
    tgt_len: int | None = None,
) -> "DataSet":
    """Opens a data set. TensorFlow is imported only for records of the 2019 release.

    Args:
        place: The folder and the format of the data set.
        train_batch_size: As in `open_release_records`, and used only there, like the others.
        eval_batch_size: As in `open_release_records`.
        tgt_len: As in `open_release_records`.

    Raises:
        UserError: If the data set is missing, in another format, or damaged.
    """
    if place.data_format == RELEASE:
        from txl_tf.release.records import open_release_records

        return open_release_records(
            place.data_dir,
            train_batch_size=train_batch_size,
            eval_batch_size=eval_batch_size,
            tgt_len=tgt_len,
            record_info_dir=place.record_info_dir,
            corpus_info_path=place.corpus_info_path,
        )
    if not holds_records(place.data_dir) and (
        is_remote(place.data_dir) or os.path.isdir(place.data_dir)
    ):
        from txl_tf.release.records import holds_release_records

        if holds_release_records(place.data_dir):
            raise UserError(
                f"`{place.data_dir}` holds records of the 2019 release: pass "
                f"--data_format={RELEASE} to read them."
            )
    return open_records(place.data_dir)


def define_records_flags(options: flags.FlagValues) -> None:
    """Defines the flags of the records, which `open_run_records` opens."""
    help_text = "Folder of the records. [default: the run's]"
    define_flag(options, "data_dir", str, None, help_text, is_path=True)
    help_text = "Format of the data in --data_dir."
    define_flag(options, "data_format", str, RECORDS, help_text, choices=DATA_FORMATS)


def open_run_records(
    run: str,
    data_dir: str | None,
    data_format: str,
    *,
    eval_batch_size: int | None = None,
    tgt_len: int | None = None,
) -> "DataSet":
    """Opens the records that flags name, or else those in a run's folder or of its training.

    Args:
        run: The run folder.
        data_dir: The folder of the records; `None` for those of the run.
        data_format: The format of the records in `data_dir`.
        eval_batch_size: As in `open_data_set`.
        tgt_len: As in `open_data_set`.

    Raises:
        UserError: If there are none, or they no longer exist.
    """
    from txl_tf.runs.data_place import DataPlace, find_run_data

    place = DataPlace(data_dir, data_format) if data_dir else find_run_data(run)
    if place is None:
        raise UserError(
            f"`{run}` holds no records and has saved no location of its data: pass "
            "--data_dir, the folder of the records"
        )
    return open_data_set(place, eval_batch_size=eval_batch_size, tgt_len=tgt_len)
