import hashlib
import json
import shutil
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_tf.data.records.format import RecordError
from txl_tf.data.records.reading import open_records, verify_records
from txl_tf.data.records.writing import TokenChunk, write_records
from txl_tf.data.text.vocabulary import Vocabulary

IDS = np.random.default_rng(3).integers(0, 311, 47)
WORDS = Vocabulary("word", tuple(f"{i:x}" for i in range(311)))
STARTS = {"train": [0, 5, 17, 18, 43], "valid": [2], "test": []}
TOKENS = {"train": IDS, "valid": IDS[:7], "test": IDS[5:36]}
FUZZ = settings(max_examples=301, deadline=None, derandomize=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data set of three splits and two files of documents."""
    folder = tmp_path_factory.mktemp("words")
    write_records(
        folder,
        dataset="words",
        vocabulary=WORDS,
        splits={
            split: [TokenChunk(ids, np.array(STARTS[split], np.int64))]
            for split, ids in TOKENS.items()
        },
        cutoffs=(101, 211),
        tokens_per_record=13,
        tokens_per_shard=13,
    )
    return folder


def read(folder):
    """Returns the tokens of each split, and its documents."""
    records = open_records(folder)
    splits = {split: records.split(split) for split in TOKENS}
    return {
        name: (split.read(0, len(split)).tolist(), split.document_starts.tolist())
        for name, split in splits.items()
    }


WHOLE = {split: (ids.tolist(), STARTS[split]) for split, ids in TOKENS.items()}
KINDS = ("flip", "replace", "insert", "delete", "truncate", "repeat", "swap")


def damage(data, kind, place, value):
    """Changes a byte or two of a file."""
    place %= len(data)
    head, byte, tail = data[:place], data[place], data[place + 1 :]
    return {
        "flip": head + bytes([byte ^ 1 << value % 8]) + tail,
        "replace": head + bytes([value]) + tail,
        "insert": head + bytes([value, byte]) + tail,
        "delete": head + tail,
        "truncate": head,
        "repeat": head + bytes([byte, byte]) + tail,
        "swap": head + tail[:1] + bytes([byte]) + tail[1:],
    }[kind]


VALUES = st.one_of(st.integers(0, 255), st.sampled_from(list(b"0123456789-.eE+'\",:{}[] \n")))


@FUZZ
@given(
    number=st.integers(0, 2**10),
    kind=st.sampled_from(KINDS),
    place=st.integers(0, 2**20),
    value=VALUES,
)
def test_damage_gives_an_error_or_the_tokens_as_they_were(folder, number, kind, place, value):
    paths = sorted(path for path in folder.iterdir() if path.name != "vocab.txt")
    # As many examples for records.json as for all the others.
    path = folder / "records.json" if number % 2 else paths[number // 2 % len(paths)]
    whole = path.read_bytes()
    try:
        path.write_bytes(damage(whole, kind, place, value))
        found = read(folder)
    except RecordError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert found == WHOLE
    finally:
        path.write_bytes(whole)


@FUZZ
@given(place=st.integers(0, 2**20), kind=st.sampled_from(KINDS), value=st.integers(0, 255))
def test_verify_finds_every_change_of_a_shard(folder, place, kind, value):
    paths = sorted([*folder.glob("*.tfrecords"), *folder.glob("*.zlib")])
    path = paths[place % len(paths)]
    whole = path.read_bytes()
    changed = damage(whole, kind, place // len(paths), value)
    if changed != whole:
        path.write_bytes(changed)
        try:
            with pytest.raises(RecordError, match=path.name):
                verify_records(folder)
        finally:
            path.write_bytes(whole)


def test_documents_unpack_to_no_more_than_the_tokens(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    content = json.loads((tmp_path / "records.json").read_text())
    documents = content["splits"]["train"]["documents"]
    packed = zlib.compress(bytes(2**26))
    (tmp_path / documents["file"]).write_bytes(packed)
    documents |= {"count": 2**23, "bytes": len(packed)}
    documents["sha256"] = hashlib.sha256(packed).hexdigest()
    (tmp_path / "records.json").write_text(json.dumps(content))
    split = open_records(tmp_path).split("train")
    tracemalloc.start()
    with pytest.raises(RecordError, match=r"corrupt, it is not the file that records\.json lists"):
        _ = split.document_starts
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**22


def test_shards_that_are_swapped_are_found_by_verify(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    first, second = sorted(tmp_path.glob("train-0000*"))[:2]
    first_data, second_data = first.read_bytes(), second.read_bytes()
    first.write_bytes(second_data)
    second.write_bytes(first_data)
    open_records(tmp_path)
    with pytest.raises(RecordError, match=rf"`{first}`: expected SHA-256 \w+, found \w+\."):
        verify_records(tmp_path)
