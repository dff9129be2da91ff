"""The part of `LanguageModel` that writes the model for others."""

import dataclasses
import os

from txl_tf.config import EvalConfig, TrainConfig
from txl_tf.data.files import exists
from txl_tf.data.temporary_folders import write_aside
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError, check_integer
from txl_tf.exports.formats import FORMATS
from txl_tf.exports.hub_folder import PREFIX, Card, find_records, push_model, write_files
from txl_tf.models.architecture import check_transformer
from txl_tf.models.cached_model import make_cached
from txl_tf.models.quantization import get_kernel_dtype
from txl_tf.models.segment_model import SegmentModel
from txl_tf.runs.checkpoint_writer import save_weights
from txl_tf.runs.folder import IMPORT_NAME, RunConfig, make_run_folder


class ExportMixin:
    """The methods of `LanguageModel` that write the model for others."""

    model: SegmentModel
    vocabulary: Vocabulary | None
    evaluation: EvalConfig
    dataset: str
    training: TrainConfig
    step: int
    run: str | None
    checkpoint: str | None
    is_averaged: bool

    def save(self, folder: str | os.PathLike[str], *, safetensors: str | None = None) -> None:
        """Writes a run folder with only the weights, completely or not at all.

        The folder can be moved, and loaded with `load`.

        Args:
            folder: A folder on this machine, which must be new or empty.
            safetensors: "float32" or "float16": write the files of `push_to_hub` instead, with the
                weights as safetensors in this dtype. This needs the extra `hub`. `None` for a
                checkpoint of TensorFlow.

        Raises:
            UserError: If the folder is not empty or cannot be written, the model is quantized, or
                there is no such dtype.
        """
        if safetensors not in (None, "float32", "float16"):
            raise UserError(
                f"`safetensors` must be 'float32' or 'float16'. Received: {safetensors!r}"
            )
        if get_kernel_dtype(self.model) != "float32":
            raise UserError("a quantized model cannot be saved as a run: save it before")
        with write_aside(os.fspath(folder)) as aside:
            if safetensors:
                card = self._make_card(os.fspath(folder).rstrip("/"))
                write_files(aside, self.model, card._replace(dtype=safetensors))
                return
            make_run_folder(aside, self._run_config, self.vocabulary)
            save_weights(aside, self.model, step=self.step)

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        revision: str | None = None,
        message: str | None = None,
        license: str | None = None,  # noqa: A002  the Hub's name
        language: str | None = None,
    ) -> str:
        """Uploads the model to the Hugging Face Hub, from where `txl_tf.load` loads it.

        The repository holds the weights as safetensors, the config, the vocabulary and a model card
        with the evaluations of these weights that the run folder records.

        Args:
            name: The name of the repository, "user/model"; it is made if it is missing.
            private: Whether a new repository is private; `None` for the default of the user.
            token: The token of a user; `None` for that of `hf auth login`.
            revision: The branch, which must exist; `None` for the main one.
            message: The message of the commit.
            license: An identifier of the Hub for the card, such as "apache-2.0".
            language: A code for the card, such as "en".

        Returns:
            The address of the commit.

        Raises:
            UserError: If the model is quantized, or the Hub refuses it or cannot be reached.
        """
        if get_kernel_dtype(self.model) != "float32":
            raise UserError("a quantized model cannot be uploaded: upload it before")
        card = self._make_card(f"{PREFIX}{name}", license, language)
        return push_model(
            self.model,
            card,
            private=private,
            token=token,
            revision=revision,
            message=message,
        )

    def export(
        self,
        folder: str | os.PathLike[str],
        *,
        format: str = "saved_model",  # noqa: A002  as the flag
        precision: str | None = None,
        batch_size: int | None = None,
        tgt_len: int | None = None,
        mask_empty_memory: bool = True,
    ) -> tuple[str, ...]:
        """Writes the model for other processes.

        A SavedModel scores and generates in any process with TensorFlow. A file has one function,
        which reads tokens and returns the log-probabilities of the next ones. Both score like
        `score`, with the softmax temperature of the evaluation config.

        Args:
            folder: A folder on this machine, which must be new or empty.
            format: A key of `txl_tf.exports.formats.FORMATS`, such as "saved_model" or "onnx".
            precision: The dtype in which a file stores matrices: "float32" (the default), "float16"
                or "int8". A SavedModel has that of the model; see `quantize`.
            batch_size: Number of texts to read at once; more texts need more memory. `None` for 8
                in a SavedModel, 1 in a file.
            tgt_len: Segment length. `None` for that of the evaluation config, in a file for 1.
            mask_empty_memory: Whether to hide memory entries that hold no token yet. The 2019
                release attends to them as zeros.

        Returns:
            The names of the signatures, described in docs/savedmodel.md. Without a vocabulary they
            take only ids. Of a file, the names of what the folder holds: see docs/onnx-litert.md.

        Raises:
            UserError: If an argument is out of its range or has no effect, the format cannot hold
                the model, or the folder is not empty or cannot be written. Nothing is left behind.
        """
        check_transformer(self.model.config, "an export")
        if format not in FORMATS:
            raise UserError(f"`format` must be one of {tuple(FORMATS)}. Received: {format!r}")
        kind = FORMATS[format]
        precisions = kind.precisions if kind.rounds_weights else (get_kernel_dtype(self.model),)
        if precision is None:
            precision = precisions[0]
        if precision not in precisions:
            raise UserError(
                f"`precision` must be one of {precisions} with format={format}"
                f"{'' if kind.rounds_weights else ', whose weights `quantize` rounds'}. "
                f"Received: precision={precision!r}"
            )
        if batch_size is None:
            batch_size = kind.batch_size
        check_integer("batch_size", batch_size, 1)
        if tgt_len is None:
            tgt_len = kind.tgt_len or self.evaluation.tgt_len
        evaluation = dataclasses.replace(self.evaluation, tgt_len=tgt_len)
        return kind.write(
            os.fspath(folder),
            make_cached(self.model, evaluation, mask_empty_memory=mask_empty_memory),
            self.vocabulary,
            precision=precision,
            batch_size=batch_size,
            origin={"dataset": self.dataset, "step": self.step},
        )

    def _make_card(
        self,
        address: str,
        license: str | None = None,  # noqa: A002
        language: str | None = None,
    ) -> Card:
        records = []
        if self.run and self.checkpoint:
            records = find_records(self.run, self.checkpoint, is_averaged=self.is_averaged)
        is_imported = bool(self.run) and exists(os.path.join(str(self.run), IMPORT_NAME))
        return Card(
            *(address, self._run_config, self.vocabulary, self.step, records, license, language),
            is_imported=is_imported or not self.step,
        )

    @property
    def _run_config(self) -> RunConfig:
        return RunConfig(self.dataset, self.model.config, self.training, self.evaluation)
