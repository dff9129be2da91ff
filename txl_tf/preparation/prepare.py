"""Making a data set: raw files, a plan, a vocabulary, records."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from tqdm import tqdm

from txl_tf.data.documents import DocumentFinder
from txl_tf.data.files import check_folder
from txl_tf.data.learning import learn_fields
from txl_tf.data.reading import open_records
from txl_tf.data.records import RecordError, RecordsInfo
from txl_tf.data.shards import TokenChunk
from txl_tf.data.text_files import TextSource
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.data.writing import holds_records, write_records
from txl_tf.preparation.corpora import CorpusSpec
from txl_tf.preparation.encoding import Source, check_unknown, encode_source, shuffle_documents
from txl_tf.preparation.options import PrepareOptions
from txl_tf.preparation.plan import Plan, make_plan
from txl_tf.preparation.raw_files import CorpusError, find_raw_files, provide_raw_files

# A public set that differs from the published counts by less is damaged; by more, it is a part.
_NEAR = 0.01
# Words that stand for unknown ones by common use.
_UNKNOWN = ("<unk>", "<UNK>")


def prepare(options: PrepareOptions) -> None:
    """Makes a data set, unless it was made before, and prints what it holds.

    Raises:
        UserError: If the data set cannot be made, or `options.data_dir` holds another one.
    """
    start = time.monotonic()
    check_folder(options.data_dir)
    if not options.overwrite and holds_records(options.data_dir):
        check_done(options)
        print(f"`{options.data_dir}` was made with the same arguments before: nothing to do.")
        return
    files = provide_raw_files(options)
    info = write_plan(make_plan(options, files), options)
    print_summary(info)
    print(f"Wrote `{options.data_dir}` in {time.monotonic() - start:.1f} seconds.")


def check_done(options: PrepareOptions) -> None:
    """Checks that the data set in `options.data_dir` is the one that would be made.

    Raises:
        RecordError: If it was made in another way, or from other files, or is damaged. Files that
            are not there any more count as the same.
    """
    files = find_raw_files(options)
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
    if files and not differing and made_from.get("files") != files.describe():
        differing = ["other files, or files of other sizes"]
    if differing:
        raise RecordError(
            f"`{options.data_dir}` holds a data set made with {', '.join(differing)}; choose "
            "another --data_dir, or replace it with --overwrite."
        )


def write_plan(plan: Plan, options: PrepareOptions) -> RecordsInfo:
    """Learns the vocabulary, encodes the splits and writes the records, with progress bars.

    Args:
        plan: What to make.
        options: Where to write, and how.

    Returns:
        What was written.

    Raises:
        UserError: If a text cannot be read or holds unknown symbols, a split is empty, a cutoff of
            the user's own data set lies beyond its vocabulary, or a public data set is nearly, but
            not quite, what was published.
    """
    vocabulary = plan.vocabulary or learn_vocabulary(plan, options.num_workers)
    vocabulary = choose_unknown(vocabulary, plan.corpus.unknown)
    cutoffs = _choose_cutoffs(plan.corpus, len(vocabulary))
    n_files = len(plan.files.get("train", ()))
    if plan.corpus.train_files not in (0, n_files):
        print(_describe_count(plan.corpus, "training files", n_files, plan.corpus.train_files))
    if plan.corpus.symbols not in (0, len(vocabulary)):
        print(_describe_count(plan.corpus, "vocabulary", len(vocabulary), plan.corpus.symbols))
    return write_records(
        options.data_dir,
        dataset=plan.corpus.name,
        vocabulary=vocabulary,
        splits={split: encode_split(plan, options, vocabulary, split) for split in plan.sources},
        cutoffs=cutoffs,
        made_from={"arguments": options.describe(), "files": plan.files},
        overwrite=options.overwrite,
    )


def choose_unknown(vocabulary: Vocabulary, unknown: str | None) -> Vocabulary:
    """Lets a vocabulary that holds a symbol for unknown ones use it."""
    if vocabulary.unknown is not None or vocabulary.level != "word":
        return vocabulary
    for symbol in (unknown, *_UNKNOWN):
        if symbol in vocabulary.symbols:
            return replace(vocabulary, unknown=symbol)
    return vocabulary


def learn_vocabulary(plan: Plan, num_workers: int) -> Vocabulary:
    """Learns the vocabulary of a plan from the splits that are counted."""
    level = plan.corpus.level

    def iterate_texts() -> Iterator[bytes]:
        for split in plan.corpus.counted:
            source = plan.sources[split]
            with _make_bar(f"{split}: symbols", source) as bar:
                for chunk in source.iterate_chunks():
                    yield chunk.text
                    bar.update(len(chunk.text))

    fields = learn_fields(
        level, iterate_texts(), plan.corpus.learning, n_threads=num_workers, report=print
    )
    if not fields["symbols"]:
        raise CorpusError(f"{plan.corpus.name}: there is no text to learn symbols from.")
    return Vocabulary(level, **fields)


def encode_split(
    plan: Plan, options: PrepareOptions, vocabulary: Vocabulary, split: str
) -> Iterator[TokenChunk]:
    """Yields the tokens of a split, with a progress bar, and checks them in the end.

    Raises:
        UserError: As `write_plan`.
    """
    source = plan.sources[split]
    unknown: Counter[str] = Counter()
    literal: Counter[str] = Counter()
    special = list_special(vocabulary, plan.corpus.learning.special)
    n_tokens = 0
    with _make_bar(split, source) as bar:

        def encode(source: Source) -> Iterator[TokenChunk]:
            return encode_source(
                source,
                vocabulary,
                documents=DocumentFinder(plan.corpus.documents, plan.corpus.separator),
                unknown=unknown,
                special=special,
                literal=literal,
                n_threads=options.num_workers,
                report=bar.update,
            )

        if plan.corpus.shuffled and split == "train" and isinstance(source, TextSource):
            chunks: Iterator[TokenChunk] = (
                chunk
                for index, file in enumerate(source.files)
                for chunk in shuffle_documents(
                    encode(replace(source, files=(file,))),
                    seed=(options.seed, index),
                    n_shuffles=options.num_shuffles,
                )
            )
        else:
            chunks = encode(source)
        for chunk in chunks:
            n_tokens += len(chunk.ids)
            yield chunk
    check_unknown(unknown, vocabulary, split)
    if not n_tokens:
        raise CorpusError(f"{split} is empty: its files hold no {vocabulary.level}.")
    if unknown:
        share = unknown.total() / n_tokens
        print(f"{split}: {unknown.total():,} unknown ({share:.2%}) became {vocabulary.unknown}")
    if literal:
        print(describe_literal(literal, split))
    _check_count(plan.corpus, split, n_tokens)


def print_summary(info: RecordsInfo) -> None:
    """Prints what a data set holds."""
    for name in info.splits:
        documents = info.documents.get(name)
        note = f", {documents.count:,} documents" if documents else ""
        print(f"{name}: {info.count_tokens(name):,} tokens{note}")
    print(f"vocabulary: {len(info.vocabulary):,} {info.vocabulary.level}s")


def list_special(vocabulary: Vocabulary, special: Iterable[str]) -> tuple[str, ...]:
    """Returns the symbols that stand for more than a word: marks of lines, and `special`."""
    marks = (vocabulary.line_start, vocabulary.line_end, *special)
    return tuple(dict.fromkeys(mark for mark in marks if mark is not None))


def describe_literal(literal: Mapping[str, int], split: str) -> str:
    """Returns how often special symbols stand in the text of a split, on a line.

    >>> describe_literal({"<eos>": 3}, "valid")
    "valid: words of the text that are special symbols: <eos> 3 times; they get these symbols' ids"
    """
    counts = ", ".join(f"{name} {n:,} time{'s' * (n != 1)}" for name, n in literal.items())
    return (
        f"{split}: words of the text that are special symbols: {counts}; they get these symbols' "
        "ids"
    )


def _check_count(corpus: CorpusSpec, split: str, found: int) -> None:
    """Compares the tokens of a split with the published ones, where they are known.

    Raises:
        CorpusError: If they differ so little that the files must be damaged.
    """
    published = corpus.tokens.get(split, found)
    if found == published:
        return
    line = _describe_count(corpus, split, found, published)
    if abs(found - published) < _NEAR * published:
        raise CorpusError(f"{line} A file is damaged, or was changed.")
    print(line)


def _describe_count(corpus: CorpusSpec, name: str, found: int, published: int) -> str:
    return f"{corpus.name}, {name}: {found:,}; the published set has {published:,}."


def _choose_cutoffs(corpus: CorpusSpec, n_symbols: int) -> tuple[int, ...]:
    """Returns the cutoffs that lie within the vocabulary.

    Raises:
        CorpusError: If the user chose one that does not. A part of a public set may have fewer
            symbols than the whole set, whose cutoffs it has.
    """
    cutoffs = tuple(cutoff for cutoff in corpus.cutoffs if cutoff < n_symbols)
    if cutoffs != corpus.cutoffs:
        if not corpus.symbols:
            raise CorpusError(
                f"`cutoffs` must be below the size of the vocabulary, {n_symbols}. "
                f"Received: cutoffs={','.join(map(str, corpus.cutoffs))}"
            )
        print(f"The cutoffs {corpus.cutoffs} became {cutoffs}: there are {n_symbols:,} symbols.")
    return cutoffs


def _make_bar(label: str, source: Source) -> tqdm:
    return tqdm(total=source.size, desc=label, unit="B", unit_scale=True, disable=None)
