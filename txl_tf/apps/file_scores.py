"""The scores of the texts in files, with a run or a SavedModel."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from txl_tf.config import EvalConfig
from txl_tf.data.text.documents import DocumentFinder
from txl_tf.data.text.file_ranges import resume_documents
from txl_tf.data.text.text_files import EncodingErrors, TextFile, TextSource
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.data.text.wikitext import check_wikitext, tokenize_wikitext_bytes
from txl_tf.errors import UserError
from txl_tf.exports.saved_model_scorer import SavedModelScorer, is_saved_model
from txl_tf.language_model import LanguageModel, load
from txl_tf.scoring.scorer import SCORING_BATCH_SIZE, Scorer, TextScorer
from txl_tf.scoring.text_chunks import TextChunk, TextName, read_file, split_texts
from txl_tf.scoring.text_scores import TextTotals

Watch = Callable[[Iterable[TextChunk]], Iterator[TextChunk]]


@dataclass(frozen=True)
class ScoringSettings:
    r"""How files are scored.

    Args:
        run: The folder of a run or a SavedModel.
        checkpoint: As in `load`.
        precision: As in `load`.
        evaluation: The segments, the span and the temperature; `None` for those of the run.
        mask_empty_memory: As in `Scorer`.
        jit: As in `Scorer`.
        batch_size: As in `Scorer`.
        by: What receives a score: "line", "document" or "file".
        documents: The rule for where documents begin.
        separator: The line after which a document begins, instead of the rule.
        context: Within what memory is carried: "text" or "file".
        carry_memory: Whether memory is carried through all files.
        prefix: Text that is read before each context, with \n for a line break.
        keep_tokens: As in `TextScorer.score`.
        encoding_errors: As in `TextSource`.
        tokenize_wikitext: Whether the texts are tokenized as WikiText was.
    """

    run: str
    checkpoint: str | None = None
    precision: str = "float32"
    evaluation: EvalConfig | None = None
    mask_empty_memory: bool = True
    jit: str = "auto"
    batch_size: int = SCORING_BATCH_SIZE
    by: str = "file"
    documents: str = "blank_line"
    separator: str | None = None
    context: str = "text"
    carry_memory: bool = False
    prefix: str = ""
    keep_tokens: bool = False
    encoding_errors: EncodingErrors = "strict"
    tokenize_wikitext: bool = False

    @property
    def needs_whole_files(self) -> bool:
        """Whether memory is carried through each file."""
        return self.context == "file" or self.by == "file"

    def make_finder(self) -> DocumentFinder | None:
        """Returns the finder of texts in a file; `None` if each file is one text."""
        if self.by == "file":
            return None
        if self.by == "line":
            return DocumentFinder("line")
        if self.separator is not None:
            return DocumentFinder("separator", self.separator)
        return DocumentFinder(self.documents)


@dataclass(frozen=True)
class ScoredFile:
    """A file to score, or a range of it that begins and ends where a text begins.

    Args:
        file: The file.
        n_before: The number of texts in it that begin before the range.
    """

    file: TextFile
    n_before: int = field(default=0)


def load_model(settings: ScoringSettings) -> LanguageModel | SavedModelScorer:
    """Loads the model, which any number of `FileScorer` may share.

    Raises:
        UserError: If there is none, or it has no vocabulary.
    """
    if is_saved_model(settings.run):
        return SavedModelScorer(settings.run, settings.batch_size)
    lm = load(settings.run, checkpoint=settings.checkpoint, precision=settings.precision)
    if lm.vocabulary is None:
        raise UserError(f"`{settings.run}` has no vocabulary: it cannot encode texts")
    return lm


class FileScorer:
    """Scores the texts in files.

    Args:
        settings: How.
        model: The result of `load_model`.

    Raises:
        UserError: If the vocabulary cannot encode the prefix, is not that of WikiText but the texts
            are to be tokenized so, or a setting is wrong.
    """

    def __init__(self, settings: ScoringSettings, model: LanguageModel | SavedModelScorer):
        vocabulary = model.vocabulary
        assert vocabulary is not None
        self.vocabulary: Vocabulary = vocabulary
        self._settings = settings
        if settings.tokenize_wikitext:
            check_wikitext(vocabulary)
        self._scorer: TextScorer
        if isinstance(model, SavedModelScorer):
            self._scorer = model
        else:
            self._scorer = Scorer(
                model.model,
                settings.evaluation or model.evaluation,
                batch_size=settings.batch_size,
                mask_empty_memory=settings.mask_empty_memory,
                jit=settings.jit,
            )
        try:
            self._prefix = vocabulary.encode(settings.prefix.replace("\\n", "\n")).tolist()
        except UserError as error:
            raise UserError(f"--prefix: {error}") from error

    def score(
        self,
        files: Iterable[ScoredFile],
        *,
        watch: Watch = iter,
        report: Callable[[int], object] = lambda n_ids: None,
    ) -> Iterator[tuple[TextName, TextTotals]]:
        """Yields the name and the score of each text, in order.

        Args:
            files: The files.
            watch: Called with the chunks of each file, which it passes on.
            report: As in `TextScorer.score`.

        Raises:
            UserError: If a file cannot be read or encoded.
        """
        settings = self._settings
        return self._scorer.score(
            self._make_streams(files, watch),
            prefix=self._prefix,
            vocabulary=self.vocabulary,
            keep_tokens=settings.keep_tokens,
            in_order=not settings.needs_whole_files,
            report=report,
        )

    def _make_streams(
        self, files: Iterable[ScoredFile], watch: Watch
    ) -> Iterable[Iterable[TextChunk]]:
        """Returns the streams of texts, through each of which memory is carried."""

        def read_files() -> Iterator[Iterator[TextChunk]]:
            for scored in files:
                finder = self._settings.make_finder()
                if finder is not None:
                    resume_documents(finder, scored.file)
                errors = self._settings.encoding_errors
                parse = tokenize_wikitext_bytes if self._settings.tokenize_wikitext else None
                source = TextSource((scored.file,), self.vocabulary.level, errors, parse)
                yield watch(read_file(source, self.vocabulary, finder, n_before=scored.n_before))

        if self._settings.carry_memory:
            return [chain.from_iterable(read_files())]
        if self._settings.needs_whole_files:
            return read_files()
        return split_texts(chain.from_iterable(read_files()))
