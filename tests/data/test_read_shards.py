import itertools

import numpy as np
import pytest

from txl_tf.data.records.reading import read_shards

SHARDS = [np.arange(0, 5), np.arange(5, 5), np.arange(5, 16), np.arange(16, 17)]  # one is empty
ENDS = [5, 5, 16, 17]


def read(start, stop):
    """Returns the tokens, and the indices of the shards that were read."""
    indices = []

    def read_shard(index, low, high, out):
        indices.append(index)
        out[:] = SHARDS[index][low:high]

    return read_shards(ENDS, start, stop, split="train", read_shard=read_shard), indices


def test_any_range_is_read():
    for start, stop in itertools.combinations_with_replacement(range(18), 2):
        np.testing.assert_array_equal(read(start, stop)[0], np.arange(start, stop))


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, 17, [0, 2, 3]), (4, 6, [0, 2]), (5, 16, [2]), (16, 17, [3]), (5, 5, []), (17, 17, [])],
)
def test_shards_without_a_wanted_token_are_not_read(start, stop, expected):
    assert read(start, stop)[1] == expected


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 18)])
def test_positions_outside_the_split_are_refused(start, stop):
    with pytest.raises(
        ValueError, match=rf"within the 17 tokens of 'train'. Received: start={start}, stop={stop}"
    ):
        read(start, stop)
