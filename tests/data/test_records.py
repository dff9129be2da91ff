import json

import numpy as np
import pytest
import tensorflow as tf

from txl_tf.data.records import RecordError, RecordsInfo, Shard, choose_dtype, unpack_record
from txl_tf.data.vocabulary import Vocabulary

LETTERS = Vocabulary("char", tuple("abcde"))


def make_info(**changes):
    values = {
        "dataset": "letters",
        "vocabulary": LETTERS,
        "cutoffs": (2, 3),
        "tokens_per_record": 7,
        "splits": {"train": (Shard("train-0", 11, 43, "00"), Shard("train-1", 2, 18, "11"))},
    }
    return RecordsInfo(**{**values, **changes})


def test_json_gives_the_same_info():
    assert RecordsInfo.loads(make_info().dumps()) == make_info()


def test_json_states_the_tokens_of_a_split():
    assert json.loads(make_info().dumps())["splits"]["train"]["tokens"] == 13


@pytest.mark.parametrize(
    ("n_symbols", "name"),
    [(1, "uint8"), (256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")],
)
def test_ids_are_stored_in_the_smallest_type_that_holds_them(n_symbols, name):
    assert choose_dtype(n_symbols) == np.dtype(name).newbyteorder("<")


def test_another_format_version_is_named_with_ours():
    text = make_info().dumps().replace('"format_version": 1', '"format_version": 2')
    with pytest.raises(RecordError, match=r"have format version 2; .* reads format version 1"):
        RecordsInfo.loads(text)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("colour", "red", "expected the keys"),
        ("dtype", "uint32", "5 symbols are stored as uint8, received uint32"),
        ("tokens_per_record", 0, "`tokens_per_record` must be positive"),
        ("splits", {"train": {"tokens": 5, "shards": []}}, "do not hold its 5 tokens"),
        ("splits", {"train": {"tokens": 5}}, "no key 'shards'"),
        (
            "splits",
            {"a": {"tokens": 1, "shards": [vars(Shard("../b", 1, 17, "00"))]}},
            r"must lie in the folder, received '\.\./b'",
        ),
    ],
)
def test_json_against_the_rules_is_refused(key, value, message):
    data = {**json.loads(make_info().dumps()), key: value}
    with pytest.raises(RecordError, match=message):
        RecordsInfo.loads(json.dumps(data))


def test_a_broken_json_is_refused():
    with pytest.raises(RecordError, match="not the JSON of a data set"):
        RecordsInfo.loads("{")


@pytest.mark.parametrize("cutoffs", [(0, 2), (3, 3), (4, 2), (2, 5)])
def test_cutoffs_must_rise_within_the_vocabulary(cutoffs):
    with pytest.raises(ValueError, match=r"`cutoffs` must rise between 0 .* 5 symbols"):
        make_info(cutoffs=cutoffs)


def test_a_frame_of_another_length_has_no_payload():
    assert unpack_record(b"\x00" * 20, 5) is None


def test_a_whole_frame_has_its_payload(tmp_path):
    assert unpack_record(write_frame(tmp_path, b"hello"), 5) == b"hello"


def test_a_frame_that_states_another_length_has_no_payload(tmp_path):
    frame = write_frame(tmp_path, b"hello!")[:12] + write_frame(tmp_path, b"hello")[12:]
    assert unpack_record(frame, 5) is None


def write_frame(folder, payload):
    with tf.io.TFRecordWriter(str(folder / "one")) as writer:
        writer.write(payload)
    return (folder / "one").read_bytes()
