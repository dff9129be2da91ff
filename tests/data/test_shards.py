import hashlib

import numpy as np
import pytest

from txl_tf.data.records.format import RecordError
from txl_tf.data.records.reading import open_records
from txl_tf.data.records.writing import TokenChunk, write_records
from txl_tf.data.text.vocabulary import Vocabulary

LETTERS = Vocabulary("char", tuple("abcdefg"))
N_TOKENS = 1009
IDS = np.random.default_rng(5).integers(0, 7, N_TOKENS)
STARTS = np.unique(np.random.default_rng(7).integers(0, N_TOKENS, 97))


def cut(size):
    """Returns the tokens with their documents, in chunks of a size."""
    return [
        TokenChunk(IDS[low : low + size], STARTS[(low <= STARTS) & (low + size > STARTS)] - low)
        for low in range(0, N_TOKENS, size)
    ]


def write(folder, chunks, **changes):
    values = {
        "dataset": "letters",
        "vocabulary": LETTERS,
        "splits": {"train": chunks},
        "tokens_per_record": 11,
        "tokens_per_shard": 331,
    }
    return write_records(folder, **{**values, **changes})


@pytest.mark.parametrize("size", [1, 7, 211, N_TOKENS])
def test_documents_come_back_whatever_the_chunks(tmp_path, size):
    splits = write(tmp_path / "a", [TokenChunk(IDS[:0]), *cut(size)]).splits
    assert splits == write(tmp_path / "b", cut(101)).splits
    records = open_records(f"file://{tmp_path}/a")
    starts = records.split("train").document_starts
    assert records.n_documents("train") == len(starts)
    assert starts.dtype == np.int64
    np.testing.assert_array_equal(starts, STARTS)


def test_each_split_has_its_own_documents(tmp_path):
    splits = {"train": cut(7), "valid": [TokenChunk(IDS[:5], np.array([0, 3]))], "test": [IDS]}
    write(tmp_path, None, splits=splits)
    records = open_records(tmp_path)
    np.testing.assert_array_equal(records.split("train").document_starts, STARTS)
    np.testing.assert_array_equal(records.split("valid").document_starts, [0, 3])
    assert records.split("test").document_starts.shape == (0,)


@pytest.mark.parametrize("kind", ["documents", "shard"])
def test_a_file_is_listed_with_its_size_and_named_after_its_hash(tmp_path, kind):
    info = write(tmp_path, cut(7))
    file = info.documents["train"] if kind == "documents" else info.splits["train"][1]
    data = (tmp_path / file.file).read_bytes()
    assert file.bytes == len(data)
    assert file.sha256 == hashlib.sha256(data).hexdigest()
    name = {"documents": "train-documents-{}.zlib", "shard": "train-00001-of-00004-{}.tfrecords"}
    assert file.file == name[kind].format(file.sha256[:8])


@pytest.mark.parametrize("starts", [[3, 3], [-1], [7]])
def test_documents_must_rise_within_their_chunk(tmp_path, starts):
    with pytest.raises(ValueError, match=r"within the chunk\. Received: \[.*for 7 tokens"):
        write(tmp_path, [TokenChunk(IDS[:7], np.array(starts))])


def test_damaged_documents_are_found(tmp_path):
    write(tmp_path, cut(7))
    (path,) = tmp_path.glob("*.zlib")
    path.write_bytes(bytes(path.stat().st_size))
    split = open_records(tmp_path).split("train")
    with pytest.raises(RecordError, match=rf"`{path}`: corrupt, "):
        split.document_starts  # noqa: B018


def test_overwriting_removes_the_older_documents(tmp_path):
    write(tmp_path, cut(7))
    write(tmp_path, [IDS], overwrite=True)
    assert not list(tmp_path.glob("*.zlib"))
    assert open_records(tmp_path).split("train").document_starts.shape == (0,)
