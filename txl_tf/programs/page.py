"""Writes a text as an HTML page: surprisal of tokens, alternatives, and where heads look.

txl page --run runs/text8 a.txt --out page.html
txl page --run runs/text8 --split test --start 5000 --out page.html
"""

import functools
from typing import TYPE_CHECKING, get_args

import numpy as np
from absl import flags

from txl_tf.data.text.text_files import EncodingErrors, StandardInput, TextSource, find_files
from txl_tf.errors import UserError
from txl_tf.programs.cli.config_flags import define_span_flags, override_evaluation
from txl_tf.programs.cli.flags import define_flag, refuse_flags
from txl_tf.programs.cli.program import program
from txl_tf.programs.cli.run_flags import (
    check_out_files,
    check_texts,
    choose_run,
    define_mask_flag,
    define_precision_flag,
    define_records_flag,
    define_run_flags,
    open_chosen_run,
    open_run_records,
)

if TYPE_CHECKING:
    from txl_tf.data.records.reading import Records
    from txl_tf.language_model import LanguageModel

_MAX_BYTES = 2**28


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    define_run_flags(options)
    text = "Text file. A dash means standard input."
    define("file", str, [], f"{text} [default: -]", is_path=True, multiple=True)
    text = "Treatment of bytes that are not UTF-8: an error, or a replacement character."
    define("encoding_errors", str, "strict", text, choices=get_args(EncodingErrors))
    define("split", str, None, "Split to read instead of a file.")
    define_records_flag(options)
    text = "Position of the first token to read. The memory is empty there."
    define("start", int, 0, text, lower_bound=0)
    define("tokens", int, 10_000, "Largest number of tokens to read.", lower_bound=2)
    text = "Number of most likely alternatives to show for each token."
    define("alternatives", int, 5, text, lower_bound=1)
    text = "Heads whose attention the page shows, as LAYER.HEAD counted from 0. [default: all]"
    define("heads", list, None, text)
    text = "Number of keys with the largest attention weights to show for each token and head."
    define("keys", int, 8, text, lower_bound=1)
    define_span_flags(options, "as in the run's evaluation")
    define_mask_flag(options)
    define_precision_flag(options)
    define("out", str, None, "HTML file to write.", required=True, is_path=True)
    return options


@program(__doc__, define_flags, positional="file")
def main(options: flags.FlagValues) -> None:
    """Reads a text with a run, and writes the page."""
    if options.split and options.file:
        raise flags.Error("--split and a file cannot be used together")
    if len(options.file) > 1:
        raise flags.Error(f"one file is expected. Received: {' '.join(options.file)}")
    if options["data_dir"].present and not options.split:
        raise flags.Error("--data_dir needs --split")
    if options.split:
        refuse_flags(options, "encoding_errors", reason="with --split")
    check_out_files(options, "out")
    check_texts(options.file)
    choose_run(options)

    from txl_tf.data.files import write_text
    from txl_tf.lab.pages.text_page import make_text_page
    from txl_tf.lab.text_attention import Head, parse_heads
    from txl_tf.lab.text_trace import TextTracer
    from txl_tf.models.architecture import check_transformer
    from txl_tf.progress import Bar

    records = None
    if options.split:
        records = open_run_records(options.run, options.data_dir, options.split)
    lm = open_chosen_run(options, records=records, split=options.split)
    check_transformer(lm.config, "an analysis of attention")
    lm.evaluation = override_evaluation(lm.evaluation, options)
    heads = sorted(set(parse_heads(options.heads or [], lm.config)))
    if options.heads is None:
        heads = [Head(*index) for index in np.ndindex(lm.config.n_layer, lm.config.n_head)]
    source, ids = _read_split(options, lm, records) if records else _read_text(options, lm)
    n_alternatives = min(options.alternatives, lm.config.n_token)
    n_keys = min(options.keys, lm.evaluation.mem_len + lm.evaluation.tgt_len)
    n_bytes = (len(heads) + 1) * (3 * n_keys + 1) + 6 * n_alternatives  # of a token, about
    size = len(ids) * n_bytes * 4 // 3  # in base64
    if size > _MAX_BYTES:
        raise UserError(
            f"the numbers of {len(ids):,} tokens in {len(heads)} heads would take "
            f"{size / 2**20:,.0f} MiB in the page, and at most {_MAX_BYTES / 2**20:.0f} MiB are "
            "allowed: choose fewer --heads, --keys, --alternatives or --tokens"
        )
    tracer = TextTracer(
        lm,
        heads,
        n_alternatives=options.alternatives,
        n_keys=options.keys,
        mask_empty_memory=options.mask_empty_memory,
    )
    with Bar("reading", total=len(ids) - 1, unit="token", leave=False) as bar:
        score, page = make_text_page(lm, options.run, tracer, ids, source, report=bar.update)
    write_text(options.out, page)
    print(f"{source}: {score.describe()}")
    print(f"Wrote {options.out}, {len(page.encode()) / 1e6:,.1f} MB")


def _read_split(
    options: flags.FlagValues, lm: "LanguageModel", records: "Records"
) -> tuple[str, np.ndarray]:
    """Returns the name of a stretch of a split, and its ids, (n,) int32."""
    tokens, start = records.split(options.split), options.start
    _check_start(start, len(tokens), f"split {options.split}")
    stop = min(start + options.tokens, len(tokens))
    part = f"tokens {start:,} to {stop - 1:,} of {len(tokens):,}"
    lm.vocabulary = records.vocabulary  # an import may know only ids
    return f"{records.dataset}, split {options.split}, {part}", tokens.read(start, stop)


def _read_text(options: flags.FlagValues, lm: "LanguageModel") -> tuple[str, np.ndarray]:
    """Returns the name of a stretch of a file, and its ids, (n,) int32."""
    from txl_tf.scoring.text_chunks import read_file

    if lm.vocabulary is None:
        raise UserError(f"`{options.run}` has no vocabulary: it cannot encode texts")
    name = (options.file or ["-"])[0]
    files = (StandardInput(),) if name == "-" else find_files([name])
    if len(files) > 1:
        raise UserError(f"a page shows one text. Received: {name}, {len(files)} texts")
    source = TextSource(files, lm.vocabulary.level, options.encoding_errors)
    stop = options.start + options.tokens
    taken, n_taken = [np.zeros(0, np.int32)], 0
    for chunk in read_file(source, lm.vocabulary):
        taken.append(chunk.ids)
        n_taken += len(chunk.ids)
        if n_taken > stop:
            break
    _check_start(options.start, n_taken, str(files[0]))
    ids = np.concatenate(taken)[options.start : stop]
    part = f"{len(ids):,} tokens"
    if options.start or n_taken > stop:
        part = f"tokens {options.start:,} to {options.start + len(ids) - 1:,}"
    return f"{files[0]}, {part}", ids


def _check_start(start: int, n_tokens: int, name: str) -> None:
    """Raises a `UserError` unless the two tokens that a page needs are left from `start` on."""
    if start > n_tokens - 2:
        raise UserError(
            f"{name} has {n_tokens:,} tokens, and a page needs 2 of them from --start on. "
            f"Received: --start={start}"
        )
