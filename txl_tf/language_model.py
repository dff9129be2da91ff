"""A trained model with its vocabulary, which scores and generates text."""

import dataclasses
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, cast

import numpy as np

from txl_tf.architecture import check_transformer, make_model
from txl_tf.cached_model import CachedModel
from txl_tf.config import (
    DEFAULT_TEMPERATURE,
    DEFAULT_TOP_K,
    KERNEL_DTYPES,
    SAVED_MODEL,
    AttentionSpan,
    EvalConfig,
    ModelConfig,
    TrainConfig,
)
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.data.records.reading import open_records
from txl_tf.data.temporary_folders import write_aside
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.experiments.text_attention import TextAttention, read_text_attention
from txl_tf.exports.exporting import EXPORT_BATCH_SIZE, export_saved_model
from txl_tf.exports.hub_folder import (
    fetch_model,
    is_hub_address,
    load_weights_file,
    push_model,
)
from txl_tf.exports.model_card import Card, find_records
from txl_tf.exports.step_export import export_step
from txl_tf.generation.generator import Generator
from txl_tf.generation.sampling import SamplingConfig
from txl_tf.generation.session import Session
from txl_tf.generation.text_encoder import TextEncoder
from txl_tf.quantization import get_kernel_dtype, quantize
from txl_tf.runs.checkpoint_files import find_checkpoint, read_step
from txl_tf.runs.checkpoint_reader import load_weights
from txl_tf.runs.checkpoint_writer import save_weights
from txl_tf.runs.folder import (
    RunConfig,
    make_run_folder,
    name_records,
    read_run_config,
    read_run_vocabulary,
)
from txl_tf.scoring.dynamic_evaluation import make_adapting_reader
from txl_tf.scoring.evaluator import Evaluator
from txl_tf.scoring.metrics import Score, describe_unknown
from txl_tf.scoring.scorer import SCORING_BATCH_SIZE, Scorer, TextScorer
from txl_tf.scoring.text_scores import TextScore, TextTotals
from txl_tf.segment_model import SegmentModel


