"""A trained model with its vocabulary: text in, scores or text out."""

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np

from txl_tf import presets
from txl_tf.config import AttentionSpan, EvalConfig, ModelConfig
from txl_tf.data.reading import open_records
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.inference.cached_model import CachedModel
from txl_tf.inference.generation import Choice, Generator
from txl_tf.inference.scoring import Scorer, TextScore
from txl_tf.inference.session import Session
from txl_tf.model import TransformerXL
from txl_tf.training.checkpoint_files import find_checkpoint
from txl_tf.training.checkpoint_weights import load_weights
from txl_tf.training.evaluator import Evaluator, Score
from txl_tf.training.run_folder import (
    RECORDS_NAME,
    has_run,
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

    Attributes:
        model: as above.
        vocabulary: as above.
        evaluation: as above.
    """

    def __init__(
        self,
        model: TransformerXL,
        vocabulary: Vocabulary | None,
        evaluation: EvalConfig,
        records_dir: str | None = None,
    ):
        self.model = model
        self.vocabulary = vocabulary
        self.evaluation = evaluation
        self._records_dir = records_dir

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, checkpoint: str | None = None) -> Self:
        """Loads a run.

        Args:
            path: a run folder, of training or of an import.
            checkpoint: path of the checkpoint; `None` for the newest.

        Returns:
            The model with the averages of its weights, where the checkpoint has any.

        Raises:
            UserError: there is no run, or it cannot be read.
        """
        folder = os.fspath(path)
        if not has_run(folder):
            raise UserError(_explain_no_run(folder))
        config = read_run_config(folder)
        model = TransformerXL(config.model)
        load_weights(model, checkpoint or find_checkpoint(folder))
        records_dir = os.path.join(folder, RECORDS_NAME)
        return cls(model, read_run_vocabulary(folder), config.evaluation, records_dir)

    @property
    def config(self) -> ModelConfig:
        """The model's config."""
        return self.model.config

    @property
    def span(self) -> AttentionSpan:
        """How far the model looks back."""
        return self.evaluation.span

    def score(self, texts: Iterable[str | np.ndarray]) -> list[TextScore]:
        """Scores texts, each from an empty memory on: all tokens but the first.

        Args:
            texts: each a text, or its ids (n,) of integers.

        Returns:
            A score for each: nats per token, their sum, bpc, perplexity.

        Raises:
            UserError: a text holds a symbol that the vocabulary does not know, or an id is out of
                range.
        """
        if isinstance(texts, str):
            raise UserError("`texts` must be a list of texts. Received: one text")
        return [self._scorer.score(self._encode(text)) for text in texts]

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
            **choice: `temperature`, `top_k`, `top_p`, `repetition_penalty`, `banned`, `stops`, as
                in `start`.

        Returns:
            What was added to the prompt: a text, or ids int32 if the prompt is ids. A list for a
            list.

        Raises:
            UserError: a prompt is empty or holds an unknown symbol, or an argument is out of its
                range.
        """
        if max_new_tokens < 0:
            raise UserError(
                f"`max_new_tokens` must not be negative. Received: max_new_tokens={max_new_tokens}"
            )
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
        """Yields what `generate` would return, in pieces as they come."""
        session, n_shown = self.start([prompt], seed=seed, **choice), 0
        for _ in session.draw_pieces(max_new_tokens):
            text = str(session.added[0])
            # The end may still change: bytes of one character, or the space before a word.
            yield text[n_shown : len(text) - 1]
            n_shown = max(n_shown, len(text) - 1)
        yield str(session.added[0])[n_shown:]

    def start(
        self,
        prompts: str | Sequence[str | np.ndarray],
        *,
        seed: int | Sequence[int] = 0,
        banned: Iterable[str] | None = None,
        stops: Iterable[str] = (),
        **choice: Any,
    ) -> Session:
        """Reads prompts; what is returned keeps the memory, and goes on as often as wanted.

        Args:
            prompts: texts, of one token or more each, or their ids.
            seed: of all texts, or one for each.
            banned: symbols that are never drawn; `None` for the unknown one, if there is any.
            stops: symbols that end a text.
            **choice: `temperature` (1), `top_k`, `top_p` (all tokens), `repetition_penalty` (1), as
                in `txl_tf.inference.generation.Choice`.

        Raises:
            UserError: as `generate`.
        """
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        ids = [self._encode(prompt) for prompt in prompts]
        seeds = [seed] * len(ids) if isinstance(seed, int) else list(seed)
        if len(seeds) != len(ids):
            raise UserError(f"`seed` must be one, or {len(ids)}. Received: {len(seeds)}")
        unknown = self.vocabulary.unknown if self.vocabulary else None
        if banned is None:
            banned = [unknown] if unknown else []
        settings = Choice(banned=self._find_ids(banned), stops=self._find_ids(stops), **choice)
        texts = self._generator.start(ids, settings, seeds)
        vocabularies = [self.vocabulary if isinstance(p, str) else None for p in prompts]
        return Session(texts, ids, vocabularies)

    def evaluate(self, split: str = "test", *, data_dir: str | None = None) -> Score:
        """Scores a split of records as the run's config says.

        Args:
            split: the split.
            data_dir: folder of the records; `None` for those of the run.

        Raises:
            UserError: there are no records, or they have another vocabulary.
        """
        records = open_records(data_dir or self._records_dir or "")
        if self.vocabulary is not None and records.vocabulary != self.vocabulary:
            raise UserError(f"`{records.data_dir}` has another vocabulary than the model")
        return Evaluator(self.model, self.evaluation).score(records.split(split))

    @cached_property
    def _scorer(self) -> Scorer:
        return Scorer(self.model, self.span, self.evaluation.tgt_len)

    @cached_property
    def _generator(self) -> Generator:
        return Generator(CachedModel(self.model, self.span), self.evaluation.tgt_len)

    def _find_ids(self, symbols: Iterable[str]) -> tuple[int, ...]:
        """Returns the ids of symbols.

        Raises:
            UserError: the vocabulary does not hold one.
        """
        ids = []
        for symbol in symbols:
            known = self._get_vocabulary().symbols
            if symbol not in known:
                raise UserError(f"{symbol!r} is no symbol of the vocabulary")
            ids.append(known.index(symbol))
        return tuple(ids)

    def _get_vocabulary(self) -> Vocabulary:
        if self.vocabulary is None:
            raise UserError("the run has no vocabulary: pass ids, not text")
        return self.vocabulary

    def _encode(self, text: str | np.ndarray) -> np.ndarray:
        """Returns the ids of a text, (n,) int32."""
        if isinstance(text, str):
            return self._get_vocabulary().encode(text)
        ids = np.asarray(text)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise UserError(
                "a text must be a `str`, or ids in a row. "
                f"Received: shape={ids.shape}, dtype={ids.dtype}"
            )
        wrong = np.flatnonzero((ids < 0) | (ids >= self.config.n_token))
        if wrong.size:
            raise UserError(
                f"ids must be at least 0 and below {self.config.n_token}. "
                f"Received: id {ids[wrong[0]]} at offset {wrong[0]}"
            )
        return ids.astype(np.int32)


def load(path: str | os.PathLike[str], *, checkpoint: str | None = None) -> LanguageModel:
    """Loads a run: as `LanguageModel.load`."""
    return LanguageModel.load(path, checkpoint=checkpoint)


def _explain_no_run(folder: str) -> str:
    """Returns what to do about a path that is no run folder."""
    message = f"`{folder}` holds no run: config.json is missing"
    if folder in presets.names():
        return f"{message}. {folder!r} is a recipe: train it, or import its weights"
    if os.path.isdir(folder):
        found = os.listdir(folder)
        is_foreign = {"model", "checkpoint", "model.safetensors", "pytorch_model.bin"} & set(found)
        if is_foreign or any(name.endswith(".index") for name in found):
            return (
                f"{message}. If others trained it: "
                f"python -m txl_tf.import_release --source {folder} --out RUN"
            )
    return message
