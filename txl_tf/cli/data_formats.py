"""Opening a data set, in whatever form it lies on disk."""

from typing import TYPE_CHECKING

from txl_tf.data.reading import open_records
from txl_tf.data.writing import holds_records
from txl_tf.errors import UserError

if TYPE_CHECKING:
    from txl_tf.data.data_set import DataSet

RECORDS, RELEASE = DATA_FORMATS = ("records", "release2019")


def check_data_format(data_format: str) -> None:
    """Checks the name of a format.

    Raises:
        UserError: It is none of `DATA_FORMATS`.
    """
    if data_format not in DATA_FORMATS:
        raise UserError(
            f"--data_format must be {' or '.join(DATA_FORMATS)}. Received: {data_format}"
        )


def open_data_set(
    data_dir: str,
    data_format: str,
    *,
    train_batch_size: int | None = None,
    eval_batch_size: int | None = None,
    tgt_len: int | None = None,
    record_info_dir: str | None = None,
    corpus_info_path: str | None = None,
) -> "DataSet":
    """Opens a data set; what reads the 2019 release, and tensorflow, is imported only for that.

    Args:
        data_dir: Its folder.
        data_format: One of `DATA_FORMATS`.
        train_batch_size: As in `open_release_records`, and so are the others; they are for its
            records alone.
        eval_batch_size: As there.
        tgt_len: As there.
        record_info_dir: As there.
        corpus_info_path: As there.

    Raises:
        UserError: It is not there, is of another format, or damaged.
    """
    if data_format == RELEASE:
        from txl_tf.release.records import open_release_records

        return open_release_records(
            data_dir,
            train_batch_size=train_batch_size,
            eval_batch_size=eval_batch_size,
            tgt_len=tgt_len,
            record_info_dir=record_info_dir,
            corpus_info_path=corpus_info_path,
        )
    if not holds_records(data_dir):
        from txl_tf.release.records import holds_release_records

        if holds_release_records(data_dir):
            raise UserError(
                f"`{data_dir}` holds records of the 2019 release: pass --data_format={RELEASE} "
                "to read them."
            )
    return open_records(data_dir)
