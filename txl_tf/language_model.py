"""A trained model with its vocabulary, which scores and generates text."""

import dataclasses
import hashlib
import os
import pkgutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Unpack, cast

import numpy as np

from txl_tf.config import KERNEL_DTYPES, AttentionSpan, EvalConfig, ModelConfig, TrainConfig
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.data.files import write_json
from txl_tf.data.records.reading import Records, open_records
from txl_tf.data.temporary_folders import write_aside
from txl_tf.data.text.vocabulary import Vocabulary, check_size
from txl_tf.errors import UserError
from txl_tf.exports.formats import FORMATS
from txl_tf.generation.generator import Generator
from txl_tf.generation.sampling import SamplingOptions
from txl_tf.generation.session import Session
from txl_tf.generation.text_encoder import TextEncoder, check_list
from txl_tf.models.architecture import check_transformer, make_model
from txl_tf.models.cached_model import make_cached
from txl_tf.models.compilation import Recent
from txl_tf.models.quantization import get_kernel_dtype, quantize
from txl_tf.models.segment_model import SegmentModel, refuse
from txl_tf.pretrained import find_pretrained
from txl_tf.runs.checkpoint import load_choice, read_step, save_weights
from txl_tf.runs.checkpoint_choice import WEIGHTS_NAME
from txl_tf.runs.folder import (
    CONFIG_NAME,
    VOCABULARY_NAME,
    RunConfig,
    check_vocabulary,
    find_run_data,
    make_run_folder,
    read_run_config,
    read_run_vocabulary,
    warn_of_other_split,
)
from txl_tf.runs.hub_download import fetch_model, is_hub_address
from txl_tf.runs.weights_file import write_weights_file
from txl_tf.scoring.dynamic_evaluation import make_adapting_reader
from txl_tf.scoring.evaluator import Evaluator, check_records
from txl_tf.scoring.metrics import Score, explain_unknown
from txl_tf.scoring.scorer import SCORING_BATCH_SIZE, Scorer, TextScorer
from txl_tf.scoring.text_scores import TextScore, TextTotals

_MOST_KEPT = 8  # scorers and generators kept, for the most recently used settings


