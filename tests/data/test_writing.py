import errno

import numpy as np
import pytest
import tensorflow as tf

from txl_tf.data.records.format import RecordError
from txl_tf.data.records.reading import open_records, read_ids, verify_records
from txl_tf.data.records.writing import write_records
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import StorageError, UserError

LETTERS = Vocabulary("char", tuple("abcdefg"))
IDS = np.random.default_rng(5).integers(0, 7, 101)


def write(folder, chunks=(IDS,), **changes):
    values = {
        "dataset": "letters",
        "vocabulary": LETTERS,
        "splits": {"train": chunks, "valid": (IDS[:13],)},
        "tokens_per_record": 11,
        "tokens_per_shard": 37,
    }
    return write_records(folder, **{**values, **changes})


def list_files(folder):
    return sorted(path.name for path in folder.iterdir())


def interrupt(error):
    """Yields enough for some records, then fails as a reader of raw files may."""
    yield IDS[:83] * 0
    raise error


def test_a_data_set_that_another_run_wrote_meanwhile_is_kept(tmp_path):
    def write_meanwhile():
        yield IDS
        write(tmp_path, dataset="other")

    with pytest.raises(RecordError, match="already holds a data set"):
        write(tmp_path, chunks=write_meanwhile())
    with pytest.raises(RecordError, match=r"already holds a data set\. .*`overwrite=True`"):
        write(tmp_path)
    assert open_records(tmp_path).dataset == "other"
    verify_records(tmp_path)


def test_shards_are_tfrecords_of_raw_ids_and_hold_whole_records(tmp_path):
    info = write(tmp_path)
    files = [str(tmp_path / shard.file) for shard in info.splits["train"]]
    ids = [tf.io.decode_raw(record, tf.uint8).numpy() for record in tf.data.TFRecordDataset(files)]
    assert [len(record) for record in ids] == [11] * 9 + [2]
    assert [shard.tokens for shard in info.splits["train"]] == [33, 33, 33, 2]
    assert [file.rpartition("/")[2][:21] for file in files] == [
        f"train-0000{i}-of-00004-" for i in range(4)
    ]
    np.testing.assert_array_equal(np.concatenate(ids), IDS)


def test_ids_of_large_vocabularies_are_little_endian(tmp_path):
    n_symbols, n_bytes = 65537, 3
    vocabulary = Vocabulary("word", tuple(map(str, range(n_symbols))))
    ids = np.array([0, 1, 256, n_symbols - 1])
    info = write_records(tmp_path, dataset="words", vocabulary=vocabulary, splits={"train": [ids]})
    (record,) = tf.data.TFRecordDataset(str(tmp_path / info.splits["train"][0].file))
    digits = tf.reshape(tf.io.decode_raw(record, tf.uint8), [-1, n_bytes]).numpy().astype(int)
    np.testing.assert_array_equal(digits @ 256 ** np.arange(n_bytes), ids)
    np.testing.assert_array_equal(read_ids(tmp_path, "train"), ids)


def test_an_empty_split_has_no_shard(tmp_path):
    assert write(tmp_path, [IDS[:0]]).splits["train"] == ()
    assert read_ids(tmp_path, "train").shape == (0,)


def test_vocab_txt_has_one_symbol_a_line(tmp_path):
    write(tmp_path, vocabulary=Vocabulary("char", ("a", "\n", " ", *"bcde")))
    assert (tmp_path / "vocab.txt").read_text() == "a\n\\n\n \nb\nc\nd\ne\n"


def test_overwriting_leaves_only_files_that_are_not_of_the_older_set(tmp_path):
    write(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    info = write(tmp_path, [IDS[:5]], overwrite=True)
    shards = [shard.file for split in info.splits.values() for shard in split]
    assert list_files(tmp_path) == sorted([*shards, "notes.txt", "records.json", "vocab.txt"])
    assert (tmp_path / "notes.txt").read_text() == "mine"
    np.testing.assert_array_equal(read_ids(tmp_path, "train"), IDS[:5])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "disk full")])
def test_an_interrupted_write_leaves_the_older_data_set_whole(tmp_path, error):
    write(tmp_path)
    before = list_files(tmp_path)
    with pytest.raises(type(error)):
        write(tmp_path, interrupt(error), overwrite=True)
    assert list_files(tmp_path) == before
    verify_records(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def fail(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("txl_tf.data.records.writing._HashedFile.write", fail)
    with pytest.raises(
        UserError, match=rf"`{tmp_path}` cannot be written: No space left on device"
    ):
        write(tmp_path)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FileNotFoundError(2, "No such file or directory", "a.txt"), r"'a\.txt'$"),
        (StorageError("`gs://b/a.txt`: not readable"), r"^`gs://b/a\.txt`: not readable$"),
    ],
    ids=["local", "remote"],
)
def test_a_text_that_cannot_be_read_meanwhile_is_named_itself(tmp_path, error, message):
    with pytest.raises(type(error), match=message):
        write(tmp_path, interrupt(error))


def test_a_storage_that_fails_in_the_folder_is_explained_by_the_folder(tmp_path):
    error = StorageError(f"`{tmp_path}/vocab.txt`: disk full")
    with pytest.raises(StorageError, match=f"^`{tmp_path}` cannot be written: .*disk full$"):
        write(tmp_path, interrupt(error))


def test_integers_of_numpy_become_json(tmp_path):
    write(tmp_path, cutoffs=np.array([2, 5]), tokens_per_record=np.int64(8))
    assert open_records(tmp_path).cutoffs == (2, 5)


def test_an_id_outside_the_vocabulary_is_named_with_its_place(tmp_path):
    with pytest.raises(ValueError, match=r"below 7.* 'train': id 7 at token 102"):
        write(tmp_path, [IDS, np.array([0, 7])])


@pytest.mark.parametrize("chunk", [np.zeros((2, 3), int), np.zeros(3)])
def test_chunks_must_be_rows_of_integers(tmp_path, chunk):
    with pytest.raises(ValueError, match="`splits` must yield rows of integers"):
        write(tmp_path, [chunk])


def test_the_name_of_a_split_cannot_leave_the_folder(tmp_path):
    with pytest.raises(ValueError, match=r"must be an identifier. Received: '\.\./train'"):
        write(tmp_path, splits={"../train": [IDS]})


def test_the_same_data_gives_the_same_bytes(tmp_path):
    write(tmp_path / "a")
    write(tmp_path / "b")
    assert list_files(tmp_path / "a") == list_files(tmp_path / "b")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


@pytest.mark.parametrize(
    "argument", [{"cutoffs": (2.7,)}, {"tokens_per_record": 8.5}, {"tokens_per_shard": -1}]
)
def test_sizes_must_be_positive_integers(tmp_path, argument):
    with pytest.raises(ValueError, match="must be an integer >= 1"):
        write(tmp_path, **argument)
