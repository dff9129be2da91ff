import itertools
import re

import numpy as np
import pytest

from txl_tf.data.records.writing import TokenChunk
from txl_tf.data.text.documents import DocumentFinder
from txl_tf.data.text.text_files import Chunk
from txl_tf.data.text.vocabulary import EVERY_BYTE, Vocabulary
from txl_tf.preparation.encoding import (
    SplitCounts,
    count_literal,
    encode_source,
    settle_documents,
    shuffle_documents,
)

TEXT = "文字 é\n\nzwölf 🜁 ja\nnein\n\n\né ja\n \n\nja zwölf"
VOCABULARIES = {
    "byte": Vocabulary("byte", EVERY_BYTE),
    "char": Vocabulary.learn("char", [TEXT, " ="]),
    "word": Vocabulary.learn("word", [TEXT, " ="], line_end="</s>"),
    "words": Vocabulary.learn("word", [TEXT, " ="]),  # blank lines have no tokens
    "marked": Vocabulary.learn("word", [TEXT, " ="], line_start="<S>", line_end="<S>"),
    "subword": Vocabulary.learn("subword", [TEXT * 3, " ="], max_symbols=281),
}


class Pieces:
    """The chunks of a text that was cut at lines, one file or many."""

    def __init__(self, *files, n_lines=10**6):
        self.files = files
        self.n_lines = n_lines
        self.size = sum(len(text.encode()) for text in files)

    def iterate_chunks(self):
        for text in self.files:
            lines = re.findall(r"[^\n]*\n|[^\n]+$", text)
            for place in range(0, len(lines), self.n_lines):
                piece = "".join(lines[place : place + self.n_lines])
                yield Chunk(piece.encode(), place == 0, True)


def encode(source, vocabulary, rule="blank_line", n_threads=1, counts=None):
    """Returns the ids of a text, and where its documents begin."""
    chunks = encode_source(
        source,
        vocabulary,
        finder=DocumentFinder(rule, "ja" if rule == "separator" else None),
        counts=counts or SplitCounts(),
        n_threads=n_threads,
    )
    return join(settle_documents(chunks))


def join(chunks):
    """Returns the ids of some chunks, and where documents begin in them."""
    ids, starts = [], []
    for chunk in chunks:
        assert (chunk.document_starts < len(chunk.ids)).all()
        starts += (chunk.document_starts + len(ids)).tolist()
        ids += chunk.ids.tolist()
    return ids, starts


@pytest.mark.parametrize("level", ["byte", "words", "marked", "subword"])
def test_documents_begin_at_the_tokens_of_their_text(level):
    vocabulary = VOCABULARIES[level]
    ids, starts = encode(Pieces(TEXT), vocabulary)
    assert ids == vocabulary.encode(TEXT).tolist()
    offsets = [TEXT.index(begin) for begin in ("文", "zwölf", "é ja", "ja zwölf")]
    assert starts == [len(vocabulary.encode(TEXT[:offset])) for offset in offsets]


@pytest.mark.parametrize(
    ("level", "rule"),
    [("marked", "title"), ("subword", "blank_line"), ("char", "separator"), ("words", "line")],
)
def test_chunks_change_nothing(level, rule):
    files = ("\n\n" + TEXT + "\n\n", "\n", "\n \n = ja = \nja\n", TEXT)
    vocabulary = VOCABULARIES[level]
    whole = encode(Pieces(*files), vocabulary, rule)
    assert encode(Pieces(*files, n_lines=1), vocabulary, rule) == whole


def test_threads_change_nothing():
    source = Pieces(*[TEXT] * 5, n_lines=2)
    vocabulary = VOCABULARIES["marked"]
    assert encode(source, vocabulary, n_threads=3) == encode(source, vocabulary)


class Blocks:
    """The chunks of a file whose lines are longer than a chunk."""

    size = None

    def __init__(self, *texts):
        self.texts = texts

    def iterate_chunks(self):
        begins_line = True
        for index, text in enumerate(self.texts):
            yield Chunk(text.encode(), index == 0, begins_line)
            begins_line = text.endswith("\n")


@pytest.mark.parametrize("level", ["char", "marked", "subword"])
def test_a_line_that_is_cut_into_chunks_has_its_ids(level):
    texts = ("ja ja", " nein", " zwölf\n", "ja", " ja\n", "nein")
    vocabulary = VOCABULARIES[level]
    ids, starts = encode(Blocks(*texts), vocabulary, "line")
    assert ids == vocabulary.encode("".join(texts)).tolist()
    assert starts == [0] + [len(vocabulary.encode("".join(texts[:n]))) for n in (3, 5)]


