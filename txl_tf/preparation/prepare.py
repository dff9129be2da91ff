"""Creating a data set: from raw files to a vocabulary and records."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from txl_tf.data.files import check_folder
from txl_tf.data.records.format import RecordError, RecordsInfo
from txl_tf.data.records.reading import open_records
from txl_tf.data.records.writing import holds_records, write_records
from txl_tf.data.text.learning import learn_fields
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError
from txl_tf.preparation.corpus import Corpus, Texts
from txl_tf.preparation.encoding import encode_split
from txl_tf.preparation.options import PrepareOptions
from txl_tf.progress import Bar

# Words that conventionally stand for unknown words.
_UNKNOWN = ("<unk>", "<UNK>")


def prepare(options: PrepareOptions) -> RecordsInfo | None:
    """Creates a data set; returns `None` if it already exists.

    In the 2019 code: `get_lm_corpus`.

    Raises:
        UserError: If the data set cannot be created, or `options.data_dir` holds a different one.
    """
    corpus = options.make_corpus()
    texts = find_texts(corpus, options)
    if texts is None:
        return None
    made_from = {"arguments": options.describe(), "files": texts.describe()}
    vocabulary = corpus.read_vocabulary(texts)
    if vocabulary is None:
        vocabulary = learn_vocabulary(corpus, texts, options.num_workers)
    vocabulary, cutoffs = settle_vocabulary(corpus, texts, vocabulary)
    splits = {
        split: encode_split(corpus, split, source, vocabulary, n_threads=options.num_workers)
        for split, source in texts.sources.items()
    }
    return write_records(
        options.data_dir,
        dataset=corpus.name,
        vocabulary=vocabulary,
        splits=splits,
        cutoffs=cutoffs,
        made_from=made_from,
        overwrite=options.overwrite,
    )


def find_texts(corpus: Corpus, options: PrepareOptions) -> Texts | None:
    """Returns the texts of a data set, and downloads them if necessary.

    Returns `None` if `options.data_dir` already holds the data set made from them. Raw files that
    no longer exist are not compared.
    """
    check_folder(options.data_dir)
    if options.overwrite or not holds_records(options.data_dir):
        texts = corpus.locate(options.raw_dir)
        if texts is None:
            corpus.download(options.raw_dir)
            texts = corpus.locate(options.raw_dir)
        if texts is None:
            raise UserError(f"`{options.raw_dir}` does not hold the files of {corpus.name}.")
        return texts
    files = None
    with contextlib.suppress(UserError, FileNotFoundError):  # files that no longer exist
        texts = corpus.locate(options.raw_dir)
        files = texts.describe() if texts else None
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
    if files is not None and not differing and made_from.get("files", {}) != files:
        differing = ["other files, or files of other sizes"]
    if differing:
        raise RecordError(
            f"`{options.data_dir}` holds a data set made with {', '.join(differing)}. Choose "
            "another --data_dir, or replace the data set with --overwrite."
        )
    print(f"`{options.data_dir}` was already made with the same arguments: nothing to do.")
    return None


def learn_vocabulary(corpus: Corpus, texts: Texts, num_workers: int) -> Vocabulary:
    """Learns the vocabulary of a data set from the splits in `Corpus.counted`."""

    def iterate_texts() -> Iterator[bytes]:
        for split in corpus.counted:
            source = texts.sources[split]
            label = f"{split}: symbols"
            with Bar(label, total=source.size, unit="B", unit_scale=True) as bar:
                for chunk in source.iterate_chunks():
                    yield chunk.text
                    bar.update(len(chunk.text))

    learning, level = corpus.learning, corpus.level
    fields = learn_fields(level, iterate_texts(), learning, n_threads=num_workers, report=print)
    return make_vocabulary(corpus, fields)


def make_vocabulary(corpus: Corpus, fields: Mapping[str, Any]) -> Vocabulary:
    """Returns the vocabulary with the learned arguments."""
    if not fields["symbols"]:
        raise UserError(f"{corpus.name}: there is no text to learn a vocabulary from.")
    return Vocabulary(corpus.level, **fields)


def settle_vocabulary(
    corpus: Corpus, texts: Texts, vocabulary: Vocabulary
) -> tuple[Vocabulary, tuple[int, ...]]:
    """Returns the vocabulary with its symbol for unknown words, and the cutoffs below its size.

    Prints differences from the published data set. An excerpt of it may have too few symbols for
    some of its cutoffs, which are then dropped; a user's cutoff that is too large is an error.
    """
    is_of_run = str(texts.vocabulary_file).endswith(".json")
    if vocabulary.unknown is None and vocabulary.level == "word" and not is_of_run:
        names = (name for name in _UNKNOWN if name in vocabulary.symbols)
        vocabulary = replace(vocabulary, unknown=next(names, None))
    n_symbols = len(vocabulary)
    cutoffs = tuple(cutoff for cutoff in corpus.cutoffs if cutoff < n_symbols)
    if cutoffs != corpus.cutoffs:
        if not corpus.counts:
            raise UserError(
                f"`cutoffs` must be below the size of the vocabulary, {n_symbols}. "
                f"Received: cutoffs={','.join(map(str, corpus.cutoffs))}"
            )
        print(
            f"The cutoffs {corpus.cutoffs} became {cutoffs}: there are only {n_symbols:,} symbols."
        )
    n_files = len(texts.sources["train"].files)
    for name, found in (("training files", n_files), ("vocabulary", n_symbols)):
        if difference := corpus.compare_count(name, found):
            print(difference)
    return vocabulary, cutoffs


def print_summary(info: RecordsInfo) -> None:
    """Prints the counts of a data set."""
    for name in info.splits:
        documents = info.documents.get(name)
        note = f", documents: {documents.count:,}" if documents else ""
        print(f"{name}: {info.count_tokens(name):,} tokens{note}")
    print(f"vocabulary: {len(info.vocabulary):,} {info.vocabulary.level}s")
