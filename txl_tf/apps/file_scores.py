"""The scores of the texts in files, with a run or a SavedModel."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from txl_tf import LanguageModel, load
from txl_tf.apps.beam.file_ranges import resume_documents
from txl_tf.config import EvalConfig
from txl_tf.data.text.documents import DocumentFinder
from txl_tf.data.text.text_files import EncodingErrors, TextFile, TextSource
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.data.text.wikitext import check_wikitext, tokenize_wikitext, tokenize_wikitext_bytes
from txl_tf.errors import UserError, explain_errors
from txl_tf.exports.saved_model_scorer import SavedModelScorer, is_saved_model
from txl_tf.scoring.scorer import SCORING_BATCH_SIZE, Scorer, TextScorer
from txl_tf.scoring.text_chunks import TextChunk, TextName, read_file, split_texts
from txl_tf.scoring.text_scores import TextTotals


@dataclass(frozen=True)
class ScoringSettings:
    """Settings for scoring files."""

    run: str  # the folder of a run or a SavedModel
    checkpoint: str | None = None
    precision: str = "float32"
    evaluation: EvalConfig | None = None  # `None` for that of the run
    mask_empty_memory: bool = True
    jit: str = "auto"
    batch_size: int = SCORING_BATCH_SIZE
    by: str = "file"  # what gets a score: "line", "document" or "file"
    documents: str = "blank_line"  # the rule for where documents begin
    document_separator: str | None = None  # line after which one begins, instead of the rule
    context: str = "text"  # unit within which memory is carried over: "text" or "file"
    carry_memory: bool = False  # through all files
    prefix: str = ""  # read before each context, with \n for a line break
    per_token: bool = False  # whether the losses of tokens are kept
    encoding_errors: EncodingErrors = "strict"
    tokenize_wikitext: bool = False

    @property
    def needs_whole_files(self) -> bool:
        """Whether the memory is carried through each file."""
        return self.context == "file" or self.by == "file"

    def make_finder(self) -> DocumentFinder | None:
        """Returns the finder of texts in a file; `None` if each file is one text."""
        if self.by == "file":
            return None
        if self.by == "line":
            return DocumentFinder("line")
        if self.document_separator is not None:
            return DocumentFinder("separator", self.document_separator)
        return DocumentFinder(self.documents)


def load_model(settings: ScoringSettings) -> LanguageModel | SavedModelScorer:
    """Loads the model, which any number of `FileScorer`s may share."""
    if is_saved_model(settings.run):
        return SavedModelScorer(settings.run, settings.batch_size)
    lm = load(settings.run, checkpoint=settings.checkpoint, precision=settings.precision)
    if lm.vocabulary is None:
        raise UserError(f"`{settings.run}` has no vocabulary: it cannot encode texts")
    return lm


class FileScorer:
    """Scores the texts in files with the result of `load_model`."""

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
        with explain_errors("--prefix", UserError, UnicodeError):
            prefix = settings.prefix.replace("\\n", "\n")
            prefix = tokenize_wikitext(prefix) if settings.tokenize_wikitext else prefix
            self._prefix = vocabulary.encode(prefix).tolist()
            if prefix and not self._prefix:
                raise UserError(f"it must have at least one token. Received: {prefix!r}")

    def score(
        self,
        files: Iterable[TextFile],
        *,
        report: Callable[[int], object] = lambda n_ids: None,
    ) -> Iterator[tuple[TextName, TextTotals]]:
        """Yields the name and the score of each text, in order; see `TextScorer.score`."""
        settings = self._settings
        return self._scorer.score(
            self._make_streams(files),
            prefix=self._prefix,
            vocabulary=self.vocabulary,
            keep_tokens=settings.per_token,
            report=report,
        )

    def _make_streams(self, files: Iterable[TextFile]) -> Iterable[Iterable[TextChunk]]:
        """Returns the streams of texts; the memory is carried through each stream."""

        def read_files() -> Iterator[Iterator[TextChunk]]:
            for file in files:
                finder = self._settings.make_finder()
                if finder is not None:
                    resume_documents(finder, file)
                errors = self._settings.encoding_errors
                parse = (tokenize_wikitext_bytes,) if self._settings.tokenize_wikitext else ()
                source = TextSource((file,), self.vocabulary.level, errors, parse)
                yield read_file(source, self.vocabulary, finder)

        if self._settings.carry_memory:
            return [chain.from_iterable(read_files())]
        if self._settings.needs_whole_files:
            return read_files()
        return split_texts(chain.from_iterable(read_files()))
