import json

import numpy as np
import pytest
import tensorflow as tf

from txl_tf.data.records.format import (
    DocumentsFile,
    RecordError,
    RecordsInfo,
    Shard,
    count_id_bytes,
    pack_ids,
    pack_record,
    unpack_ids,
    unpack_record,
)
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError

LETTERS = Vocabulary("char", tuple("abcde"))


def make_info(**changes):
    values = {
        "dataset": "letters",
        "vocabulary": LETTERS,
        "cutoffs": (2, 3),
        "tokens_per_record": 7,
        "splits": {"train": (Shard("train-0", 11, 43, "00"), Shard("train-1", 2, 18, "11"))},
        "documents": {"train": DocumentsFile("train-documents", 3, 19, "22")},
        "made_from": {"arguments": {"level": "char"}},
    }
    return RecordsInfo(**{**values, **changes})


def test_json_gives_the_same_info():
    assert RecordsInfo.loads(json.dumps(make_info().to_json())) == make_info()


ID_BYTES = [(1, 1), (256, 1), (257, 2), (2**16, 2), (2**16 + 1, 3), (2**24, 3), (2**24 + 1, 4)]


@pytest.mark.parametrize(("n_symbols", "n_bytes"), ID_BYTES)
def test_unpacking_undoes_packing_in_as_few_bytes_as_needed(n_symbols, n_bytes):
    assert count_id_bytes(n_symbols) == n_bytes
    ids = np.array([0, n_symbols // 3, n_symbols - 1], np.int32)
    unpacked = unpack_ids(pack_ids(ids, n_bytes).tobytes(), n_bytes)
    assert unpacked.dtype == np.int32
    np.testing.assert_array_equal(unpacked, ids)


def test_ids_of_any_integers_and_strides_are_packed_lowest_byte_first():
    ids = np.arange(23, dtype=np.uint8)[::-3]
    np.testing.assert_array_equal(unpack_ids(pack_ids(ids, 2).tobytes(), 2), ids)
    assert pack_ids(np.array([0x030201, 0x050000]), 3).tobytes() == b"\1\2\3\0\0\5"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("color", "red", "expected 'color' to be None, received 'red'"),
        ("bytes_per_token", 3, "expected 'bytes_per_token' to be 1, received 3"),
        ("tokens_per_record", 0, "`tokens_per_record` must be an integer >= 1"),
        ("tokens_per_record", 1e3, "`tokens_per_record` must be an integer >= 1"),
        ("cutoffs", [2.0, 3], r"2\.0 is not a number of tokens or bytes"),
        ("vocabulary", {"level": "char"}, "must have the keys 'level' and 'symbols'"),
        ("splits", {"train": {"tokens": 5, "shards": []}}, "expected 'splits' to be "),
        ("splits", {"train": {"tokens": 5}}, "no key 'shards'"),
        (
            "splits",
            {"a": {"tokens": 1, "shards": [vars(Shard("../b", 1, 17, "00"))]}},
            r"must be in the folder itself, received '\.\./b'",
        ),
    ],
)
def test_json_against_the_rules_is_refused(key, value, message):
    data = {**make_info().to_json(), key: value}
    with pytest.raises(RecordError, match=message):
        RecordsInfo.loads(json.dumps(data))


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_a_text_that_is_no_json_is_refused(text):
    with pytest.raises(RecordError, match="not the JSON of a data set"):
        RecordsInfo.loads(text)


@pytest.mark.parametrize("cutoffs", [(3, 3), (2, 5)])
def test_cutoffs_must_rise_within_the_vocabulary(cutoffs):
    with pytest.raises(UserError, match=r"`cutoffs` must be ascending, above 0 .* 5 symbols"):
        make_info(cutoffs=cutoffs)


@pytest.mark.parametrize("payload", [b"", bytes(range(251))])
def test_a_record_has_the_frame_that_tensorflow_writes(tmp_path, payload):
    assert pack_record(payload) == write_frame(tmp_path, payload)


def test_a_frame_that_states_another_length_has_no_payload(tmp_path):
    frame = write_frame(tmp_path, b"hello!")[:12] + write_frame(tmp_path, b"hello")[12:]
    assert unpack_record(frame, 5) is None
    assert unpack_record(write_frame(tmp_path, b"hello"), 5) == b"hello"


def write_frame(folder, payload):
    with tf.io.TFRecordWriter(str(folder / "one")) as writer:
        writer.write(payload)
    return (folder / "one").read_bytes()
