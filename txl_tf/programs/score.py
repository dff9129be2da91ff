"""Scores texts with a run: nats, bits and perplexity of each line, document or file.

txl score --run runs/text8 a.txt b.txt.gz
txl score --run runs/text8 --by line --format jsonl --per_token < a.txt
txl score --run runs/text8 --by line --runner DirectRunner --out scores 'texts/*.txt'
"""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, get_args

from absl import flags

from txl_tf.config import EvalConfig
from txl_tf.data.text.documents import RULES
from txl_tf.data.text.text_files import EncodingErrors, StandardInput, TextFile, find_files
from txl_tf.programs.cli.config_flags import (
    SPAN_FIELDS,
    define_config_flags,
    define_jit_flag,
    define_span_flags,
    override_evaluation,
)
from txl_tf.programs.cli.flags import define_flag, refuse_flags
from txl_tf.programs.cli.pipeline_flags import (
    check_pipeline_flags,
    define_pipeline_flags,
    make_runner,
)
from txl_tf.programs.cli.program import program
from txl_tf.programs.cli.run_flags import (
    check_texts,
    choose_run,
    define_mask_flag,
    define_precision_flag,
    define_run_flags,
)
from txl_tf.progress import Bar
from txl_tf.scoring.metrics import warn_of_unknown

if TYPE_CHECKING:
    from txl_tf.apps.file_scores import ScoringSettings

_FIXED_IN_SAVED_MODELS = (
    *("checkpoint", "precision", "jit", "mask_empty_memory", "temperature"),
    *SPAN_FIELDS,
)


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    define_run_flags(options)
    text = "Text file to score. A dash means standard input."
    define("files", str, [], text, is_path=True, multiple=True)
    units = ("line", "document", "file")
    define("by", str, "file", "Unit of text that gets a score.", choices=units)
    rules = [rule for rule in RULES if rule not in ("none", "separator")]
    text = "Rule for where documents begin, with --by=document."
    define("documents", str, "blank_line", text, choices=rules)
    text = "Line after which a document begins, with --by=document."
    define("document_separator", str, None, text)
    text = "Unit within which the memory is carried over: each scored text, or the whole file."
    define("context", str, "text", text, choices=("text", "file"))
    define("carry_memory", bool, False, "Carry the memory over through all files, in order.")
    define_mask_flag(options)
    text = r"Text that is read, but not scored, before each context; \n is a line break."
    define("prefix", str, "", text)
    define("format", str, "table", "Output format.", choices=("table", "jsonl"))
    define("json", bool, False, "Same as --format=jsonl: JSON lines.")
    text = "Print the symbol and the nats of each token, with --format=jsonl."
    define("per_token", bool, False, text)
    text = "Tokenize the texts like WikiText (hyphens, numbers, punctuation), for its word models."
    define("tokenize_wikitext", bool, False, text)
    text = "Treatment of bytes that are not UTF-8: an error, or a replacement character."
    define("encoding_errors", str, "strict", text, choices=get_args(EncodingErrors))
    text = "Largest number of contexts to read at once."
    define("batch_size", int, 16, text, lower_bound=1)
    otherwise = "as in the run's evaluation"
    define_span_flags(options, otherwise)
    define_config_flags(options, EvalConfig, ["temperature"], prefix="", otherwise=otherwise)
    define_jit_flag(options)
    define_precision_flag(options)
    define_pipeline_flags(options)
    text = "With --runner: new or empty folder for the scores, as JSON lines files."
    define("out", str, None, text, is_path=True)
    return options


