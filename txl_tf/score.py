"""Scores texts with a run: nats, bits and perplexity of each line, document or file.

python -m txl_tf.score --run runs/text8 a.txt b.txt.gz
python -m txl_tf.score --run runs/text8 --by line --format jsonl --per_token < a.txt
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, get_args

from absl import flags

from txl_tf.cli.config_flags import (
    define_config_flags,
    define_jit_flag,
    define_span_flags,
    override_evaluation,
)
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.cli.run_flags import define_mask_flag, define_precision_flag, define_run_flags
from txl_tf.config import EvalConfig
from txl_tf.data.documents import RULES, DocumentFinder
from txl_tf.data.text_files import EncodingErrors, StandardInput, TextFile, TextSource, find_files
from txl_tf.data.wikitext import check_wikitext, tokenize_wikitext_bytes
from txl_tf.errors import UserError

if TYPE_CHECKING:
    from txl_tf.data.vocabulary import Vocabulary
    from txl_tf.inference.score_report import TextBar
    from txl_tf.inference.text_chunks import TextChunk


def main(argv: list[str] = sys.argv) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(__doc__, define_flags(), score_files, argv, rest="files")


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define_run_flags(options)
    files_help = (
        "Text file to score; the name of the flag may be omitted. A dash is standard input."
    )
    define_flag(options, "files", str, [], files_help, is_path=True, multiple=True)
    units = ("line", "document", "file")
    define_flag(options, "by", str, "file", "Unit that receives a score.", choices=units)
    rules = [rule for rule in RULES if rule not in ("none", "separator")]
    documents_help = "Rule for where documents begin, with --by=document."
    define_flag(options, "documents", str, "blank_line", documents_help, choices=rules)
    separator_help = "Line after which a document begins, with --by=document."
    define_flag(options, "document_separator", str, None, separator_help)
    context_help = "Unit within which memory is carried: each text with a score, or the whole file."
    define_flag(options, "context", str, "text", context_help, choices=("text", "file"))
    carry_help = "Carry the memory through all files, in order."
    define_flag(options, "carry_memory", bool, False, carry_help)
    define_mask_flag(options)
    prefix_help = r"Text that is read before each context and not scored; \n is a line break."
    define_flag(options, "prefix", str, "", prefix_help)
    define_flag(options, "format", str, "table", "Output format.", choices=("table", "jsonl"))
    per_token_help = "Print the symbol and the nats of each token, with --format=jsonl."
    define_flag(options, "per_token", bool, False, per_token_help)
    tokenize_help = (
        "Tokenize the texts as WikiText was (hyphens, numbers, punctuation), for its word models."
    )
    define_flag(options, "tokenize_wikitext", bool, False, tokenize_help)
    errors_help = "Treatment of bytes that are not UTF-8: an error, or a replacement character."
    choices = get_args(EncodingErrors)
    define_flag(options, "encoding_errors", str, "strict", errors_help, choices=choices)
    batch_help = "Largest number of contexts to read at once."
    define_flag(options, "batch_size", int, 16, batch_help, lower_bound=1)
    otherwise = "as the run is evaluated"
    define_span_flags(options, otherwise)
    define_config_flags(options, EvalConfig, ["temperature"], prefix="", otherwise=otherwise)
    define_jit_flag(options)
    define_precision_flag(options)
    return options


def score_files(options: flags.FlagValues) -> None:
    """Scores texts and prints a line for each text and one for the total.

    Raises:
        flags.Error: If flags contradict each other.
        UserError: If there is no run, or a text cannot be read or encoded.
    """
    _check_flags(options)
    files = [file for name in options.files or ["-"] for file in _find_texts(name)]

    from txl_tf.evaluation.score import describe_unknown
    from txl_tf.inference import load
    from txl_tf.inference.score_report import JsonLines, Table, TextBar
    from txl_tf.inference.scoring import Scorer
    from txl_tf.inference.text_scores import TextTotals, score_texts

    lm = load(options.run, checkpoint=options.checkpoint, precision=options.precision)
    if lm.vocabulary is None:
        raise UserError(f"`{options.run}` has no vocabulary: it cannot encode texts")
    evaluation = override_evaluation(lm.evaluation, options)
    scorer = Scorer(
        lm.model,
        evaluation.span,
        evaluation.tgt_len,
        batch_size=options.batch_size,
        mask_empty_memory=options.mask_empty_memory,
        jit=options.jit,
        temperature=evaluation.temperature,
    )
    report = (Table if options.format == "table" else JsonLines)(options.by, lm.vocabulary)
    parse = _choose_tokenizer(options, lm.vocabulary)
    level = lm.vocabulary.level
    sources = [TextSource((file,), level, options.encoding_errors, parse) for file in files]
    total, n_texts = TextTotals(0.0, 0, lm.vocabulary.level, 0), 0
    with TextBar(_sum_sizes(files)) as bar:
        if isinstance(report, Table):
            print(report.format_head())
        for name, score in score_texts(
            scorer,
            _make_streams(options, sources, lm.vocabulary, bar),
            prefix=_encode_prefix(options.prefix, lm.vocabulary),
            vocabulary=lm.vocabulary,
            keep_tokens=options.per_token,
            in_order=options.context == "text" and options.by != "file",
            report=bar.show,
        ):
            total, n_texts = total + score, n_texts + 1
            print(report.format_text(name, score))
    print(report.format_total(n_texts, total))
    if total.n_unknown:
        print(f"warning: {describe_unknown(total, lm.vocabulary.unknown)}", file=sys.stderr)


def _check_flags(options: flags.FlagValues) -> None:
    """Checks the flags that do not depend on the run.

    Raises:
        flags.Error: If flags contradict each other.
    """
    for name in ("documents", "document_separator"):
        if options[name].present and options.by != "document":
            raise flags.Error(f"--{name} needs --by document. Received: --by {options.by}")
    if options["documents"].present and options.document_separator is not None:
        raise flags.Error("--documents and --document_separator exclude each other")
    if options.per_token and options.format != "jsonl":
        raise flags.Error("--per_token needs --format jsonl")


def _find_texts(name: str) -> tuple[TextFile, ...]:
    return (StandardInput(),) if name == "-" else find_files([name])


def _sum_sizes(files: Iterable[TextFile]) -> int | None:
    sizes = [file.size for file in files]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _choose_tokenizer(
    options: flags.FlagValues, vocabulary: "Vocabulary"
) -> Callable[[bytes], bytes] | None:
    """Returns the function that tokenizes texts; `None` if they are read as they are."""
    if not options.tokenize_wikitext:
        return None
    check_wikitext(vocabulary)
    return tokenize_wikitext_bytes


def _encode_prefix(prefix: str, vocabulary: "Vocabulary") -> list[int]:
    try:
        return vocabulary.encode(prefix.replace("\\n", "\n")).tolist()
    except UserError as error:
        raise UserError(f"--prefix: {error}") from error


def _make_streams(
    options: flags.FlagValues,
    sources: Iterable[TextSource],
    vocabulary: "Vocabulary",
    bar: "TextBar",
) -> Iterable[Iterable["TextChunk"]]:
    """Returns the streams of texts, through each of which memory is carried."""
    from txl_tf.inference.text_chunks import read_file, split_texts

    def read_files() -> Iterator[Iterator["TextChunk"]]:
        for source in sources:
            yield bar.watch(read_file(source, vocabulary, _make_finder(options)))

    if options.carry_memory:
        return [chain.from_iterable(read_files())]
    if options.context == "file" or options.by == "file":
        return read_files()
    return split_texts(chain.from_iterable(read_files()))


def _make_finder(options: flags.FlagValues) -> DocumentFinder | None:
    """Returns the finder of texts in a file; `None` if each file is one text."""
    if options.by == "file":
        return None
    if options.by == "line":
        return DocumentFinder("line")
    if options.document_separator is not None:
        return DocumentFinder("separator", options.document_separator)
    return DocumentFinder(options.documents)


if __name__ == "__main__":
    sys.exit(main())
