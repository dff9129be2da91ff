import hashlib
import zlib

import numpy as np
import pytest

from txl_tf.data.reading import open_records
from txl_tf.data.records import RecordError
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.data.writing import TokenChunk, write_records

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


@pytest.mark.parametrize("size", [1, 7, 11, 211, N_TOKENS])
def test_documents_come_back_whatever_the_chunks(tmp_path, size):
    write(tmp_path, cut(size))
    starts = open_records(tmp_path).split("train").document_starts
    assert starts.dtype == np.int64
    np.testing.assert_array_equal(starts, STARTS)


@pytest.mark.parametrize("size", [1, 7, 211])
def test_chunks_change_no_byte_of_the_shards(tmp_path, size):
    assert write(tmp_path / "a", cut(size)).splits == write(tmp_path / "b", cut(N_TOKENS)).splits


def test_the_number_of_documents_is_known_without_reading_them(tmp_path):
    write(tmp_path, cut(7))
    assert open_records(tmp_path).n_documents("train") == len(STARTS)


def test_the_bytes_of_a_split_are_those_of_its_shards(tmp_path):
    write(tmp_path, cut(7))
    sizes = [path.stat().st_size for path in tmp_path.glob("*.tfrecords")]
    assert open_records(tmp_path).n_bytes("train") == sum(sizes)


def test_each_split_has_its_own_documents(tmp_path):
    splits = {"train": cut(7), "valid": [TokenChunk(IDS[:5], np.array([0, 3]))], "test": [IDS]}
    write(tmp_path, None, splits=splits)
    records = open_records(tmp_path)
    np.testing.assert_array_equal(records.split("train").document_starts, STARTS)
    np.testing.assert_array_equal(records.split("valid").document_starts, [0, 3])
    assert records.split("test").document_starts.shape == (0,)


def test_without_documents_there_is_no_file_of_them(tmp_path):
    info = write(tmp_path, [IDS])
    assert info.documents == {}
    assert not list(tmp_path.glob("*.zlib"))
    assert open_records(tmp_path).n_documents("train") == 0


def test_documents_are_stored_as_compressed_gaps(tmp_path):
    documents = write(tmp_path, cut(7)).documents["train"]
    data = (tmp_path / documents.file).read_bytes()
    gaps = np.frombuffer(zlib.decompress(data), "<u8")
    np.testing.assert_array_equal(gaps, np.diff(STARTS, prepend=0))


@pytest.mark.parametrize("kind", ["documents", "shard"])
def test_a_file_is_listed_with_its_size_and_hash_and_named_after_it(tmp_path, kind):
    info = write(tmp_path, cut(7))
    file = info.documents["train"] if kind == "documents" else info.splits["train"][1]
    data = (tmp_path / file.file).read_bytes()
    assert file.bytes == len(data)
    assert file.sha256 == hashlib.sha256(data).hexdigest()
    name = {"documents": "train-documents-{}.zlib", "shard": "train-00001-of-00004-{}.tfrecords"}
    assert file.file == name[kind].format(file.sha256[:8])


def test_the_shards_of_other_tokens_have_other_names(tmp_path):
    old, new = (write(tmp_path / str(i), [IDS + i], vocabulary=LARGE).splits for i in range(2))
    assert not {shard.file for shard in old["train"]} & {shard.file for shard in new["train"]}


LARGE = Vocabulary("word", tuple(f"w{i}" for i in range(2**16 + 1)))


def test_ids_of_three_bytes_come_back(tmp_path):
    ids = np.random.default_rng(11).integers(0, len(LARGE), 211)
    ids[:3] = 0, 2**16, 255
    info = write(tmp_path, [ids], vocabulary=LARGE)
    assert info.bytes_per_token == 3
    assert sum(shard.bytes for shard in info.splits["train"]) == 211 * 3 + 20 * 16
    found = open_records(tmp_path).split("train").read(0, 211)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, ids)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32, np.int64])
def test_chunks_of_any_integers_give_the_same_shards(tmp_path, dtype):
    one = write(tmp_path / "a", [IDS.astype(dtype)])
    assert one.splits == write(tmp_path / "b", [IDS]).splits


@pytest.mark.parametrize("starts", [[3, 3], [5, 2], [-1], [7], [0, 8]])
def test_documents_must_rise_within_their_chunk(tmp_path, starts):
    with pytest.raises(ValueError, match=r"within the chunk\. Received: \[.*for 7 tokens"):
        write(tmp_path, [TokenChunk(IDS[:7], np.array(starts))])


def test_an_empty_chunk_changes_nothing(tmp_path):
    chunks = [chunk for one in cut(101) for chunk in (TokenChunk(IDS[:0]), one)]
    one, other = write(tmp_path / "a", chunks), write(tmp_path / "b", cut(101))
    assert (one.splits, one.documents) == (other.splits, other.documents)


def damage(path, kind):
    data = path.read_bytes()
    if kind == "flip":
        data = data[:9] + bytes([data[9] ^ 1]) + data[10:]
    elif kind == "other":
        data = zlib.compress(bytes(len(STARTS) * 8), 0)[: len(data)]
    elif kind == "zeros":
        data = bytes(len(data))
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["flip", "other", "zeros"])
def test_damaged_documents_are_found(tmp_path, kind):
    write(tmp_path, cut(7))
    (path,) = tmp_path.glob("*.zlib")
    damage(path, kind)
    split = open_records(tmp_path).split("train")
    with pytest.raises(RecordError, match=rf"`{path}`: corrupt, "):
        split.document_starts  # noqa: B018


def test_documents_of_another_data_set_are_found(tmp_path):
    write(tmp_path, cut(7))
    (path,) = tmp_path.glob("*.zlib")
    size = path.stat().st_size
    for level in range(10):
        other = zlib.compress(np.ones(len(STARTS), "<u8").tobytes(), level)
        if len(other) <= size:
            break
    path.write_bytes(other + bytes(size - len(other)))
    with pytest.raises(RecordError, match=r"corrupt, it is not the file that records\.json lists"):
        open_records(tmp_path).split("train").document_starts  # noqa: B018


def test_missing_documents_are_named(tmp_path):
    write(tmp_path, cut(7))
    (path,) = tmp_path.glob("*.zlib")
    path.unlink()
    with pytest.raises(RecordError, match=rf"`{path}` is missing, but records\.json lists it"):
        open_records(tmp_path)


def test_truncated_documents_are_named_without_a_record(tmp_path):
    write(tmp_path, cut(7))
    (path,) = tmp_path.glob("*.zlib")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        RecordError, match=rf"`{path}` is truncated: expected \d+ bytes, found \d+\.$"
    ):
        open_records(tmp_path)


def test_overwriting_removes_the_older_documents(tmp_path):
    write(tmp_path, cut(7))
    write(tmp_path, [IDS], overwrite=True)
    assert not list(tmp_path.glob("*.zlib"))
    assert open_records(tmp_path).split("train").document_starts.shape == (0,)


def test_documents_at_an_address_are_read_through_tensorflow(tmp_path):
    write(tmp_path, cut(7))
    split = open_records(f"file://{tmp_path}").split("train")
    np.testing.assert_array_equal(split.document_starts, STARTS)
