"""A trained model with its vocabulary: text in, scores or text out."""

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, cast

import numpy as np

from txl_tf.cached_model import CachedModel
from txl_tf.config import AttentionSpan, EvalConfig, ModelConfig, TrainConfig
from txl_tf.data.reading import open_records
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.score import Score, describe_unknown
from txl_tf.inference.export import BATCH_SIZE as EXPORT_BATCH_SIZE
from txl_tf.inference.export import export_saved_model
from txl_tf.inference.generation import Generator
from txl_tf.inference.sampling import SamplingConfig
from txl_tf.inference.scoring import BATCH_SIZE, Scorer
from txl_tf.inference.session import Session
from txl_tf.inference.text_reader import TextReader
from txl_tf.inference.text_scores import TextScore, score_texts, sum_scores
from txl_tf.model import TransformerXL
from txl_tf.runs.checkpoint_files import find_checkpoint, read_step
from txl_tf.runs.checkpoint_reader import load_weights
from txl_tf.runs.checkpoint_writer import save_weights
from txl_tf.runs.data_place import name_records
from txl_tf.runs.files import write_aside
from txl_tf.runs.folder import (
    RunConfig,
    make_run_folder,
    read_run_config,
    read_run_vocabulary,
)


class LanguageModel:
    """A model that scores and goes on with texts; `txl_tf.load` makes it.

    Args:
        model: the weights.
        vocabulary: what turns texts into ids; `None`: then only ids can be used.
        evaluation: segment and span.
        records_dir: folder of the records to evaluate on; `None` for none.
        dataset: name of the data set that the model was trained on.
        training: how it was trained.
        step: how many steps made it; 0 where that is not known.
        run: the run folder that it was loaded from; `None` for none.

    Attributes:
        model: as above.
        vocabulary: as above.
        evaluation: as above.
        dataset: as above.
        training: as above.
        step: as above.
        run: as above.
    """

    def __init__(
        self,
        model: TransformerXL,
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
        self._reader = TextReader(vocabulary, model.config.n_token)
        self._generators: dict[tuple[EvalConfig, bool], Generator] = {}
        self._scorers: dict[tuple[EvalConfig, int, bool, bool], Scorer] = {}

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        checkpoint: str | None = None,
        use_ema: bool = True,
    ) -> Self:
        """Loads a run.

        Args:
            path: a run folder, of training or of an import.
            checkpoint: path of the checkpoint; `None` for the newest.
            use_ema: take the EMA weights where the checkpoint has any.

        Returns:
            The model.

        Raises:
            UserError: there is no run, or it cannot be read.
        """
        folder = os.fspath(path)
        config = read_run_config(folder)
        model = TransformerXL(config.model)
        weights = checkpoint or find_checkpoint(folder)
        load_weights(model, weights, use_ema=use_ema)
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

    def __repr__(self) -> str:
        config, span, vocabulary = self.config, self.span, self.vocabulary
        parts = [
            *([f"run {self.run!r}"] if self.run is not None else []),
            f"step {self.step:,}",
            f"{config.count_parameters():,} parameters",
            f"{config.n_layer} layers",
            f"vocabulary of {len(vocabulary):,} {vocabulary.level}s"
            if vocabulary
            else f"{config.n_token:,} ids without vocabulary",
            f"segments of {self.evaluation.tgt_len:,}",
            f"memory of {span.mem_len:,}",
            *(["same_length"] if span.same_length else []),
            *([f"clamp_len {span.clamp_len:,}"] if span.clamp_len > 0 else []),
        ]
        return f"<LanguageModel: {', '.join(parts)}>"

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes a run folder with the weights alone, which can be moved and `load`ed anywhere.

        Args:
            folder: of this machine, new or empty.

        Raises:
            UserError: the folder holds something, or cannot be written; nothing of it stays.
        """
        config = RunConfig(self.dataset, self.config, self.training, self.evaluation)
        with write_aside(os.fspath(folder)) as aside:
            make_run_folder(aside, config, self.vocabulary)
            save_weights(aside, self.model, step=self.step)

    @property
    def config(self) -> ModelConfig:
        """The model's config."""
        return self.model.config

    @property
    def span(self) -> AttentionSpan:
        """How far the model looks back."""
        return self.evaluation.span

    def score(
        self,
        texts: Iterable[str | bytes | np.ndarray],
        *,
        prefix: str | bytes | np.ndarray = "",
        mask_empty_memory: bool = True,
        carry_memory: bool = False,
        batch_size: int = BATCH_SIZE,
        jit_compile: bool = True,
    ) -> list[TextScore]:
        r"""Scores texts, each from an empty memory on: all tokens but the first.

        A text's score depends on the text alone, not on the others. That of the first token needs
        something before it: with `prefix="\n"` each text is read as the beginning of a line, and
        all its tokens are scored (where a line break is a symbol of the vocabulary).

        Args:
            texts: each a text, or its ids (n,) of integers.
            prefix: what each text is read after; it is encoded by itself, and not scored.
            mask_empty_memory: hide places of the memory that nothing was read into; if not, they
                are zeros that are attended to, as in the 2019 release. See docs/scoring.md.
            carry_memory: read each text after the one before, with its memory; all tokens but the
                very first are then scored. The prefix comes before the first text alone.
            batch_size: the most texts to read at once.
            jit_compile: whether XLA compiles the step, once for each shape.

        Returns:
            A score for each: nats per token, their sum, bits per token, bpc (bytes and characters
            alone), perplexity, bits per byte, word perplexity, count and share of unknown tokens.
            A warning tells if any token is unknown; that text has no bits per byte.

        Raises:
            UserError: a text holds a symbol that the vocabulary does not know, or an id is out of
                range.
        """
        if isinstance(texts, str | bytes):
            raise UserError("`texts` must be a list of texts. Received: one text")
        parts = (self._reader.make_part(text, number) for number, text in enumerate(texts, 1))
        scores = score_texts(
            self._make_scorer(batch_size, mask_empty_memory, jit_compile),
            [parts] if carry_memory else ([part] for part in parts),
            prefix=self._reader.encode(prefix) if len(prefix) else (),
            vocabulary=self.vocabulary,
        )
        found = [cast(TextScore, score) for _, score in scores]
        total = sum_scores(found)
        if total.n_unknown and self.vocabulary is not None:
            warnings.warn(describe_unknown(total, self.vocabulary.unknown), stacklevel=2)
        return found

    def generate(
        self,
        prompt: str | np.ndarray | Sequence[str | np.ndarray],
        *,
        max_new_tokens: int = 200,
        seed: int | Sequence[int] = 0,
        **choice: Any,
    ) -> Any:
        """Goes on with a text, or with several of any lengths.

        Args:
            prompt: a text, of one token or more; its ids (n,); or a list of such.
            max_new_tokens: how many tokens to add to each.
            seed: the same seed, the same text, whatever is beside it; or one for each prompt.
            **choice: `temperature`, `top_k`, `top_p`, `repetition_penalty`, `banned`, `stops`,
                `mask_empty_memory`, as in `start`.

        Returns:
            What was added to the prompt: a text, or ids int32 if the prompt is ids. A list for a
            list.

        Raises:
            UserError: a prompt is empty or holds an unknown symbol, or an argument is out of its
                range.
        """
        is_list = isinstance(prompt, (list, tuple)) and not all(
            isinstance(item, (int, np.integer)) for item in prompt
        )
        prompts: Any = prompt if is_list else [prompt]
        session = self.start(prompts, seed=seed, **choice)
        session.draw(max_new_tokens)
        return session.added if is_list else session.added[0]

    def stream(
        self,
        prompt: str,
        *,
        max_new_tokens: int = 200,
        seed: int = 0,
        **choice: Any,
    ) -> Iterator[str]:
        """Reads a text, and returns an iterator of what `generate` would add, as it comes.

        Raises:
            UserError: as `generate`.
        """
        if not isinstance(prompt, str):
            raise UserError(f"`prompt` must be a text. Received: {type(prompt).__name__}")
        return self.start([prompt], seed=seed, **choice).stream(max_new_tokens)

    def start(
        self,
        prompts: str | Sequence[str | np.ndarray],
        *,
        seed: int | Sequence[int] = 0,
        banned: str | Iterable[str] | None = None,
        stops: str | Iterable[str] = (),
        mask_empty_memory: bool = True,
        **choice: Any,
    ) -> Session:
        """Reads prompts; the session keeps the memory, and draws as often as wanted.

        Args:
            prompts: texts, of one token or more each, or their ids.
            seed: of all texts, or one for each.
            banned: symbols, or texts of one token, that are never drawn; `None` for the unknown
                symbol, if there is any. One `str` is one of them.
            stops: symbols, or texts of any length, that end a text; it keeps the stop as its end.
                They count in what is added, not in the prompt. A subword is cut after the stop, a
                word is not. One `str` is one stop.
            mask_empty_memory: whether places of the memory that hold nothing yet are hidden; the
                release attends to them.
            **choice: `temperature` (1), `top_k`, `top_p` (all tokens), `repetition_penalty` (1), as
                in `txl_tf.inference.sampling.SamplingConfig`.

        Raises:
            UserError: as `generate`.
        """
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        ids = [self._reader.encode(prompt) for prompt in prompts]
        seeds = [int(seed)] * len(ids) if isinstance(seed, int | np.integer) else list(seed)
        if len(seeds) != len(ids):
            raise UserError(f"`seed` must be one, or {len(ids)}. Received: {len(seeds)}")
        unknown = self.vocabulary.unknown if self.vocabulary else None
        if banned is None:
            banned = [unknown] if unknown else []
        banned = [banned] if isinstance(banned, str) else banned
        endings = self._reader.make_stops(stops)
        settings = SamplingConfig(
            banned=self._reader.find_ids(banned), stops=endings.ids if endings else (), **choice
        )
        texts = self._get_generator(mask_empty_memory).start(ids, settings, seeds)
        vocabularies = [self.vocabulary if isinstance(p, str) else None for p in prompts]
        return Session(texts, ids, vocabularies, endings)

    def export(
        self,
        folder: str | os.PathLike[str],
        *,
        batch_size: int = EXPORT_BATCH_SIZE,
        mask_empty_memory: bool = True,
    ) -> tuple[str, ...]:
        """Writes a SavedModel, which a process with tensorflow alone scores and generates with.

        Args:
            folder: of this machine, new or empty.
            batch_size: how many texts are read at once; more take more memory.
            mask_empty_memory: whether a text sees nothing before its first token. The 2019
                release has it see zeros.

        Returns:
            The names of its signatures, which docs/serving.md tells; without a vocabulary those
            that take ids alone.

        Raises:
            UserError: `batch_size` is not positive, the folder holds something, or it cannot be
                written; nothing of it stays.
        """
        return export_saved_model(
            os.fspath(folder),
            self._make_cached(mask_empty_memory),
            self.vocabulary,
            batch_size=batch_size,
            origin={"dataset": self.dataset, "step": self.step},
        )

    def evaluate(self, split: str = "test", *, data_dir: str | None = None) -> Score:
        """Scores a split of records as the run's config says, and as `txl_tf.evaluate` counts.

        Each lane is first read the text before it, of which nothing counts: docs/evaluation.md.

        Args:
            split: the split.
            data_dir: folder of the records; `None` for those of the run.

        Raises:
            UserError: there are no records, or they have another vocabulary.
        """
        records = open_records(data_dir or self._records_dir or "")
        if self.vocabulary is not None and records.vocabulary != self.vocabulary:
            raise UserError(f"`{records.data_dir}` has another vocabulary than the model")
        evaluator = Evaluator(self.model, self.evaluation, vocabulary=records.vocabulary)
        return evaluator.score(records.split(split))

    def _make_scorer(self, batch_size: int, mask_empty_memory: bool, jit_compile: bool) -> Scorer:
        """Returns a scorer; one that was made before has its compiled steps."""
        key = (self.evaluation, batch_size, mask_empty_memory, jit_compile)
        if key not in self._scorers:
            self._scorers[key] = Scorer(
                self.model,
                self.span,
                self.evaluation.tgt_len,
                batch_size=batch_size,
                mask_empty_memory=mask_empty_memory,
                jit_compile=jit_compile,
            )
        return self._scorers[key]

    def _get_generator(self, mask_empty_memory: bool) -> Generator:
        key = (self.evaluation, mask_empty_memory)
        if key not in self._generators:
            self._generators[key] = Generator(self._make_cached(mask_empty_memory))
        return self._generators[key]

    def _make_cached(self, mask_empty_memory: bool) -> CachedModel:
        return CachedModel(
            self.model, self.span, self.evaluation.tgt_len, mask_empty_memory=mask_empty_memory
        )


def load(
    path: str | os.PathLike[str], *, checkpoint: str | None = None, use_ema: bool = True
) -> LanguageModel:
    """Loads a run: as `LanguageModel.load`."""
    return LanguageModel.load(path, checkpoint=checkpoint, use_ema=use_ema)