@program(__doc__, define_flags, positional="files")
def main(options: flags.FlagValues) -> None:
    """Scores texts and prints a line for each text and one for the total."""
    if options.json:
        if options.format != "jsonl":
            refuse_flags(options, "format", reason="with --json")
        options["format"].value = "jsonl"
    _check_flags(options)
    check_texts(options.files)
    choose_run(options, or_saved_model=True)
    if options.runner:
        _score_with_workers(options)
        return
    files: list[TextFile] = []
    for name in options.files or ["-"]:
        files += [StandardInput()] if name == "-" else find_files([name])

    from txl_tf.apps.file_scores import FileScorer, load_model
    from txl_tf.scoring.text_report import JsonLines, Table
    from txl_tf.scoring.text_scores import TextTotals

    settings = _make_settings(options)
    scorer = FileScorer(settings, load_model(settings))
    vocabulary = scorer.vocabulary
    report = (Table if options.format == "table" else JsonLines)(options.by, vocabulary)
    total, n_texts = TextTotals(0.0, 0, vocabulary.level, 0), 0
    with Bar("score", unit="token", unit_scale=True) as bar:
        if isinstance(report, Table):
            print(report.format_head())
        for name, score in scorer.score(files, report=bar.update):
            total, n_texts = total + score, n_texts + 1
            print(report.format_text(name, score))
    print(report.format_total(n_texts, total))
    warn_of_unknown(total, vocabulary)


def _score_with_workers(options: flags.FlagValues) -> None:
    """Scores texts with a pipeline, which writes the scores, and prints the total."""
    runner = make_runner(options)
    from txl_tf.apps.beam.scores_pipeline import score_with_workers

    total, vocabulary = score_with_workers(
        options.files,
        _make_settings(options),
        runner,
        options.out,
        piece_bytes=options.piece_bytes,
    )
    warn_of_unknown(total, vocabulary)


def _make_settings(options: flags.FlagValues) -> "ScoringSettings":
    from txl_tf.apps.file_scores import ScoringSettings
    from txl_tf.exports.saved_model_scorer import is_saved_model
    from txl_tf.runs.checkpoint_choice import find_checkpoint
    from txl_tf.runs.folder import read_run_config
    from txl_tf.runs.hub_download import fetch_model, is_hub_address

    evaluation, checkpoint = None, options.checkpoint
    if is_saved_model(options.run):
        for name in _FIXED_IN_SAVED_MODELS:
            if options[name].present:
                raise flags.Error(f"--{name} is fixed in a SavedModel when it is exported")
    else:
        is_shared = is_hub_address(options.run)
        folder = fetch_model(options.run) if is_shared else options.run
        evaluation = override_evaluation(read_run_config(folder).evaluation, options)
        # All workers use the same checkpoint, even if the run goes on.
        if options.runner and not is_shared:
            checkpoint = find_checkpoint(options.run, checkpoint)
    values: dict[str, Any] = {
        field.name: options[field.name].value
        for field in dataclasses.fields(ScoringSettings)
        if field.name not in ("checkpoint", "evaluation")
    }
    return ScoringSettings(**values, checkpoint=checkpoint, evaluation=evaluation)


def _check_flags(options: flags.FlagValues) -> None:
    """Checks the flags that do not depend on the run."""
    for name in ("documents", "document_separator"):
        if options[name].present and options.by != "document":
            raise flags.Error(f"--{name} needs --by document. Received: --by {options.by}")
    if options["documents"].present and options.document_separator is not None:
        raise flags.Error("--documents and --document_separator cannot be used together")
    if options.tokenize_wikitext and options.document_separator is not None:
        raise flags.Error(
            "--document_separator cannot be used with --tokenize_wikitext, which changes such lines"
        )
    if options.carry_memory:
        refuse_flags(options, "context", reason="with --carry_memory")
    check_pipeline_flags(options, ("out",))
    if options.runner:
        _check_runner(options)
    elif options.per_token and options.format != "jsonl":
        raise flags.Error("--per_token needs --format jsonl")


def _check_runner(options: flags.FlagValues) -> None:
    if options.out is None:
        raise flags.Error("--runner needs --out, the folder for the scores")
    if options.carry_memory:
        raise flags.Error("--carry_memory reads files one after another, not with --runner")
    if options["format"].present and options.format != "jsonl":
        raise flags.Error(f"--runner writes --format jsonl. Received: --format {options.format}")
    if not options.files or "-" in options.files:
        raise flags.Error("--runner needs files that workers can read, not standard input")
