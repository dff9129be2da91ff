"""Reads defaults of the training command from existing runs: config, data, and initial model."""

import os
import shlex
from typing import TYPE_CHECKING

from absl import flags

from txl_tf.config import ModelConfig
from txl_tf.data.files import get_size, join_path
from txl_tf.data.records.reading import Records
from txl_tf.errors import UserError, name_program

if TYPE_CHECKING:
    from txl_tf.runs.folder import RunConfig


def find_run(model_dir: str) -> "RunConfig | None":
    """Returns the config of a run folder; `None` if there is no run.

    Raises:
        UserError: If the config cannot be read.
    """
    if get_size(join_path(model_dir, "config.json")) is None:
        return None

    from txl_tf.runs.folder import read_run_config  # a new run needs no TensorFlow yet

    return read_run_config(model_dir)


def find_data(options: flags.FlagValues, found: "RunConfig | None") -> str:
    """Returns the folder of the data, from the flag or from the run.

    Args:
        options: The flags.
        found: The config of the run; `None` for a new run.

    Raises:
        flags.Error: If neither the flag nor the run states it.
        UserError: If the folder that the run states no longer exists.
    """
    if options.data_dir is not None:
        return str(options.data_dir)
    if found is None:
        raise flags.Error("--data_dir must be given: this is a new run")

    from txl_tf.runs.data_place import find_run_data, recall_data

    # The data of its training, or for an imported run the data that came with it.
    data_dir = recall_data(options.model_dir) or find_run_data(options.model_dir)
    if data_dir is None:
        raise flags.Error(
            f"--data_dir must be given: `{options.model_dir}` does not state where its data are"
        )
    return data_dir


def find_start(options: flags.FlagValues, records: Records) -> ModelConfig | None:
    """Returns the config of the model that --warm_start_path is a checkpoint of, if it is known.

    Raises:
        UserError: If that run has another vocabulary than the records.
    """
    if options.warm_start_path is None:
        return None
    folder = os.path.dirname(os.path.dirname(options.warm_start_path)) or "."
    start = find_run(folder)
    if start is None:
        return None
    from txl_tf.runs.folder import VOCABULARY_NAME, read_run_vocabulary

    vocabulary = read_run_vocabulary(folder)
    if vocabulary not in (None, records.vocabulary):
        path = shlex.quote(join_path(folder, VOCABULARY_NAME))
        raise UserError(
            f"`{records.data_dir}` has another vocabulary than `{folder}`, so the weights of that "
            "run cannot be used. To make records with the vocabulary of the run: "
            f"{name_program('make_tfrecords')} --dataset text --level {vocabulary.level} "
            f"--vocab_file {path} --train FILES --valid FILES --data_dir NEW_DATA_DIR"
        )
    if not options.preset:
        print(f"The model is that of {folder}, except for flags given here.")
    return start.model