def test_a_document_that_begins_in_blank_lines_begins_with_the_next_token():
    chunks = encode_source(
        Pieces("é ja\n", "\n", "\n", "ja é\n", "nein\n", n_lines=1),
        VOCABULARIES["words"],
        finder=DocumentFinder("file"),
        counts=SplitCounts(),
    )
    chunks = list(settle_documents(chunks))
    assert [len(chunk.ids) for chunk in chunks] == [2, 0, 0, 2, 1]
    assert [chunk.document_starts.tolist() for chunk in chunks] == [[0], [], [], [0], [0]]


def test_a_document_without_tokens_is_none():
    source = Pieces("ja\n\n\n\nja\n", "\n", "ja\n\n")
    ids, starts = encode(source, VOCABULARIES["words"], "line")
    assert len(ids) == 3
    assert starts == [0, 1, 2]


def test_unknown_symbols_become_the_one_for_them():
    vocabulary = Vocabulary("word", ("<unk>", "c"), unknown="<unk>")
    counts = SplitCounts()
    ids, _ = encode(Pieces("cat c\nhat c\n"), vocabulary, counts=counts)
    assert ids == [0, 1, 0, 1]
    assert counts.unknown == {"cat": 1, "hat": 1}


def make_documents(n_documents, seed):
    """Makes documents of 1 to 7 tokens, each token the number of its document, in odd chunks."""
    lengths = np.random.default_rng(seed).integers(1, 8, n_documents)
    ids = np.repeat(np.arange(n_documents), lengths)
    starts = np.cumsum(lengths) - lengths
    bounds = [0, 1, 13, 13, 47, len(ids)]
    return [
        TokenChunk(ids[low:high], starts[(starts >= low) & (starts < high)] - low)
        for low, high in itertools.pairwise(bounds)
    ], lengths


def shuffle(chunks, seed=(3,), n_shuffles=1):
    return [join([chunk]) for chunk in shuffle_documents(chunks, seed=seed, n_shuffles=n_shuffles)]


def test_documents_are_shuffled_whole():
    chunks, lengths = make_documents(53, seed=5)
    ((ids, starts),) = shuffle(chunks)
    documents = np.split(np.array(ids), starts[1:])
    assert starts[0] == 0
    order = [document[0] for document in documents]
    assert sorted(order) == list(range(53))
    assert order != list(range(53))
    for number, document in zip(order, documents, strict=True):
        np.testing.assert_array_equal(document, np.full(lengths[number], number))


def test_tokens_keep_their_order_within_a_document():
    ids, starts = np.arange(101), np.array([0, 7, 18, 31, 60])
    ((shuffled, new_starts),) = shuffle([TokenChunk(ids, starts)])
    documents = sorted(np.split(np.array(shuffled), new_starts[1:]), key=lambda one: one[0])
    np.testing.assert_array_equal(np.concatenate(documents), ids)
    assert sorted(document[0] for document in documents) == starts.tolist()


def test_each_shuffle_of_a_seed_has_an_order_of_its_own():
    chunks, _ = make_documents(53, seed=5)
    shuffles = shuffle(chunks, seed=(3, 1), n_shuffles=3)
    assert shuffles == shuffle(chunks, seed=(3, 1), n_shuffles=3)
    others = shuffle(chunks, seed=(3, 2), n_shuffles=3)
    assert len({tuple(ids) for ids, _ in shuffles + others}) == 6


@pytest.mark.parametrize("chunks", [[], [TokenChunk(np.zeros(0, np.int32))]])
def test_no_documents_may_be_shuffled(chunks):
    assert [ids for ids, _ in shuffle(chunks)] == [[]] * len(chunks)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a <eos> b\n<eos>\u3000<S> <eos>", {"<eos>": 3, "<S>": 1}),
        ("<eos>x y<eos>", {}),
        ("a b", {}),
    ],
)
def test_words_that_are_special_symbols_are_counted(text, expected):
    special = ("<eos>", "<S>", "<pad>")
    assert count_literal(text.encode(), special, lower_case=False) == expected


def test_words_that_become_special_symbols_in_lower_case_are_counted():
    assert count_literal(b"<EOS> <Eos>\n", ("<eos>", "<S>"), lower_case=True) == {"<eos>": 2}
