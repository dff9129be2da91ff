"""Pickles that were changed at random are read, or refused in one line; nothing else happens."""

import pickletools
import sys

import numpy as np
import pickled_corpora
import pytest
from tables import slow_after

from txl_tf.errors import UserError
from txl_tf.release import Corpus, load_vocabulary, read_corpus

BASES = [
    *(pickled_corpora.dump_corpus(protocol) for protocol in range(6)),
    pickled_corpora.dump_vocabulary(0),
    pickled_corpora.dump_python2_corpus(),
]
CUTS = [[position for _, _, position in pickletools.genops(base)] for base in BASES]
OPCODES = [operation.code.encode("latin-1") for operation in pickletools.opcodes]
HOSTILE = [
    b"cos\nsystem\nS'touch made'\n\x85R",
    b"c__builtin__\neval\nU\x011\x85R",
    b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x06\x00\x00\x00latin1\x86R",
    b"r\xff\xff\xff\x7f",
    b"\x8b\xff\xff\xff\x7f",
    b"P1\n",
    b"\x85" * 300,
    b"I" + b"9" * 300 + b"\n",
]
ODD_VALUES = [
    None,
    -1,
    2**70,
    "",
    "\ud800",
    (),
    [0, 7],
    list("abcdefg"),
    {},
    np.array(5),
    np.arange(6).reshape(2, 3),
]


def mutate(rng):
    """Returns a pickle that was changed in a few places, most of them between operations."""
    index = rng.integers(len(BASES))
    data, cuts = bytearray(BASES[index]), CUTS[index]
    for _ in range(rng.integers(1, 4)):
        if not data:
            break
        at, stop = sorted(rng.integers(0, len(data) + 1, 2))
        start, end = (int(cuts[i]) for i in sorted(rng.integers(0, len(cuts), 2)))
        kind = rng.integers(10)
        if kind == 0:
            data[at % len(data)] ^= 1 << rng.integers(8)
        elif kind == 1:
            data[at % len(data)] = rng.choice([0, 1, 127, 128, 255])
        elif kind == 2:
            data[at:at] = rng.bytes(rng.integers(1, 9))
        elif kind == 3:
            del data[at : min(stop, at + 30)]
        elif kind == 4:
            other = BASES[rng.integers(len(BASES))]
            data[start:end] = other[int(rng.integers(len(other))) :][: int(rng.integers(1, 90))]
        elif kind == 5:
            data[start : start + 1] = OPCODES[rng.integers(len(OPCODES))]
        elif kind == 6:
            data[start:start] = OPCODES[rng.integers(len(OPCODES))]
        elif kind == 7:
            data[start:start] = HOSTILE[rng.integers(len(HOSTILE))]
        elif kind == 8:
            data[end:end] = data[start:end][:200]
        else:
            del data[start : min(end, start + 40)]
    return bytes(data)


def read(path, data, reader=read_corpus):
    """Reads a pickle; returns what it gave, or the line that it was refused with."""
    path.write_bytes(data)
    try:
        return reader(path)
    except UserError as error:
        return str(error)


@pytest.mark.parametrize("seed", slow_after(1, range(4)))
def test_a_changed_pickle_is_read_or_refused_in_a_line(seed, tmp_path):
    rng, path = np.random.default_rng(seed), tmp_path / "cache.pkl"
    results = [read(path, mutate(rng)) for _ in range(250)]
    lines = [result for result in results if isinstance(result, str)]
    assert {type(result) for result in results} == {Corpus, str}
    assert all(line.startswith(f"`{path}` cannot be read: ") for line in lines)
    assert not any("\n" in line for line in lines)


def test_a_changed_pickle_imports_and_makes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    read_corpus_once = read(tmp_path / "cache.pkl", BASES[2])
    assert isinstance(read_corpus_once, Corpus)
    modules, rng = set(sys.modules), np.random.default_rng(11)
    for _ in range(250):
        read(tmp_path / "cache.pkl", mutate(rng), load_vocabulary)
    assert set(sys.modules) == modules
    assert [path.name for path in tmp_path.iterdir()] == ["cache.pkl"]


@pytest.mark.parametrize("attribute", pickled_corpora.list_attributes())
def test_an_attribute_of_another_kind_is_read_or_refused_in_a_line(attribute, tmp_path):
    for value in ODD_VALUES:
        changes = {attribute[0]: {attribute[1]: value}}
        result = read(tmp_path / "cache.pkl", pickled_corpora.dump_corpus(**changes))
        assert isinstance(result, Corpus) or "\n" not in result


@pytest.mark.parametrize("base", slow_after(1, [2, 7]))
def test_a_pickle_that_ends_early_is_refused(base, tmp_path):
    path, data = tmp_path / "cache.pkl", BASES[base]
    for size in range(1, len(data), 13):
        line = read(path, data[:size], load_vocabulary)
        assert isinstance(line, str)
        assert "it is truncated" in line
