import json

import numpy as np
import pytest

from txl_tf.data.records.format import RecordError
from txl_tf.data.records.reading import open_records, read_ids, verify_records
from txl_tf.data.records.writing import write_records
from txl_tf.data.text.vocabulary import Vocabulary

N_SYMBOLS = 311
RECORD_TOKENS = 13
RECORD_BYTES = RECORD_TOKENS * 2 + 16
IDS = np.random.default_rng(3).integers(0, N_SYMBOLS, 199)
WORDS = Vocabulary("word", tuple(f"w{i}" for i in range(N_SYMBOLS)))


@pytest.fixture
def folder(tmp_path):
    """A data set of 16 records in 6 shards, the last record of 4 tokens."""
    write_records(
        tmp_path,
        dataset="words",
        vocabulary=WORDS,
        splits={"train": [IDS], "valid": [IDS[:17]]},
        cutoffs=(101, 211),
        tokens_per_record=RECORD_TOKENS,
        tokens_per_shard=3 * RECORD_TOKENS,
    )
    return tmp_path


def find_shard(folder, number):
    (path,) = folder.glob(f"train-{number:05d}-of-*")
    return path


def change_json(folder, **changes):
    path = folder / "records.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_an_opened_data_set_knows_what_was_written(folder):
    records = open_records(folder)
    assert records.dataset == "words"
    assert records.vocabulary == WORDS
    assert records.cutoffs == (101, 211)
    assert records.splits == ("train", "valid")
    assert records.n_tokens("train") == len(records.split("train")) == 199
    assert records.n_token == len(records.vocabulary)


def test_read_equals_the_slice_for_any_range(folder):
    split = open_records(folder).split("train")
    generator = np.random.default_rng(7)
    for start, stop in np.sort(generator.integers(0, len(IDS) + 1, (97, 2)), axis=1):
        np.testing.assert_array_equal(split.read(int(start), int(stop)), IDS[start:stop])


def test_an_address_is_read_through_tensorflow(folder):
    np.testing.assert_array_equal(read_ids(f"file://{folder}", "train"), IDS)
    verify_records(f"file://{folder}")


def test_another_format_version_is_refused_with_the_file(folder):
    change_json(folder, format_version=7)
    with pytest.raises(RecordError, match=r"records\.json`: .*version 7; .* version 2"):
        open_records(folder)


def test_a_missing_shard_is_named(folder):
    path = find_shard(folder, 1)
    path.unlink()
    with pytest.raises(RecordError, match=rf"`{path}` is missing"):
        open_records(folder)


@pytest.mark.parametrize("name", ["n_bytes", "n_documents", "n_tokens", "split"])
def test_a_split_that_does_not_exist_is_named_with_a_similar_one(folder, name):
    with pytest.raises(RecordError, match=r"no split 'trian'; .* Did you mean train\?"):
        getattr(open_records(folder), name)("trian")


@pytest.mark.parametrize("size", [0, 125, 127])
def test_a_shard_of_another_size_is_named(folder, size):
    path = find_shard(folder, 2)
    path.write_bytes((path.read_bytes() + b"x")[:size])
    with pytest.raises(RecordError, match=rf"`{path}` must have 126 bytes, and has {size}\. Make"):
        open_records(folder)


@pytest.mark.parametrize("place", [0, 9, 12, 39])
def test_a_flipped_byte_is_found_in_length_checksums_and_payload(folder, place):
    path = find_shard(folder, 1)
    data = bytearray(path.read_bytes())
    data[RECORD_BYTES + place] ^= 1
    path.write_bytes(data)
    split = open_records(folder).split("train")
    with pytest.raises(RecordError, match=rf"`{path}`, record 1: corrupt"):
        split.read(0, len(split))


def test_an_id_outside_the_vocabulary_is_named_with_its_record(folder):
    change_json(folder, vocabulary=Vocabulary("word", WORDS.symbols[:293]).to_json(), cutoffs=[])
    highest = int(np.flatnonzero(IDS >= 293)[0])
    split = open_records(folder).split("train")
    with pytest.raises(RecordError, match=r", record \d+: holds the id \d+, .* has 293 symbols"):
        split.read(highest, highest + 1)
