"""Making the records of a plan."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from corpora import Corpus
from plan import Plan, choose_unknown
from raw_files import CorpusError
from tqdm import tqdm

from txl_tf.data.documents import DocumentFinder
from txl_tf.data.encoding import Source, check_unknown, encode_source, shuffle_documents
from txl_tf.data.learning import learn_fields
from txl_tf.data.records import RecordsInfo
from txl_tf.data.shards import TokenChunk
from txl_tf.data.text_files import TextSource
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.data.writing import write_records

# A public set that differs from the published counts by less is damaged; by more, it is a part.
_NEAR = 0.01


def prepare_plan(
    plan: Plan,
    data_dir: str,
    *,
    made_from: Mapping[str, Any],
    num_workers: int,
    overwrite: bool,
) -> RecordsInfo:
    """Learns the vocabulary, encodes the splits and writes the records, with progress bars.

    Args:
        plan: What to make.
        data_dir: Where to write: a folder, or an address.
        made_from: What to remember in the records.
        num_workers: How many pieces of text to work on at once.
        overwrite: Whether to replace a data set that is there.

    Returns:
        What was written.

    Raises:
        UserError: If a text cannot be read or holds unknown symbols, a split is empty, a cutoff of
            the user's own data set lies beyond its vocabulary, or a public data set is nearly, but
            not quite, what was published.
    """
    vocabulary = plan.vocabulary or learn_vocabulary(plan, num_workers)
    vocabulary = choose_unknown(vocabulary, plan.corpus.unknown)
    cutoffs = _choose_cutoffs(plan.corpus, len(vocabulary))
    n_files = len(plan.files.get("train", ()))
    if plan.corpus.train_files not in (0, n_files):
        print(_describe_count(plan.corpus, "training files", n_files, plan.corpus.train_files))
    if plan.corpus.symbols not in (0, len(vocabulary)):
        print(_describe_count(plan.corpus, "vocabulary", len(vocabulary), plan.corpus.symbols))
    return write_records(
        data_dir,
        dataset=plan.corpus.name,
        vocabulary=vocabulary,
        splits={
            split: encode_split(plan, vocabulary, split, num_workers) for split in plan.sources
        },
        cutoffs=cutoffs,
        made_from=made_from,
        overwrite=overwrite,
    )


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
    plan: Plan, vocabulary: Vocabulary, split: str, num_workers: int
) -> Iterator[TokenChunk]:
    """Yields the tokens of a split, with a progress bar, and checks them in the end.

    Raises:
        UserError: As `prepare_plan`.
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
                n_threads=num_workers,
                report=bar.update,
            )

        if plan.corpus.shuffled and split == "train" and isinstance(source, TextSource):
            chunks: Iterator[TokenChunk] = (
                chunk
                for index, file in enumerate(source.files)
                for chunk in shuffle_documents(
                    encode(replace(source, files=(file,))),
                    seed=(plan.seed, index),
                    n_shuffles=plan.num_shuffles,
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


def _check_count(corpus: Corpus, split: str, found: int) -> None:
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


def _describe_count(corpus: Corpus, name: str, found: int, published: int) -> str:
    return f"{corpus.name}, {name}: {found:,}; the published set has {published:,}."


def _choose_cutoffs(corpus: Corpus, n_symbols: int) -> tuple[int, ...]:
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
