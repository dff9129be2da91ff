"""From a server to records, by the command that a user types."""

import io
import tarfile
import zipfile
from dataclasses import replace

import pytest

from txl_tf.data import open_records, read_ids
from txl_tf.data.download import PublishedFile
from txl_tf.preparation.corpora import CORPORA
from txl_tf.programs import prepare

TEXTS = {"train": " a b a\n", "valid": " b\n", "test": " a\n"}
N_TOKENS = {"train": 4, "valid": 2, "test": 2}


def make_zip(files):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return data.getvalue()


def make_tgz(files):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return data.getvalue()


def name_files(pattern):
    return {pattern.format(split): text for split, text in TEXTS.items()}


CASES = {
    "wt2": ("wikitext-2-v1.zip", make_zip(name_files("wikitext-2/wiki.{}.tokens"))),
    "ptb": ("simple-examples.tgz", make_tgz(name_files("./simple-examples/data/ptb.{}.txt"))),
}


def call(dataset, folder):
    flags = [f"--dataset={dataset}", f"--raw_dir={folder / 'raw'}", f"--data_dir={folder / 'data'}"]
    return prepare.main(["make_tfrecords.py", *flags])


@pytest.mark.parametrize("dataset", CASES)
def test_a_public_set_is_downloaded_and_made_once(dataset, server, serve, tmp_path, monkeypatch):
    name, data = CASES[dataset]
    url = serve(f"/{name}", data)
    published = replace(CORPORA[dataset], published=(PublishedFile(name, (url,)),))
    monkeypatch.setitem(CORPORA, dataset, published)
    assert call(dataset, tmp_path) == 0
    for split, n_tokens in N_TOKENS.items():
        assert len(read_ids(tmp_path / "data", split)) == n_tokens
    assert call(dataset, tmp_path) == 0
    assert len(server.requested) == 1


def test_shakespeare_is_one_file_whose_end_validates(serve, tmp_path, monkeypatch):
    text = "\nFirst Citizen:\nWe are all.\n\n\nLeontes:\nNo.\n"
    published = PublishedFile("input.txt", (serve("/input.txt", text.encode()),))
    corpus = replace(CORPORA["shakespeare"], published=(published,), held_out=(15, 0), counts={})
    monkeypatch.setitem(CORPORA, "shakespeare", corpus)
    assert call("shakespeare", tmp_path) == 0
    records = open_records(tmp_path / "data")
    assert list(records.splits) == ["train", "valid"]
    found = (
        records.vocabulary.decode(read_ids(tmp_path / "data", name)) for name in records.splits
    )
    assert tuple(found) == (text[:-15], text[-15:])  # line breaks at the ends, too


def test_lm1b_takes_its_vocabulary_and_heldout_file_from_the_network(serve, tmp_path, monkeypatch):
    folder = "1-billion-word-language-modeling-benchmark-r13output"
    files = {
        f"{folder}/training-monolingual.tokenized.shuffled/news.en-00001-of-00100": "a b\nb\n",
        f"{folder}/heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050": "a c\n",
        f"{folder}/heldout-monolingual.tokenized.shuffled/news.en.heldout-00001-of-00050": "b\n",
        f"{folder}/README": "read me\n",
    }
    found = (
        PublishedFile("lm1b.tar.gz", (serve("/lm1b", make_tgz(files)),)),
        PublishedFile("1b_word_vocab.txt", (serve("/v", b"<S> 9\n</S> 9\n<UNK> 9\na 5\nb 4\n"),)),
    )
    monkeypatch.setitem(CORPORA, "lm1b", replace(CORPORA["lm1b"], published=found))
    assert call("lm1b", tmp_path) == 0
    assert open_records(tmp_path / "data").vocabulary.symbols[2:] == ("<UNK>", "a", "b")
    assert read_ids(tmp_path / "data", "valid").tolist() == [0, 3, 2, 0]


def test_a_damaged_archive_is_named(tmp_path, capsys):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "wikitext-2-v1.zip").write_bytes(b"no archive")
    assert call("wt2", tmp_path) == 1
    error = capsys.readouterr().err
    assert "wikitext-2-v1.zip` is damaged: File is not a zip file" in error