class LanguageModel:
    """A language model that scores and continues texts; `txl_tf.load` loads one.

    All arguments except `records_dir` are also attributes.

    Args:
        model: The model.
        vocabulary: The vocabulary; `None` if only ids can be used.
        evaluation: The segment length and the attention span.
        records_dir: The folder of the records to evaluate on; `None` if there is none.
        dataset: The name of the data set that the model was trained on.
        training: The training config.
        step: The number of training steps; 0 if it is not known.
        run: The run folder that the model was loaded from; `None` if there is none.
    """

    def __init__(
        self,
        model: SegmentModel,
        vocabulary: Vocabulary | None,
        evaluation: EvalConfig,
        records_dir: str | None = None,
        *,
        dataset: str = "unknown",
        training: TrainConfig | None = None,
        step: int = 0,
        run: str | None = None,
    ):
        self.model = model
        self.vocabulary = vocabulary
        self.evaluation = evaluation
        self._records_dir = records_dir
        self.dataset = dataset
        self.training = training or TrainConfig()
        self.step = step
        self.run = run
        self._encoder = TextEncoder(vocabulary, model.config.n_token)
        self._generators: dict[tuple[EvalConfig, bool], Generator] = {}
        self._scorers: dict[tuple[Any, ...], TextScorer] = {}

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        checkpoint: str | int | None = None,
        use_ema: bool = True,
        precision: str = "float32",
    ) -> Self:
        """Loads a run.

        Args:
            path: The run folder, written by training or by an import; or a model on the Hugging
                Face Hub, "hf://user/model" or "hf://user/model@revision", which is downloaded.
            checkpoint: "newest"; "best", the one with the lowest loss in the evaluations during
                training; a step; a name in the run folder; or a path. `None` stands for the newest,
                and prints a line if an older one was better.
            use_ema: Whether to use the averaged weights if the checkpoint has any.
            precision: The dtype of the kernels: "float32", or one that `quantize` takes.

        Raises:
            UserError: If there is no run, it cannot be read, or there is no such precision.
        """
        if precision not in KERNEL_DTYPES:
            rule = ", ".join(map(repr, KERNEL_DTYPES))
            raise UserError(f"`precision` must be one of {rule}. Received: {precision!r}")
        folder = os.fspath(path)
        if is_hub_address(folder):
            return cls._load_shared(folder, checkpoint, precision)
        config = read_run_config(folder)
        if precision != "float32":
            check_transformer(config.model, "quantization")
        model = make_model(config.model)
        weights = find_checkpoint(folder, checkpoint)
        load_weights(model, weights, use_ema=use_ema)
        if precision != "float32":
            model = quantize(model, precision)
        return cls(
            model,
            read_run_vocabulary(folder),
            config.evaluation,
            name_records(folder),
            dataset=config.dataset,
            training=config.training,
            step=read_step(weights),
            run=folder,
        )

    @classmethod
    def _load_shared(cls, address: str, checkpoint: str | int | None, precision: str) -> Self:
        """Loads a model of the Hub."""
        if checkpoint is not None:
            raise UserError(f"`checkpoint` is for run folders. Received: {address}, {checkpoint}")
        folder = fetch_model(address)
        config = read_run_config(folder)
        model = make_model(config.model)
        step = load_weights_file(folder, model)
        vocabulary = read_run_vocabulary(folder)
        lm = cls(
            model,
            vocabulary,
            config.evaluation,
            dataset=config.dataset,
            training=config.training,
            step=step,
        )
        if precision != "float32":
            lm.quantize(precision)
        return lm

    def __repr__(self) -> str:
        return f"<LanguageModel: {self.describe()}>"

    def describe(self) -> str:
        """Returns the run, the model's size, its vocabulary and its span on one line."""
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
        the time, and exports smaller SavedModels, at a small loss: docs/generating.md has figures.
        It can no longer be saved as a run. Up to four texts at once round the inputs of products to
        bfloat16, more do not, so the same seed may give another text.

        Args:
            dtype: "int8", with a scale for each output; or "bfloat16", in which texts are also
                read.

        Raises:
            UserError: If there is no such dtype, or the model is quantized already.
        """
        check_transformer(self.config, "quantization")
        self.model = quantize(self.model, dtype)
        self._generators.clear()
        self._scorers.clear()

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes a run folder with only the weights, completely or not at all.

        The folder can be moved, and loaded with `load`.

        Args:
            folder: A folder on this machine, which must be new or empty.

        Raises:
            UserError: If the folder is not empty or cannot be written, or the model is quantized.
        """
        if get_kernel_dtype(self.model) != "float32":
            raise UserError("a quantized model cannot be saved as a run: save it before")
        with write_aside(os.fspath(folder)) as aside:
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
        card = Card(
            name,
            self._run_config,
            self.vocabulary,
            self.step,
            find_records(self.run, self.step) if self.run else [],
            license,
            language,
        )
        return push_model(
            self.model,
            card,
            private=private,
            token=token,
            revision=revision,
            message=message,
        )

    @property
    def _run_config(self) -> RunConfig:
        return RunConfig(self.dataset, self.config, self.training, self.evaluation)

    @property
    def config(self) -> ModelConfig:
        """The config of the model."""
        return self.model.config

    @property
    def span(self) -> AttentionSpan:
        """The attention span."""
        return self.evaluation.span

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
        r"""Scores texts: all tokens of each except the first, which has no context.

        The score of a text does not depend on the other texts. To score first tokens, too, give a
        prefix: with `prefix="\n"`, each text is read as the beginning of a line (if a line break is
        a symbol of the vocabulary). A warning reports unknown tokens.

        Args:
            texts: Texts, or their ids, (n,) integers.
            prefix: Text or ids to read before each text. It is encoded by itself and not scored.
            mask_empty_memory: Whether to hide memory entries that hold no token yet. The 2019
                release attends to them as zeros; see docs/scoring.md.
            carry_memory: Whether to read the texts as one, with memory from each to the next. All
                tokens except the very first are then scored, and the prefix is read only once.
            batch_size: Largest number of texts to read at once.
            jit: How much of the step XLA compiles, once for each shape: "whole", "chains", "none"
                or "auto"; see `txl_tf.compilation`.
            dynamic: Dynamic evaluation, for long texts: after each segment the weights make a step
                on it. Each text (with `carry_memory`, the first) begins with the weights of
                the model, which are not changed. `True` for the defaults of `DynamicConfig`. The
                texts are read one at a time.

        Returns:
            The score of each text, with the losses of its tokens.

        Raises:
            UserError: If a text contains a symbol that the vocabulary cannot encode, or an id is
                out of range; if the model is quantized and `dynamic` is given, or its rule needs
                the run's training split and there is none, or the weights diverge.
        """
        if isinstance(texts, str | bytes):
            raise UserError("`texts` must be a list of texts. Received: one text")
        if not isinstance(texts, Iterable):
            raise UserError(f"`texts` must be a list of texts. Received: {texts!r}")
        chunks = (self._encoder.make_chunk(text, number) for number, text in enumerate(texts, 1))
        scorer = self._get_scorer(self._choose_dynamic(dynamic), batch_size, mask_empty_memory, jit)
        scores = scorer.score(
            [chunks] if carry_memory else ([chunk] for chunk in chunks),
            prefix=self._encoder.encode(prefix) if len(prefix) else (),
            vocabulary=self.vocabulary,
        )
        text_scores = [cast(TextScore, score) for _, score in scores]
        total = sum(text_scores, TextTotals(0.0, 0, n_unknown=0))
        if total.n_unknown and self.vocabulary is not None:
            warnings.warn(describe_unknown(total, self.vocabulary.unknown), stacklevel=2)
        return text_scores

    def attention(
        self,
        text: str | bytes | np.ndarray,
        *,
        layers: int | Sequence[int] | None = None,
        heads: int | Sequence[int] | None = None,
        mask_empty_memory: bool = True,
    ) -> TextAttention:
        """Returns the attention of each token of a text to the tokens before it, in each head.

        The text is read in segments with memory, as `score` reads it, and the weights are those
        that the model uses there; see docs/attention-analysis.md.

        Args:
            text: A text of at least one token, or its ids, (n,) integers.
            layers: The layers, from 0; `None` for all.
            heads: The heads of each of these layers, from 0; `None` for all.
            mask_empty_memory: As in `score`. If false, the share of the weight on the empty memory
                is missing from the sums of the rows.

        Returns:
            The attention weights, and the four terms of the scores. Its arrays have n * n entries
            for each head.

        Raises:
            UserError: If the text is empty or cannot be encoded, a layer or head does not exist, or
                the arrays would take more than 2 GiB.
        """
        check_transformer(self.config, "an analysis of attention")
        cached = self._make_cached(mask_empty_memory)
        ids = self._encoder.encode(text)
        return read_text_attention(cached, ids, self.vocabulary, layers=layers, heads=heads)

    def generate(
        self,
        prompt: str | np.ndarray | Sequence[str | np.ndarray],
        *,
        max_new_tokens: int = 200,
        seed: int | Sequence[int] = 0,
        temperature: float = DEFAULT_TEMPERATURE,
        top_k: int | None = DEFAULT_TOP_K,
        top_p: float | None = None,
        repetition_penalty: float = 1.0,
        banned: str | Iterable[str] | None = None,
        stops: str | Iterable[str] = (),
        mask_empty_memory: bool = True,
        draft_len: int = 0,
    ) -> Any:
        """Continues one or more prompts of any lengths.

        Args:
            prompt: A text of at least one token, its ids (n,), or a list of texts and ids.
            max_new_tokens: Number of tokens to add to each prompt.
            seed: A seed for all prompts, or a list with one for each. A text depends only on its
                own seed, not on the other texts. Of a quantized model, more than four texts are
                computed in another way than fewer, and may differ: see docs/generating.md.
            temperature: See `start`, as for the following arguments.
            top_k: See `start`.
            top_p: See `start`.
            repetition_penalty: See `start`.
            banned: See `start`.
            stops: See `start`.
            mask_empty_memory: See `start`.
            draft_len: See `start`.

        Returns:
            The text added to the prompt, or ids (n,) int32 if the prompt is ids; a list for a list.

        Raises:
            UserError: If a prompt is empty or contains a symbol that the vocabulary cannot encode,
                or if an argument is out of range.
        """
        is_list = isinstance(prompt, (list, tuple)) and not all(
            isinstance(item, (int, np.integer)) for item in prompt
        )
        prompts: Any = prompt if is_list else [prompt]
        session = self.start(
            prompts,
            seed=seed,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            banned=banned,
            stops=stops,
            mask_empty_memory=mask_empty_memory,
            draft_len=draft_len,
        )
        for _ in session.draw_pieces(max_new_tokens):
            pass
        return session.added if is_list else session.added[0]

    def stream(
        self,
        prompt: str,
        *,
        max_new_tokens: int = 200,
        seed: int = 0,
        temperature: float = DEFAULT_TEMPERATURE,
        top_k: int | None = DEFAULT_TOP_K,
        top_p: float | None = None,
        repetition_penalty: float = 1.0,
        banned: str | Iterable[str] | None = None,
        stops: str | Iterable[str] = (),
        mask_empty_memory: bool = True,
        draft_len: int = 0,
    ) -> Iterator[str]:
        """Returns an iterator over the text of `generate`, which yields it while it is generated.

        Raises:
            UserError: See `generate`.
        """
        if not isinstance(prompt, str):
            raise UserError(f"`prompt` must be a text. Received: {type(prompt).__name__}")
        session = self.start(
            [prompt],
            seed=seed,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            banned=banned,
            stops=stops,
            mask_empty_memory=mask_empty_memory,
            draft_len=draft_len,
        )
        return session.stream(max_new_tokens)

    def start(
        self,
        prompts: str | Sequence[str | np.ndarray],
        *,
        seed: int | Sequence[int] = 0,
        temperature: float = DEFAULT_TEMPERATURE,
        top_k: int | None = DEFAULT_TOP_K,
        top_p: float | None = None,
        repetition_penalty: float = 1.0,
        banned: str | Iterable[str] | None = None,
        stops: str | Iterable[str] = (),
        mask_empty_memory: bool = True,
        draft_len: int = 0,
    ) -> Session:
        """Reads prompts and returns a session, which keeps the memory and can be continued.

        Args:
            prompts: Texts of at least one token, or their ids.
            seed: A seed for all prompts, or a list with one for each.
            temperature: Divisor of the log-probabilities; 0 always takes the most likely token
                (greedy decoding).
            top_k: Draw from this many of the most likely tokens; `None` for all.
            top_p: Nucleus sampling: draw from the most likely tokens that together have this
                probability; `None` for all.
            repetition_penalty: Factor of the log-probabilities of tokens that the text already
                contains; 1 for none.
            banned: Symbols, or texts of one token, that are never drawn; a `str` is a single one.
                `None` for the unknown symbol, if there is one.
            stops: Symbols, or texts of any length, that end a text; a `str` is a single stop. Only
                the added text is searched. The text keeps the stop as its end: a subword is cut
                after it, a word is not.
            mask_empty_memory: Whether to hide memory entries that hold no token yet. The 2019
                release attends to them.
            draft_len: Number of tokens to guess from the text itself and to verify at once (prompt
                lookup), for a single prompt; 0 for none. The text stays the same, up to rounding,
                and is drawn faster if it repeats itself; see docs/generating.md.

        Raises:
            UserError: See `generate`.
        """
        check_transformer(self.config, "generation")
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        ids = [self._encoder.encode(prompt) for prompt in prompts]
        seeds = [int(seed)] * len(ids) if isinstance(seed, int | np.integer) else list(seed)
        if len(seeds) != len(ids):
            raise UserError(f"`seed` must be one seed, or {len(ids)}. Received: {len(seeds)}")
        unknown = self.vocabulary.unknown if self.vocabulary else None
        if banned is None:
            banned = [unknown] if unknown else []
        banned = [banned] if isinstance(banned, str) else banned
        found_stops = self._encoder.make_stops(stops)
        sampling = SamplingConfig(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            banned=self._encoder.find_ids(banned),
            stops=found_stops.ids if found_stops else (),
        )
        return Session(
            self._get_generator(mask_empty_memory),
            ids,
            sampling,
            seeds,
            vocabularies=[self.vocabulary if isinstance(p, str) else None for p in prompts],
            stops=found_stops,
            draft_len=draft_len,
        )

    def export(
        self,
        folder: str | os.PathLike[str],
        *,
        format: str = SAVED_MODEL,  # noqa: A002  as the flag
        precision: str | None = None,
        batch_size: int | None = None,
        tgt_len: int | None = None,
        mask_empty_memory: bool = True,
    ) -> tuple[str, ...]:
        """Writes the model for other processes: a SavedModel, or a file of LiteRT or ONNX.

        A SavedModel scores and generates in any process with TensorFlow. A file has one function,
        which reads tokens and returns the log-probabilities of the next ones. Both score like
        `score`, with the softmax temperature of the evaluation config.

        Args:
            folder: A folder on this machine, which must be new or empty.
            format: "saved_model", "litert" or "onnx".
            precision: The dtype in which a file stores matrices: "float32" (the default), "float16"
                or "int8". A SavedModel has that of the model; see `quantize`.
            batch_size: Number of texts to read at once; more texts need more memory. `None` for 8
                in a SavedModel, 1 in a file.
            tgt_len: Segment length. `None` for that of the evaluation config, in a file for 1.
            mask_empty_memory: Whether to hide memory entries that hold no token yet. The 2019
                release attends to them as zeros.

        Returns:
            The names of the signatures, described in docs/serving.md. Without a vocabulary they
            take only ids. Of a file, the names of what the folder holds: see docs/off-python.md.

        Raises:
            UserError: If an argument is out of its range or has no effect, the format cannot hold
                the model, or the folder is not empty or cannot be written. Nothing is left behind.
        """
        check_transformer(self.config, "an export")
        is_saved_model, origin = format == SAVED_MODEL, {"dataset": self.dataset, "step": self.step}
        if is_saved_model and precision is not None:
            raise UserError(
                "`precision` needs format=litert or onnx: a SavedModel has that of the model, "
                f"which `quantize` changes. Received: precision={precision!r}"
            )
        if tgt_len is None:
            tgt_len = self.evaluation.tgt_len if is_saved_model else 1
        evaluation = dataclasses.replace(self.evaluation, tgt_len=tgt_len)
        cached = self._make_cached(mask_empty_memory, evaluation)
        if is_saved_model:
            return export_saved_model(
                os.fspath(folder),
                cached,
                self.vocabulary,
                batch_size=EXPORT_BATCH_SIZE if batch_size is None else batch_size,
                origin=origin,
            )
        return export_step(
            os.fspath(folder),
            cached,
            self.vocabulary,
            file_format=format,
            precision=precision or "float32",
            batch_size=1 if batch_size is None else batch_size,
            origin=origin,
        )

    def evaluate(
        self,
        split: str = "test",
        *,
        data_dir: str | None = None,
        dynamic: DynamicConfig | bool = False,
    ) -> Score:
        """Scores a split of records with the run's evaluation config, like `txl_tf.evaluate`.

        Each lane first reads the text before it without scoring it; see docs/evaluation.md.

        Args:
            split: The name of the split.
            data_dir: The folder of the records; `None` for those of the run.
            dynamic: Dynamic evaluation, in one lane: after each segment the weights make a step on
                it. The model is not changed. `True` for the defaults of `DynamicConfig`.

        Raises:
            UserError: If there are no records, or they have another vocabulary; if the model is
                quantized and `dynamic` is given, or its rule needs a training split and the
                records have none.
        """
        records = open_records(data_dir or self._records_dir or "")
        if self.vocabulary is not None and records.vocabulary != self.vocabulary:
            raise UserError(f"`{records.data_dir}` has another vocabulary than the model")
        evaluation, reader = self.evaluation, None
        config = self._choose_dynamic(dynamic)
        if config is not None:
            evaluation = dataclasses.replace(evaluation, eval_batch_size=1)
            reader = make_adapting_reader(self.model, evaluation, config, records)
        evaluator = Evaluator(
            self.model, evaluation, vocabulary=records.vocabulary, jit="auto", reader=reader
        )
        return evaluator.score(records.split(split))

    def _choose_dynamic(self, dynamic: DynamicConfig | bool) -> DynamicConfig | None:
        """Returns the settings of dynamic evaluation; `None` for a static one."""
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
        key = (self.evaluation, dynamic, batch_size, mask_empty_memory, jit)
        if key in self._scorers:
            return self._scorers[key]
        if dynamic is None:
            self._scorers[key] = Scorer(
                self.model,
                self.evaluation,
                batch_size=batch_size,
                mask_empty_memory=mask_empty_memory,
                jit=jit,
            )
            return self._scorers[key]
        records = open_records(self._records_dir or "") if dynamic.has_statistics else None
        reader = make_adapting_reader(
            self.model,
            self.evaluation,
            dynamic,
            records,
            mask_empty_memory=mask_empty_memory,
            jit=jit,
        )
        # Each has a copy of the weights: only the last one is held.
        self._scorers = {key: self._scorers[key] for key in self._scorers if key[1] is None}
        self._scorers[key] = TextScorer(reader, self.evaluation.tgt_len, batch_size=1)
        return self._scorers[key]

    def _get_generator(self, mask_empty_memory: bool) -> Generator:
        key = (self.evaluation, mask_empty_memory)
        if key not in self._generators:
            self._generators[key] = Generator(self._make_cached(mask_empty_memory))
        return self._generators[key]

    def _make_cached(
        self, mask_empty_memory: bool, evaluation: EvalConfig | None = None
    ) -> CachedModel:
        evaluation = evaluation or self.evaluation
        return CachedModel(
            self.model,
            evaluation.span,
            evaluation.tgt_len,
            mask_empty_memory=mask_empty_memory,
            temperature=evaluation.temperature,
        )


def load(
    path: str | os.PathLike[str],
    *,
    checkpoint: str | int | None = None,
    use_ema: bool = True,
    precision: str = "float32",
) -> LanguageModel:
    """Loads a run; see `LanguageModel.load`."""
    return LanguageModel.load(path, checkpoint=checkpoint, use_ema=use_ema, precision=precision)
