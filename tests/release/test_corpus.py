import dataclasses

import numpy as np
import pickled_corpora
import pytest
from places import GOLDEN

import txl_tf
from txl_tf.data import Vocabulary, open_records
from txl_tf.errors import UserError
from txl_tf.preparation.options import PrepareOptions
from txl_tf.programs import prepare
from txl_tf.release import load_vocabulary, read_corpus

DATA = GOLDEN / "data"
NAMES = ("text8", "enwik8", "wt103", "ptb", "lm1b")
PICKLES = sorted(DATA.glob("*/cache.py*.pkl"))
TEXTS = {"text8": "text8/splits", "enwik8": "enwik8/splits"}  # others lie beside the pickle


def name_pickle(path):
    return f"{path.parent.name} {path.suffixes[0][1:]}"


@pytest.fixture(scope="module", params=PICKLES, ids=name_pickle)
def golden(request):
    """Returns the name of a golden data set, the path of its pickle, and what it holds."""
    return request.param.parent.name, request.param, read_corpus(request.param)


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory):
    """Returns the vocabulary that our own programs make of each golden data set."""
    made = {}
    for name in NAMES:
        data_dir = tmp_path_factory.mktemp(name)
        flags = [f"--raw_dir={DATA / TEXTS.get(name, name)}", f"--data_dir={data_dir}"]
        flags += ["--drop_newlines"] if name == "enwik8" else []
        assert prepare.main(["make_tfrecords.py", f"--dataset={name}", *flags]) == 0
        made[name] = open_records(data_dir).vocabulary
    return made


def read_text(name, split):
    """Returns the text of a split that the release encoded."""
    folder = DATA / TEXTS.get(name, name)
    corpus = PrepareOptions(name, "", folder, drop_newlines=name == "enwik8").make_corpus()
    source = corpus.locate(folder).sources[split]
    return b"".join(chunk.text for chunk in source.iterate_chunks())


def write(tmp_path, data):
    (tmp_path / "cache.pkl").write_bytes(data)
    return tmp_path / "cache.pkl"


def get_fault(path, reader=read_corpus, **options):
    with pytest.raises(UserError, match=r"^`.*` cannot be read: ") as error:
        reader(path, **options)
    assert type(error.value) is UserError
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix(f"`{path}` cannot be read: ")


def test_there_are_pickles_of_both_pythons():
    assert len(PICKLES) == 9  # Python 2 could not write lm1b's: its texts are no ASCII


def test_the_vocabulary_is_ours_but_for_the_order(golden, vocabularies):
    name, _, corpus = golden
    expected = vocabularies[name]
    assert sorted(corpus.vocabulary.symbols) == sorted(expected.symbols)
    assert dataclasses.replace(corpus.vocabulary, symbols=expected.symbols) == expected


def test_texts_have_the_ids_of_the_release(golden):
    name, _, corpus = golden
    assert set(corpus.splits) == ({"valid", "test"} | ({"train"} if name != "lm1b" else set()))
    for split, ids in corpus.splits.items():
        np.testing.assert_array_equal(corpus.vocabulary.encode(read_text(name, split)), ids)
        assert ids.dtype == np.int32


def test_the_name_and_the_order_of_symbols_are_those_of_ours(golden, vocabularies):
    name, path, corpus = golden
    assert corpus.dataset == name
    listed = (DATA / name / "vocab.txt").read_text().splitlines()
    assert (list(corpus.vocabulary.symbols) == listed) == (
        "py3" in path.name or name == "text8"  # the one set without equal counts
    )


def test_the_vocabulary_is_read_alone(golden):
    _, path, corpus = golden
    assert txl_tf.release.load_vocabulary(path) == corpus.vocabulary
    assert load_vocabulary(str(path)) == corpus.vocabulary


