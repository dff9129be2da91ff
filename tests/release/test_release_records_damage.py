"""Damaged records of the 2019 release end as one line that says where."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf
from release_data import B, T, copy_form, read_all

from txl_tf.data import RecordError
from txl_tf.release.records import open_release_records


@pytest.fixture
def folder(tmp_path):
    """The text8 records in the GPUs' form, to be damaged."""
    return copy_form("text8", tmp_path / "text8", f"*tlen-{T}.[jt]*")


def find_file(folder):
    return folder / "tfrecords" / f"train.bsz-{B}.tlen-{T}.tfrecords"


def find_listing(folder):
    return folder / "tfrecords" / f"record_info-train.bsz-{B}.tlen-{T}.json"


def change_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_record(folder, index, change):
    """Writes the training file anew, with a record changed by a function of its payload."""
    path = find_file(folder)
    payloads = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    payloads[index] = change(payloads[index])
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)


def make_example(inputs, labels):
    return tf.train.Example(
        features=tf.train.Features(
            feature={
                name: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
                for name, values in (("inputs", inputs), ("labels", labels))
            }
        )
    ).SerializeToString()


def flip_byte(folder):
    content = bytearray(find_file(folder).read_bytes())
    content[len(content) // 2] ^= 1
    find_file(folder).write_bytes(content)


def cut_within_a_header(folder):
    content = find_file(folder).read_bytes()
    (length,) = np.frombuffer(content[:8], "<u8")
    find_file(folder).write_bytes(content[: int(length) + 16 + 3])


def drop_records(folder):
    path = find_file(folder)
    payloads = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads[:-3]:
            writer.write(payload)


def pretend_other_lanes(folder):
    """Calls the file of 4 lanes one of 2: twice the batches, which do not go on."""
    listing = find_listing(folder)
    change_json(listing, num_batch=626)
    listing.rename(listing.with_name(f"record_info-train.bsz-2.tlen-{T}.json"))


def rename_listing(folder, name):
    find_listing(folder).rename(find_listing(folder).with_name(name))


MIDDLE = 4 * 100 + 2
DAMAGES = {
    "missing": (lambda folder: find_file(folder).unlink(), r"train\.bsz.* is missing\."),
    "cut within a header": (cut_within_a_header, r"record 1: truncated or corrupt"),
    "records missing": (
        drop_records,
        r"holds 1249 records, which is not a whole number of batches of 4",
    ),
    "changed": (flip_byte, r"record \d+: corrupt, its checksum or length is wrong"),
    "other number of lanes": (
        pretend_other_lanes,
        r"record 2: does not continue record 0, which is 2 before it",
    ),
    "no example": (
        lambda folder: change_record(folder, MIDDLE, lambda payload: b"\x07" * 9),
        rf"record {MIDDLE}: corrupt, it is not a `tf\.train\.Example`",
    ),
    "a short record": (
        lambda folder: change_record(folder, MIDDLE, lambda payload: make_example([1], [2])),
        rf"record {MIDDLE}: expected {T} inputs, found 1\.",
    ),
    "other labels": (
        lambda folder: change_record(
            folder, MIDDLE, lambda payload: make_example([1] * T, [1] * 5 + [2] * (T - 5))
        ),
        rf"record {MIDDLE}: its labels are not its inputs shifted by one",
    ),
    "another text": (
        lambda folder: change_record(
            folder, MIDDLE, lambda payload: make_example([1] * T, [1] * T)
        ),
        rf"record {MIDDLE}: does not continue record {MIDDLE - B}, which is 4 before it",
    ),
    "an unknown id": (
        lambda folder: change_json(folder / "corpus-info.json", vocab_size=24),
        r"record \d+: holds the id 24, but the vocabulary has 24 symbols",
    ),
    "no listing": (
        lambda folder: find_listing(folder).write_text("{"),
        r"record_info-train.*` does not list records of the 2019 release: ",
    ),
    "a file elsewhere": (
        lambda folder: change_json(find_listing(folder), filenames=["../x"]),
        r"the files must be in the same folder, received \['\.\./x'\]",
    ),
    "no description": (
        lambda folder: (folder / "corpus-info.json").unlink(),
        r"tfrecords` and its parent folder have no corpus-info\.json",
    ),
    "a description without a size": (
        lambda folder: (folder / "corpus-info.json").write_text('{"dataset": "x", "cutoffs": []}'),
        r"corpus-info\.json` does not describe a corpus of the 2019 release: no key 'vocab_size'",
    ),
    "segments longer than the file": (
        lambda folder: rename_listing(folder, f"record_info-train.bsz-{B}.tlen-{10**30}.json"),
        rf"train\.bsz.*` is too small for records of {10**30} tokens",
    ),
    "cutoffs of something else": (
        lambda folder: change_json(folder / "corpus-info.json", cutoffs=[0, 7, 24]),
        r"does not describe a corpus of the 2019 release: cutoffs=\[0, 7, 24\]",
    ),
    "other number of batches": (
        lambda folder: change_json(find_listing(folder), num_batch=312),
        r"lists 312 batches of 4, but its files in .* hold 313",
    ),
    "a last record without inputs": (
        lambda folder: change_record(folder, -B, lambda payload: b""),
        rf"record 1248: expected 1 to {T} inputs, found 0\.",
    ),
    "a negative id": (
        lambda folder: change_record(
            folder, MIDDLE, lambda payload: make_example([-1] * T, [-1] * T)
        ),
        rf"record {MIDDLE}: holds the id -1\.",
    ),
    "a listing without a number": (
        lambda folder: change_json(find_listing(folder), num_batch="313"),
        r"does not list records of the 2019 release: .*num_batch='313'",
    ),
    "a description of too many symbols": (
        lambda folder: change_json(folder / "corpus-info.json", vocab_size=10**20, cutoffs=[]),
        r"does not describe a corpus of the 2019 release: .*vocab_size=100000000000000000000",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_named(folder, damage, message):
    damage(folder)
    with pytest.raises(RecordError, match=message) as error:
        read_all(open_release_records(folder), "train")
    assert "\n" not in str(error.value)


def test_a_folder_without_listings_is_refused(tmp_path):
    with pytest.raises(RecordError, match=r"holds no record_info-\*\.json of the 2019 release"):
        open_release_records(tmp_path)


@pytest.mark.parametrize("argument", ["folder", "corpus_info_path"])
def test_an_address_is_refused(folder, argument):
    arguments = {"folder": str(folder), argument: "gs://bucket/folder"}
    with pytest.raises(RecordError, match=re.escape("gs://bucket/folder`: records of the 2019")):
        open_release_records(**arguments)


def test_a_file_without_batches_has_no_tokens(folder):
    find_file(folder).write_bytes(b"")
    change_json(find_listing(folder), num_batch=0)
    assert open_release_records(folder).n_tokens("train") == 0