class LanguageModel:
    """A language model that scores and continues texts; `txl_tf.load` loads one.

    All arguments are also attributes.

    Args:
        model: The model.
        vocabulary: The vocabulary; `None` if the model takes only ids.
        evaluation: The segment length and the attention span.
        dataset: The name of the data set that the model was trained on.
        training: The training config; `None` for one with the lengths of `evaluation`.
        step: The number of training steps; 0 if unknown.
        run: The run folder that the model was loaded from; `None` if there is none.
        checkpoint: The path of the checkpoint in that folder.
        is_averaged: Whether the weights are the averaged weights of the checkpoint.
        records: Opened records to evaluate on; `None` for those of `run`, if any.

    Raises:
        UserError: If the vocabulary is not that of the model.
    """

    def __init__(
        self,
        model: SegmentModel,
        vocabulary: Vocabulary | None,
        evaluation: EvalConfig,
        *,
        dataset: str = "unknown",
        training: TrainConfig | None = None,
        step: int = 0,
        run: str | None = None,
        checkpoint: str | None = None,
        is_averaged: bool = False,
        records: Records | None = None,
    ):
        check_size(vocabulary, model.config.n_token)
        self.model = model
        self.vocabulary = vocabulary
        self.evaluation = evaluation
        self.dataset = dataset
        if training is None:  # as it reads, as far as the model supports that in training
            names = ("tgt_len", "mem_len", "same_length", "clamp_len", "counts_self")
            values = {name: getattr(evaluation, name) for name in names}
            if n_positions := model.config.n_positions:  # training needs a row for each distance
                values["mem_len"] = min(values["mem_len"], n_positions - 1)
                values["tgt_len"] = min(values["tgt_len"], n_positions - values["mem_len"])
            training = TrainConfig(**values)
        self.training = training
        self.step = step
        self.run = run
        self.checkpoint = checkpoint
        self.is_averaged = is_averaged
        self._records = records

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        *,
        checkpoint: str | int | None = None,
        use_ema: bool = True,
        precision: str = "float32",
    ) -> "LanguageModel":
        """Loads a run.

        Args:
            path: A run folder, written by training or by an import; a model on the Hugging Face
                Hub, "hf://user/model" or "hf://user/model@revision", which is downloaded; a folder
                with the files of such a model; or "pydoc", a small model that comes with the
                package.
            checkpoint: "newest"; "best", the one with the lowest evaluation loss during training;
                a step; a name in the run folder; or a path. `None` loads the newest, and prints a
                line if an older one was better. Only a run folder has checkpoints.
            use_ema: Whether to use the averaged weights if the checkpoint has any.
            precision: The dtype of the kernels: "float32", or one that `quantize` takes.

        Raises:
            UserError: If the run does not exist or cannot be read, `precision` is unknown or not
                supported by the model, or `checkpoint` is given without a run folder.
        """
        return open_run(path, checkpoint=checkpoint, use_ema=use_ema, precision=precision)

    def load_checkpoint(self, checkpoint: str | int | None = None, *, use_ema: bool = True) -> None:
        """Replaces the weights with those of a checkpoint of the same run, chosen as in `load`.

        Raises:
            UserError: If the model has no run folder or is quantized, or the checkpoint cannot be
                read.
        """
        if self.run is None:
            raise UserError("`load_checkpoint` needs a run folder, and the model has none")
        if get_kernel_dtype(self.model) != "float32":
            raise UserError("a quantized model cannot load a checkpoint: load the run again")
        self.checkpoint, self.is_averaged = load_choice(
            self.model, self.run, checkpoint, use_ema=use_ema
        )
        self.step = read_step(self.checkpoint)

    def __getstate__(self) -> dict[str, Any]:
        # Without compiled functions, which cannot be copied.
        return self.__dict__ | {"_generators": Recent(_MOST_KEPT), "_scorers": Recent(_MOST_KEPT)}

    def __repr__(self) -> str:
        return f"<LanguageModel: {self.describe()}>"

    def describe(self) -> str:
        """Returns one line with the run, the model's size, its vocabulary and its span."""
        config, span, vocabulary = self.config, self.span, self.vocabulary
        kernel_dtype = get_kernel_dtype(self.model)
        facts = [
            *([f"run {self.run!r}"] if self.run is not None else []),
            f"step {self.step:,}",
            f"{config.count_parameters():,} parameters",
            f"{config.n_layer} layers",
            *([f"kernels in {kernel_dtype}"] if kernel_dtype != "float32" else []),
            f"vocabulary of {len(vocabulary):,} {vocabulary.level}s"
            if vocabulary
            else f"{config.n_token:,} ids without vocabulary",
            f"segments of {self.evaluation.tgt_len:,}",
            f"memory of {span.mem_len:,}",
            *(["same_length"] if span.same_length else []),
            *([f"clamp_len {span.clamp_len:,}"] if span.clamp_len > 0 else []),
        ]
        return ", ".join(facts)

    def quantize(self, dtype: str) -> None:
        """Stores the kernels and tables in fewer bits (weight-only quantization), in place.

        The model then takes less memory, generates faster where reading the weights takes most of
        the time, and exports smaller SavedModels, but is slightly less accurate; see
        docs/generating.md for figures. It can no longer be saved as a run. When it generates up to
        four texts at once, the inputs of matrix products are rounded to bfloat16; for more texts
        they are not, so the same seed may give a different text.

        Args:
            dtype: "int8", with a scale for each output; or "bfloat16", which is then also the
                compute dtype for reading texts.

        Raises:
            UserError: If `dtype` is unknown, or the model is recurrent or already quantized.
        """
        check_transformer(self.config, "quantization")
        self.model = quantize(self.model, dtype)

    def save(self, folder: str | os.PathLike[str], *, safetensors: str | None = None) -> None:
        """Writes a run folder without training state, completely or not at all.

        The folder can be moved; `load` reads it.

        Args:
            folder: A folder on this machine, which must be new or empty.
            safetensors: "float32" or "float16" to write the weights as safetensors in this dtype,
                next to the config and the vocabulary, as on the Hugging Face Hub. `None` to write a
                TensorFlow checkpoint.

        Raises:
            UserError: If the folder is not empty or cannot be written, the model is quantized, or
                `safetensors` is another dtype.
        """
        if safetensors not in (None, "float32", "float16"):
            raise UserError(
                f"`safetensors` must be 'float32' or 'float16'. Received: {safetensors!r}"
            )
        if get_kernel_dtype(self.model) != "float32":
            raise UserError(
                "a quantized model cannot be saved as a run: save it before quantizing it"
            )
        config = RunConfig(self.dataset, self.config, self.training, self.evaluation)
        with write_aside(os.fspath(folder)) as aside:
            if safetensors is None:
                make_run_folder(aside, config, self.vocabulary)
                save_weights(aside, self.model, step=self.step)
                return
            path = os.path.join(aside, WEIGHTS_NAME)
            write_weights_file(self.model, path, step=self.step, dtype=safetensors)
            write_json(os.path.join(aside, CONFIG_NAME), config.to_json())
            if self.vocabulary is not None:
                write_json(os.path.join(aside, VOCABULARY_NAME), self.vocabulary.to_json())

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
        """Exports the model for use without txl_tf.

        A SavedModel scores and generates in any process with TensorFlow. All formats score like
        `score`, at the softmax temperature of the evaluation config.

        Args:
            folder: A folder on this machine, which must be new or empty.
            format: "saved_model", "litert" or "onnx". The last two hold one function, which reads
                the next tokens; see docs/onnx-litert.md.
            precision: The dtype of kernels and tables. For a SavedModel, the model's own (see
                `quantize`) or `None`; otherwise "float32" (the default), "float16" or "int8".
            batch_size: Number of texts to read at once; more texts need more memory. `None` means
                8 for a SavedModel, otherwise 1.
            tgt_len: Segment length. `None` means that of the evaluation config for a SavedModel,
                otherwise 1.
            mask_empty_memory: Whether to hide memory entries that hold no token yet. The 2019
                release attends to them as zeros.

        Returns:
            For a SavedModel, the names of its signatures, described in docs/savedmodel.md; without
            a vocabulary, they take only ids. For the other formats, the names of the files.

        Raises:
            UserError: If an argument is out of range or has no effect, the format does not support
                the model, or the folder is not empty or cannot be written. No file is left behind.
        """
        if format not in FORMATS:
            raise UserError(f"`format` must be one of {tuple(FORMATS)}. Received: {format!r}")
        found = FORMATS[format]
        return pkgutil.resolve_name(found.place)(
            self,
            folder,
            format=format,
            precision=precision,
            batch_size=found.batch_size if batch_size is None else batch_size,
            tgt_len=found.tgt_len if tgt_len is None else tgt_len,
            mask_empty_memory=mask_empty_memory,
        )

    push_to_hub = refuse("txl_tf.apps.hub_upload.push_to_hub(lm, NAME) uploads a `{}`")

    @property
    def model(self) -> SegmentModel:
        """The Keras model. Another one may take its place."""
        return self._model

    @model.setter
    def model(self, model: SegmentModel) -> None:
        self._model = model
        # New caches: generators and scorers hold the model that they were made for.
        self._generators: Recent[tuple[EvalConfig, bool], Generator] = Recent(_MOST_KEPT)
        self._scorers: Recent[tuple[Any, ...], TextScorer] = Recent(_MOST_KEPT)

    @property
    def config(self) -> ModelConfig:
        """The config of the model."""
        return self.model.config

    @property
    def span(self) -> AttentionSpan:
        """The attention span."""
        return self.evaluation.span

    @property
    def records(self) -> Records | None:
        """The records to evaluate on: those given, or those of the run; `None` without any."""
        if self._records is not None:
            return self._records
        folder = find_run_data(self.run) if self.run else None
        return None if folder is None else open_records(folder)

    def score(
        self,
        texts: Iterable[str | bytes | np.ndarray],
        *,
        prefix: str | bytes | np.ndarray = "",
        mask_empty_memory: bool = True,
        carry_memory: bool = False,
        batch_size: int = SCORING_BATCH_SIZE,
        jit: str = "auto",
        dynamic: DynamicConfig | bool = False,
    ) -> list[TextScore]:
        r"""Scores all tokens of each text except the first, which has no context.

        The score of a text does not depend on the other texts. To score first tokens too, pass a
        prefix: with `prefix="\n"`, each text is read as the beginning of a line (if a line break is
        a symbol of the vocabulary). A warning reports unknown tokens.

        Args:
            texts: Texts, or their ids, (n,) integers.
            prefix: Text or ids to read before each text. It is encoded by itself and not scored.
            mask_empty_memory: Whether to hide memory entries that hold no token yet. The 2019
                release attends to them as zeros; see docs/scoring.md.
            carry_memory: Whether to read the texts as one, carrying the memory from each to the
                next. Then only the very first token is not scored, and the prefix is read once.
            batch_size: Maximum number of texts to read at once.
            jit: How much of the step XLA compiles, once for each shape: "whole", "chains", "none"
                or "auto"; see `txl_tf.models.compilation`.
            dynamic: Dynamic evaluation, for long texts: after each segment, the weights take a
                training step on it. Each text (with `carry_memory`, only the first) starts from the
                model's weights, which are not changed. The texts are read one at a time. `True`
                means the defaults of `DynamicConfig`.

        Returns:
            The score of each text, with the losses of its tokens.

        Raises:
            UserError: If a text contains a symbol that the vocabulary cannot encode, an id is out
                of range, or a prefix has no token in the vocabulary. With `dynamic`, also if the
                model is quantized, its `evaluation` has a temperature other than 1, the rule needs
                the run's training split and there is none, or the weights diverge.
        """
        if isinstance(texts, str | bytes):
            raise UserError("`texts` must be a list of texts. Received: one text")
        check_list("texts", texts)
        encoder = TextEncoder(self.vocabulary, self.config.n_token)
        chunks = (encoder.make_chunk(text, number) for number, text in enumerate(texts, 1))
        is_text = isinstance(prefix, str | bytes)
        prefix_ids = () if is_text and not prefix else encoder.encode(prefix)
        if is_text and prefix and not len(prefix_ids):
            raise UserError(f"`prefix` must have at least one token. Received: {prefix!r}")
        scorer = self._get_scorer(self._choose_dynamic(dynamic), batch_size, mask_empty_memory, jit)
        scores = scorer.score(
            [chunks] if carry_memory else ([chunk] for chunk in chunks),
            prefix=prefix_ids,
            vocabulary=self.vocabulary,
        )
        text_scores = [cast(TextScore, score) for _, score in scores]
        total = sum(text_scores, TextTotals(0.0, 0, n_unknown=0))
        if total.n_unknown and self.vocabulary is not None:
            warnings.warn(explain_unknown(total, self.vocabulary.unknown), stacklevel=2)
        return text_scores

    def evaluate(
        self,
        split: str = "test",
        *,
        data_dir: str | None = None,
        dynamic: DynamicConfig | bool = False,
    ) -> Score:
        """Scores a split of records with the run's evaluation config, like `txl evaluate`.

        Each lane (row of the batch) first reads the text before it without scoring it; see
        docs/evaluation.md.

        Args:
            split: The name of the split.
            data_dir: The folder of the records; `None` for those of the run.
            dynamic: Dynamic evaluation, in one lane: after each segment, the weights take a
                training step on it. The model is not changed. `True` means the defaults of
                `DynamicConfig`.

        Raises:
            UserError: If there are no records, or they do not fit the model. With `dynamic`, also
                if the model is quantized, its `evaluation` has a temperature other than 1, the rule
                needs a training split and the records have none, or the weights diverge.
        """
        records = self.records if data_dir is None else open_records(data_dir)
        if records is None:
            raise UserError("the model has no records of its own: pass `data_dir`, their folder")
        self._check_records(records, split)
        evaluation, config = self.evaluation, self._choose_dynamic(dynamic)
        if config is not None:
            evaluation = dataclasses.replace(evaluation, eval_batch_size=1)
        evaluator = self.make_evaluator(records, evaluation=evaluation, dynamic=config)
        return evaluator.score(records.split(split))

    def make_evaluator(
        self,
        records: Records | None = None,
        *,
        evaluation: EvalConfig | None = None,
        dynamic: DynamicConfig | None = None,
        jit: str = "auto",
    ) -> Evaluator:
        """Returns an evaluator of the model, for uses that `evaluate` does not cover.

        Args:
            records: The records, whose vocabulary determines the unit of the scores; `None` for the
                vocabulary of the model. A rule of dynamic evaluation may need their training split.
            evaluation: The lanes, segment length and span; `None` for those of the model.
            dynamic: How the weights learn in dynamic evaluation; `None` for static evaluation.
            jit: How much of the step XLA compiles; see `txl_tf.models.compilation`.

        Raises:
            UserError: If the records have another vocabulary than the model; with `dynamic`, as in
                `evaluate`.
        """
        evaluation, reader = evaluation or self.evaluation, None
        learning = self._choose_dynamic(dynamic)
        if records is not None:
            self._check_vocabulary(records)
        if learning is not None:
            reader = make_adapting_reader(self.model, evaluation, learning, records, jit=jit)
        vocabulary = self.vocabulary if records is None else records.vocabulary
        return Evaluator(self.model, evaluation, vocabulary=vocabulary, jit=jit, reader=reader)

    def generate(
        self,
        prompt: str | bytes | np.ndarray | Sequence[str | bytes | np.ndarray],
        *,
        max_new_tokens: int = 200,
        mask_empty_memory: bool = True,
        **options: Unpack[SamplingOptions],
    ) -> Any:
        """Continues one or more prompts of any lengths.

        Args:
            prompt: A text of at least one token, its ids (n,), or a list of texts and ids.
            max_new_tokens: Number of tokens to add to each prompt.
            mask_empty_memory: Whether to hide memory entries that hold no token yet. The 2019
                release attends to them.
            **options: `seed`, `temperature`, `top_k`, `top_p`, `repetition_penalty`, `sampler`,
                `banned` and `stops`; see `txl_tf.generation.sampling.SamplingOptions`.

        Returns:
            The text added to the prompt, or ids (n,) int32 if the prompt is ids. A list of these
            for a list of prompts.

        Raises:
            UserError: If a prompt is empty or contains a symbol that the vocabulary cannot encode,
                or if an argument is out of range.
        """
        is_list = isinstance(prompt, list | tuple) and not all(
            isinstance(item, int | np.integer) for item in prompt
        )
        prompts: Any = prompt if is_list else [prompt]
        session = self.start(prompts, mask_empty_memory=mask_empty_memory, **options)
        added = session.draw(max_new_tokens)
        return added if is_list else added[0]

    def stream(
        self,
        prompt: str,
        *,
        max_new_tokens: int = 200,
        mask_empty_memory: bool = True,
        **options: Unpack[SamplingOptions],
    ) -> Iterator[str]:
        """Returns an iterator that yields the text of `generate` while it is generated.

        Raises:
            UserError: See `generate`.
        """
        if not isinstance(prompt, str):
            raise UserError(f"`prompt` must be a text. Received: {type(prompt).__name__}")
        session = self.start(prompt, mask_empty_memory=mask_empty_memory, **options)
        return session.stream(max_new_tokens)

    def start(
        self,
        prompts: str | bytes | Sequence[str | bytes | np.ndarray],
        *,
        mask_empty_memory: bool = True,
        **options: Unpack[SamplingOptions],
    ) -> Session:
        """Reads prompts and returns a session, which keeps the memory and can be continued.

        Args:
            prompts: Texts of at least one token, or their ids.
            mask_empty_memory: See `generate`.
            **options: See `generate`.

        Raises:
            UserError: See `generate`.
        """
        check_transformer(self.config, "generation")
        generator = self._generators.get_or_make(
            (self.evaluation, mask_empty_memory),
            lambda: Generator(
                make_cached(self.model, self.evaluation, mask_empty_memory=mask_empty_memory)
            ),
        )
        generator.follow_weights()  # the model may have been trained since an earlier text
        return Session(generator, self.vocabulary, prompts, **options)

    def _check_records(self, records: Records, split: str) -> None:
        """Checks that a split has the vocabulary of the model, and what the evaluation needs."""
        self._check_vocabulary(records)
        check_records(records, self.config, self.evaluation, split)

    def _check_vocabulary(self, records: Records) -> None:
        if self.vocabulary is not None and records.vocabulary != self.vocabulary:
            raise UserError(
                f"`{records.data_dir}` has another vocabulary than the model. Make the records "
                "with --vocab_file RUN/vocabulary.json"
            )

    def _choose_dynamic(self, dynamic: DynamicConfig | bool | None) -> DynamicConfig | None:
        """Returns the settings of dynamic evaluation; `None` for static evaluation."""
        if not isinstance(dynamic, DynamicConfig | bool | None):
            raise UserError(f"`dynamic` must be a DynamicConfig or a bool. Received: {dynamic!r}")
        config = DynamicConfig() if dynamic is True else dynamic or None
        if config is None or not config.learning_rate:
            return None
        if get_kernel_dtype(self.model) != "float32":
            raise UserError("`dynamic` needs float32 weights: load the run without `precision`")
        return config

    def _get_scorer(
        self, dynamic: DynamicConfig | None, batch_size: int, mask_empty_memory: bool, jit: str
    ) -> TextScorer:
        """Returns the scorer for the settings, which keeps its compiled steps."""
        settings = (dynamic, batch_size, mask_empty_memory, jit)
        key: tuple[Any, ...] = (self.evaluation, *settings)
        if dynamic is not None and dynamic.has_statistics:
            key += (_hash_weights(self.model),)  # the scorer keeps statistics of their gradients
        if dynamic is not None and key not in self._scorers:
            # Each dynamic scorer has a copy of the weights, so only the last one is kept.
            for other in [other for other in self._scorers if other[1] is not None]:
                del self._scorers[other]
        return self._scorers.get_or_make(key, lambda: self._make_scorer(*settings))

    def _make_scorer(
        self, dynamic: DynamicConfig | None, batch_size: int, mask_empty_memory: bool, jit: str
    ) -> TextScorer:
        options: Any = {"mask_empty_memory": mask_empty_memory, "jit": jit}
        if dynamic is None:
            return Scorer(self.model, self.evaluation, batch_size=batch_size, **options)
        records = self.records if dynamic.has_statistics else None
        if records and "train" in records.splits:
            self._check_records(records, "train")
        reader = make_adapting_reader(self.model, self.evaluation, dynamic, records, **options)
        return TextScorer(reader, self.evaluation.tgt_len, batch_size=1)


