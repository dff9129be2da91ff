import numpy as np
import pytest

from txl_tf.data.reading import read_shards

SHARDS = [np.arange(0, 5), np.arange(5, 5), np.arange(5, 16), np.arange(16, 17)]  # one is empty
ENDS = [5, 5, 16, 17]


def read(start, stop, ends=ENDS):
    """Returns the tokens, and the indices of the shards that were read."""
    indices = []

    def read_shard(index, low, high, out):
        indices.append(index)
        out[:] = SHARDS[index][low:high]

    return read_shards(ends, start, stop, split="train", read_shard=read_shard), indices


@pytest.mark.parametrize("start", range(18))
def test_any_range_is_read(start):
    for stop in range(start, 18):
        np.testing.assert_array_equal(read(start, stop)[0], np.arange(start, stop))


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, 17, [0, 2, 3]), (4, 6, [0, 2]), (5, 16, [2]), (16, 17, [3]), (5, 5, []), (17, 17, [])],
)
def test_shards_without_a_wanted_token_are_not_read(start, stop, expected):
    assert read(start, stop)[1] == expected


def test_ids_are_int32():
    assert read(3, 7)[0].dtype == np.int32


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 18)])
def test_positions_outside_the_split_are_refused(start, stop):
    with pytest.raises(
        ValueError, match=rf"within the 17 tokens of 'train'. Received: start={start}, stop={stop}"
    ):
        read(start, stop)


def test_a_split_without_shards_has_no_tokens():
    assert len(read(0, 0, ends=[])[0]) == 0
    with pytest.raises(ValueError, match=r"within the 0 tokens of 'train'"):
        read(0, 1, ends=[])
