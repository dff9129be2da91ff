"""Making a data set: from raw files to a plan, a vocabulary and records."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from txl_tf.data.files import check_folder
from txl_tf.data.records.format import RecordError, RecordsInfo
from txl_tf.data.records.reading import open_records
from txl_tf.data.records.writing import TokenChunk, holds_records, write_records
from txl_tf.data.text.documents import DocumentFinder
from txl_tf.data.text.learning import learn_fields
from txl_tf.data.text.text_files import TextSource
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.preparation.corpora import CorpusSpec
from txl_tf.preparation.encoding import (
    SplitCounts,
    encode_source,
    settle_documents,
    shuffle_documents,
)
from txl_tf.preparation.options import PrepareOptions
from txl_tf.preparation.plan import Plan, Source, make_plan
from txl_tf.preparation.raw_files import ensure_raw_files, find_raw_files
from txl_tf.progress import Bar

# A public set whose counts differ from the published ones by less than this share is damaged; if
# they differ by more, it is an excerpt.
_NEAR = 0.01
# Words that conventionally stand for unknown words.
_UNKNOWN = ("<unk>", "<UNK>")


def prepare(
    options: PrepareOptions,
    execute: Callable[[Plan, PrepareOptions], RecordsInfo] | None = None,
) -> None:
    """Makes a data set, unless it is already made, and prints a summary.

    In the 2019 code: `get_lm_corpus`.

    Raises:
        UserError: If the data set cannot be made, or `options.data_dir` holds a different one.
    """
    start = time.monotonic()
    check_folder(options.data_dir)
    if not options.overwrite and holds_records(options.data_dir):
        check_up_to_date(options)
        print(f"`{options.data_dir}` was already made with the same arguments: nothing to do.")
        return
    files = ensure_raw_files(options)
    plan = make_plan(options, files)
    info = (execute or execute_plan)(plan, options)
    print_summary(info)
    print(f"Wrote `{options.data_dir}` in {time.monotonic() - start:.1f} seconds.")


def check_up_to_date(options: PrepareOptions) -> None:
    """Checks that the data set in `options.data_dir` is the one that would be made.

    Raw files that no longer exist are not compared.
    """
    listed = None
    with contextlib.suppress(UserError, FileNotFoundError):  # texts or a vocabulary that are gone
        files = find_raw_files(options)
        listed = files.describe() if files else None
    try:
        made_from = open_records(options.data_dir).made_from
    except RecordError as error:
        raise RecordError(f"{error} --overwrite replaces it.") from error
    wanted, found = options.describe(), made_from.get("arguments", {})
    differing = [
        f"{name}={found.get(name)}"
        for name in sorted({*wanted, *found})
        if wanted.get(name) != found.get(name)
    ]
    if listed and not differing and made_from.get("files") != listed:
        differing = ["other files, or files of other sizes"]
    if differing:
        raise RecordError(
            f"`{options.data_dir}` holds a data set made with {', '.join(differing)}. Choose "
            "another --data_dir, or replace the data set with --overwrite."
        )


def execute_plan(plan: Plan, options: PrepareOptions) -> RecordsInfo:
    """Learns the vocabulary, encodes the splits and writes the records, with progress bars."""
    vocabulary = plan.vocabulary or learn_vocabulary(plan, options.num_workers)
    vocabulary, cutoffs = settle_vocabulary(plan, vocabulary)
    return write_records(
        options.data_dir,
        dataset=plan.corpus.name,
        vocabulary=vocabulary,
        splits={split: encode_split(plan, options, vocabulary, split) for split in plan.sources},
        cutoffs=cutoffs,
        made_from={"arguments": options.describe(), "files": plan.files},
        overwrite=options.overwrite,
    )


def learn_vocabulary(plan: Plan, num_workers: int) -> Vocabulary:
    """Learns the vocabulary of a plan from the splits in `CorpusSpec.counted`."""

    def iterate_texts() -> Iterator[bytes]:
        for split in plan.corpus.counted:
            source = plan.sources[split]
            with _make_bar(f"{split}: symbols", source) as bar:
                for chunk in source.iterate_chunks():
                    yield chunk.text
                    bar.update(len(chunk.text))

    corpus, texts = plan.corpus, iterate_texts()
    fields = learn_fields(corpus.level, texts, corpus.learning, n_threads=num_workers, report=print)
    return make_vocabulary(corpus, fields)


def make_vocabulary(corpus: CorpusSpec, fields: Mapping[str, Any]) -> Vocabulary:
    """Returns the vocabulary with the arguments that were learned."""
    if not fields["symbols"]:
        raise UserError(f"{corpus.name}: there is no text to learn a vocabulary from.")
    return Vocabulary(corpus.level, **fields)


def settle_vocabulary(plan: Plan, vocabulary: Vocabulary) -> tuple[Vocabulary, tuple[int, ...]]:
    """Returns the vocabulary with its symbol for unknown words, and the cutoffs.

    Differences from the published data set are printed.
    """
    corpus = plan.corpus
    if vocabulary.unknown is None and vocabulary.level == "word":
        names = (name for name in (corpus.unknown, *_UNKNOWN) if name in vocabulary.symbols)
        vocabulary = replace(vocabulary, unknown=next(names, None))
    cutoffs = _choose_cutoffs(corpus, len(vocabulary))
    n_files = len(plan.files.get("train", ()))
    if corpus.train_files not in (0, n_files):
        print(_describe_count(corpus, "training files", n_files, corpus.train_files))
    if corpus.symbols not in (0, len(vocabulary)):
        print(_describe_count(corpus, "vocabulary", len(vocabulary), corpus.symbols))
    return vocabulary, cutoffs


def _choose_cutoffs(corpus: CorpusSpec, n_symbols: int) -> tuple[int, ...]:
    """Returns the cutoffs below the size of the vocabulary.

    The cutoffs of a public set are meant for the whole set, and an excerpt of it may have fewer
    symbols; a cutoff of the user's own that is too large is an error.
    """
    cutoffs = tuple(cutoff for cutoff in corpus.cutoffs if cutoff < n_symbols)
    if cutoffs != corpus.cutoffs:
        if not corpus.symbols:
            raise UserError(
                f"`cutoffs` must be below the size of the vocabulary, {n_symbols}. "
                f"Received: cutoffs={','.join(map(str, corpus.cutoffs))}"
            )
        print(
            f"The cutoffs {corpus.cutoffs} became {cutoffs}: there are only {n_symbols:,} symbols."
        )
    return cutoffs


def encode_split(
    plan: Plan, options: PrepareOptions, vocabulary: Vocabulary, split: str
) -> Iterator[TokenChunk]:
    """Yields the tokens of a split, with a progress bar, and checks them at the end."""
    corpus, source = plan.corpus, plan.sources[split]
    counts = SplitCounts()
    parts: list[Source] = [source]
    is_shuffled = corpus.shuffled and split == "train"
    if is_shuffled and isinstance(source, TextSource):
        parts = [replace(source, files=(file,)) for file in source.files]
        counts.n_repeats = options.num_shuffles
    with _make_bar(split, source) as bar:
        for index, part in enumerate(parts):
            chunks = encode_source(
                part,
                vocabulary,
                finder=DocumentFinder(corpus.documents, corpus.separator),
                counts=counts,
                special=corpus.learning.special,
                n_threads=options.num_workers,
                report=bar.update,
            )
            chunks = settle_documents(chunks)
            if is_shuffled:
                seed = (options.seed, index)
                chunks = shuffle_documents(chunks, seed=seed, n_shuffles=options.num_shuffles)
            for chunk in chunks:
                counts.n_tokens += len(chunk.ids)
                yield chunk
    check_split(corpus, vocabulary, split, counts)


def check_split(
    corpus: CorpusSpec, vocabulary: Vocabulary, split: str, counts: SplitCounts
) -> None:
    """Checks the counts of a split that was encoded, and prints what is worth knowing."""
    unknown = counts.unknown
    if unknown and vocabulary.unknown is None:
        examples = ", ".join(f"{symbol!r} ({n:,}x)" for symbol, n in unknown.most_common(3))
        raise UserError(
            f"{split}: {unknown.total():,} {vocabulary.level}s, {len(unknown):,} different ones, "
            f"are not in the vocabulary of {len(vocabulary):,}: {examples}. Define a symbol for "
            "unknown ones, such as --unknown '<unk>' for words."
        )
    if not counts.n_tokens:
        raise UserError(f"{split} is empty: its files contain no {vocabulary.level}s.")
    if unknown:
        n_unknown = unknown.total()
        share = n_unknown * counts.n_repeats / counts.n_tokens
        print(f"{split}: {n_unknown:,} unknown ({share:.2%}) replaced by {vocabulary.unknown}")
    if counts.literal:
        times = [f"{name} {n:,} time{'s' * (n != 1)}" for name, n in counts.literal.items()]
        print(
            f"{split}: words spelled like special symbols get these symbols' ids: "
            f"{', '.join(times)}"
        )
    published = corpus.tokens.get(split, counts.n_tokens)
    if counts.n_tokens != published:
        line = _describe_count(corpus, split, counts.n_tokens, published)
        if abs(counts.n_tokens - published) < _NEAR * published:
            raise UserError(f"{line} A file is damaged or was changed.")
        print(line)


def print_summary(info: RecordsInfo) -> None:
    """Prints the counts of a data set."""
    for name in info.splits:
        documents = info.documents.get(name)
        note = f", documents: {documents.count:,}" if documents else ""
        print(f"{name}: {info.count_tokens(name):,} tokens{note}")
    print(f"vocabulary: {len(info.vocabulary):,} {info.vocabulary.level}s")


def _describe_count(corpus: CorpusSpec, name: str, found: int, published: int) -> str:
    return f"{corpus.name}, {name}: {found:,}; the published set has {published:,}."


def _make_bar(label: str, source: Source) -> Bar:
    return Bar(label, total=source.size, unit="B", unit_scale=True)
