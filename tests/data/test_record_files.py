import zlib

import numpy as np
import pytest

from txl_tf.data import record_files
from txl_tf.data.record_files import DocumentsPacker, cut_payloads


@pytest.mark.parametrize("n_parts", [1, 3, 11])
def test_packed_boundaries_do_not_depend_on_the_chunks(n_parts, monkeypatch):
    monkeypatch.setattr(record_files, "_GAPS_PER_BLOCK", 13)
    starts = np.cumsum(np.random.default_rng(0).integers(1, 97, 101))

    def pack(parts):
        packer = DocumentsPacker()
        packed = b"".join([packer.pack(part) for part in parts] + [packer.finish()])
        assert packer.count == 101
        return packed

    packed = pack(np.array_split(starts, n_parts))
    assert packed == pack([starts])
    gaps = np.frombuffer(zlib.decompress(packed), "<u8")
    assert np.array_equal(np.cumsum(gaps), starts)


@pytest.mark.parametrize("n_parts", [1, 3, 11])
def test_payloads_do_not_depend_on_the_chunks(n_parts):
    packed = np.random.default_rng(0).integers(0, 256, (61, 2), np.uint8)
    payloads = list(cut_payloads(np.array_split(packed, n_parts), 7))
    assert [len(payload) for payload in payloads] == [14] * 8 + [10]
    assert b"".join(payloads) == packed.tobytes()