@pytest.mark.parametrize("dump", [pickled_corpora.dump_corpus, pickled_corpora.dump_python2_corpus])
def test_both_pythons_agree(dump, tmp_path):
    data = dump()
    corpus = read_corpus(write(tmp_path, data))
    assert (corpus.dataset, corpus.cutoffs) == ("wt103", (2, 5))
    assert corpus.vocabulary == Vocabulary(
        "word", pickled_corpora.SYMBOLS, unknown="<unk>", line_end="<eos>"
    )
    assert {split: list(ids) for split, ids in corpus.splits.items()} == pickled_corpora.IDS


def test_a_vocabulary_alone_is_read(tmp_path):
    path = write(tmp_path, pickled_corpora.dump_vocabulary())
    assert load_vocabulary(path).symbols == pickled_corpora.SYMBOLS
    assert get_fault(path) == "it does not hold a Corpus of the 2019 release"


@pytest.mark.parametrize("value", [["a.txt", "b.txt"], None])
def test_a_split_in_files_is_left_out(value, tmp_path):
    path = write(tmp_path, pickled_corpora.dump_corpus(corpus={"train": value}))
    assert list(read_corpus(path).splits) == ["valid", "test"]


def test_cutoffs_within_the_vocabulary_are_kept(tmp_path):
    path = write(tmp_path, pickled_corpora.dump_corpus(corpus={"cutoffs": [0, 3, 7, 20, 7]}))
    assert read_corpus(path).cutoffs == (3,)


def with_symbols(*symbols, **changes):
    ids = {symbol: i for i, symbol in enumerate(symbols)}
    return {"idx2sym": list(symbols), "sym2idx": ids, "special": []} | changes


def read_with(tmp_path, vocab, dataset=None, label=None, **corpus):
    splits = {split: np.zeros(3, np.int64) for split in pickled_corpora.IDS}
    corpus = splits | {"cutoffs": [], "dataset": label} | corpus
    data = pickled_corpora.dump_corpus(vocab=vocab, corpus=corpus)
    return read_corpus(write(tmp_path, data), dataset)


@pytest.mark.parametrize(
    ("symbols", "changes", "fields"),
    [
        (("32", "7", "255"), {}, {"level": "byte"}),
        (("a", "_", "é"), {}, {"level": "char", "space": "_"}),
        (("a", "_"), {"delimiter": b"", "unk_idx": 1}, {"level": "char", "unknown": "_"}),
        (("the", "a"), {"lower_case": True}, {"level": "word", "lower_case": True}),
        (
            ("<eos>", "<S>", "<UNK>", "<unk>"),
            {"special": ["<eos>"]},
            {"level": "word", "line_end": "<eos>", "unknown": "<unk>"},
        ),
        (
            ("<S>", "<unk>", "<UNK>", "<eos>"),
            {"unk_idx": 2},
            {"level": "word", "line_start": "<S>", "line_end": "<S>", "unknown": "<UNK>"},
        ),
    ],
)
def test_the_symbols_tell_the_kind(symbols, changes, fields, tmp_path):
    corpus = read_with(tmp_path, with_symbols(*symbols, **changes))
    assert corpus.vocabulary == Vocabulary(symbols=symbols, **fields)
    assert corpus.dataset is None


@pytest.mark.parametrize(("dataset", "level"), [("text8", "char"), ("enwik8", "byte")])
@pytest.mark.parametrize("given", [True, False])
def test_the_name_decides_what_the_symbols_leave_open(dataset, level, given, tmp_path):
    names = {"dataset": dataset, "label": "mine"} if given else {"label": dataset}
    corpus = read_with(tmp_path, with_symbols("1", "2", "3"), **names)
    assert corpus.vocabulary.level == level
    assert corpus.dataset == dataset


def test_a_name_that_the_symbols_contradict_is_dropped(tmp_path):
    data = pickled_corpora.dump_corpus(corpus={"dataset": "enwik8"})
    corpus = read_corpus(write(tmp_path, data))
    assert corpus.dataset is None
    assert corpus.vocabulary.line_end == "<eos>"


def test_a_name_that_is_given_goes_before_the_pickles(tmp_path):
    path = write(tmp_path, pickled_corpora.dump_corpus())
    assert read_corpus(path, dataset="wt2").dataset == "wt2"