def _hash_weights(model: SegmentModel) -> str:
    digest = hashlib.sha256()
    for weight in model.weights:
        digest.update(weight.numpy().tobytes())
    return digest.hexdigest()


def open_run(
    path: str | os.PathLike[str],
    *,
    checkpoint: str | int | None = None,
    use_ema: bool = True,
    precision: str = "float32",
    config: RunConfig | None = None,
    records: Records | None = None,
    split: str = "test",
) -> LanguageModel:
    """Opens a run with its records. The first four arguments are those of `LanguageModel.load`.

    Args:
        path: The run.
        checkpoint: The checkpoint.
        use_ema: Whether to use averaged weights.
        precision: The dtype of the kernels.
        config: The config to use, for example with another evaluation; `None` for the run's own.
        records: The records to evaluate on; `None` for those of the run, which are opened later.
        split: The split that `records` must have, and that must fit the model.

    Raises:
        UserError: If the run cannot be read with these arguments, or the records do not fit it.
    """
    if precision not in KERNEL_DTYPES:
        rule = ", ".join(map(repr, KERNEL_DTYPES))
        raise UserError(f"`precision` must be one of {rule}. Received: {precision!r}")
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"`path` must be the path of a run. Received: {path!r}")
    path = os.fspath(path)
    is_shared = is_hub_address(path) or find_pretrained(path) != path
    if is_shared and checkpoint is not None:
        raise UserError(f"`checkpoint` is for run folders. Received: {path}, {checkpoint}")
    folder = fetch_model(path) if is_hub_address(path) else find_pretrained(path)
    config = config or read_run_config(folder)
    if precision != "float32":
        check_transformer(config.model, "quantization")
    vocabulary = read_run_vocabulary(folder)
    if records is not None:
        if vocabulary is not None:  # an import may have none
            check_vocabulary(folder, records.vocabulary)
        check_records(records, config.model, config.evaluation, split)
        warn_of_other_split(folder, records, split)
    lm = LanguageModel(
        make_model(config.model),
        vocabulary,
        config.evaluation,
        dataset=config.dataset,
        training=config.training,
        run=folder,
        records=records,
    )
    lm.load_checkpoint(checkpoint, use_ema=use_ema)
    if precision != "float32":
        lm.quantize(precision)
    if is_shared:
        lm.run = None  # it is not the user's
    return lm


def load(
    path: str | os.PathLike[str],
    *,
    checkpoint: str | int | None = None,
    use_ema: bool = True,
    precision: str = "float32",
) -> LanguageModel:
    """Loads a run; see `LanguageModel.load`."""
    return LanguageModel.load(path, checkpoint=checkpoint, use_ema=use_ema, precision=precision)
