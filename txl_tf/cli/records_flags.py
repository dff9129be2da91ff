"""The flag that names a data set, and what opens it: the one of the flag, or that of a run."""

from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from txl_tf.cli.flags import define_flag
from txl_tf.data.files import is_remote
from txl_tf.data.records.reading import open_records
from txl_tf.data.records.writing import holds_records
from txl_tf.errors import UserError, name_program

if TYPE_CHECKING:
    from txl_tf.data.records.reading import Records


def open_data_set(data_dir: str) -> "Records":
    """Opens a data set; says how to convert one of the 2019 release."""
    if not is_remote(data_dir) and not holds_records(data_dir):
        for place in (Path(data_dir), Path(data_dir, "tfrecords")):
            if any(place.glob("record_info-*.json")):
                program = name_program("make_tfrecords")
                raise UserError(
                    f"`{data_dir}` holds records of the 2019 release. Convert them once: "
                    f"{program} --dataset release2019 --raw_dir {data_dir} --data_dir NEW_DIR"
                )
    return open_records(data_dir)


def define_records_flag(options: flags.FlagValues) -> None:
    """Defines the flag of the records, which `open_run_records` opens."""
    help_text = "Folder of the records. [default: the run's]"
    define_flag(options, "data_dir", str, None, help_text, is_path=True)


def open_run_records(run: str, data_dir: str | None) -> "Records":
    """Opens the records that a flag names, or else those in a run's folder or of its training."""
    from txl_tf.runs.folder import find_run_data

    data_dir = data_dir or find_run_data(run)
    if data_dir is None:
        raise UserError(
            f"`{run}` holds no records and has saved no location of its data: pass "
            "--data_dir, the folder of the records"
        )
    return open_data_set(data_dir)