IDS = {symbol: i for i, symbol in enumerate(pickled_corpora.SYMBOLS)}
BAD_VOCABULARIES = {
    "no symbols": ({"idx2sym": [], "sym2idx": {}}, "its vocabulary has 0 symbols, and ids of 0"),
    "other ids": (
        {"sym2idx": IDS | {"of": 6, "été": 5}},
        "symbol 5 of its vocabulary is not a text with this id",
    ),
    "a symbol of another encoding": (
        with_symbols("the", b"\xe9t\xe9"),
        r"b'\xe9t\xe9' is not UTF-8",
    ),
    "white space": (
        with_symbols("the", "New\nYork"),
        r"Each of `symbols` must be a word without white space. Received: 'New\nYork' as symbol 1",
    ),
    "another delimiter": (
        {"delimiter": "\t"},
        "its vocabulary does not split texts at white space",
    ),
    "words without a delimiter": (
        {"delimiter": ""},
        "Each of `symbols` must be one character. Received: '<eos>' as symbol 0",
    ),
    "an unknown beyond": ({"unk_idx": 7}, "`unk_idx` of its vocabulary is not an id"),
    "fewer ids": ({"sym2idx": {"a": 0}}, "its vocabulary has 7 symbols, and ids of 1"),
    "a number for a symbol": (
        {"idx2sym": [*pickled_corpora.SYMBOLS[:6], 6]},
        "symbol 6 of its vocabulary is not a text with this id",
    ),
    "no case": (
        {"lower_case": None},
        "`lower_case` of its vocabulary is not of type bool",
    ),
    "special symbols": (
        {"special": "<eos>"},
        "`special` of its vocabulary is not of type list",
    ),
}


@pytest.mark.parametrize(("changes", "reason"), BAD_VOCABULARIES.values(), ids=BAD_VOCABULARIES)
def test_a_vocabulary_that_is_none_is_refused(changes, reason, tmp_path):
    path = write(tmp_path, pickled_corpora.dump_corpus(vocab=changes))
    assert get_fault(path) == get_fault(path, load_vocabulary) == reason


BAD_CORPORA = {
    "no vocabulary": ({"vocab": None}, "it does not hold a Vocab of the 2019 release"),
    "ids beyond": ({"train": np.array([0, 7])}, "`train` holds ids outside of its 7 symbols"),
    "a table of ids": (
        {"test": np.zeros((2, 3), int)},
        "an array of 6 integers has another shape",
    ),
    "a list of ids": ({"test": [1, 2]}, "`test` is neither a row of ids nor a list of files"),
    "falling cutoffs": ({"cutoffs": [0, 5, 3, 7]}, "its cutoffs are not ascending"),
    "parts for cutoffs": ({"cutoffs": [0, 2.5, 7]}, "its cutoffs are not integers"),
    "a number for a name": ({"dataset": 3}, "a text was expected, not an object of type int"),
}


@pytest.mark.parametrize(("changes", "reason"), BAD_CORPORA.values(), ids=BAD_CORPORA)
def test_a_corpus_that_is_none_is_refused(changes, reason, tmp_path):
    assert get_fault(write(tmp_path, pickled_corpora.dump_corpus(corpus=changes))) == reason


def test_a_pickle_that_ends_early_is_refused(tmp_path):
    data = pickled_corpora.dump_python2_corpus()
    for size in range(1, len(data), 13):
        assert "it is damaged or not a pickle: " in get_fault(write(tmp_path, data[:size]))


@pytest.mark.parametrize("reader", [read_corpus, load_vocabulary])
def test_files_of_other_kinds_are_refused_in_one_line(reader, tmp_path):
    assert get_fault(tmp_path / "absent.pkl", reader) == "it is missing or not a regular file"
    assert get_fault(tmp_path, reader) == "it is missing or not a regular file"
    assert "of the 2019 release" in get_fault(write(tmp_path, b"]."), reader)
