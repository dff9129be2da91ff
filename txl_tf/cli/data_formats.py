"""Opening a data set in any of the formats that are read."""

from typing import TYPE_CHECKING

from txl_tf.data.reading import open_records
from txl_tf.data.writing import holds_records
from txl_tf.errors import UserError

if TYPE_CHECKING:
    from txl_tf.data.data_set import DataSet

RECORDS, RELEASE = DATA_FORMATS = ("records", "release2019")


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
    """Opens a data set. The reader of the 2019 release, and tensorflow, are imported only for it.

    Args:
        data_dir: Its folder.
        data_format: One of `DATA_FORMATS`.
        train_batch_size: As in `open_release_records`; this and the others are for the records
            of the 2019 release alone.
        eval_batch_size: As there.
        tgt_len: As there.
        record_info_dir: As there.
        corpus_info_path: As there.

    Raises:
        UserError: If it is missing, of another format, or damaged.
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
