"""Small pickles of the release's classes at protocol 2, as this Python and Python 2 write them."""

import pickle
import struct
import sys
from collections import Counter, OrderedDict
from types import ModuleType
from unittest import mock

import numpy as np

SYMBOLS = ("<eos>", "the", "schön", "<unk>", "<S>", "of", "été")
IDS = {"train": [1, 2, 0, 5, 6, 3, 0, 1, 1, 5, 0], "valid": [6, 0, 2], "test": [3, 1, 5, 2, 0]}
CUTOFFS = [0, 2, 5, 7]


def make_objects(vocab=None, corpus=None):
    """Returns the classes and an object of each; `vocab` and `corpus` change attributes."""
    classes = {
        name: type(name, (), {"__module__": module})
        for name, module in (("Corpus", "data_utils"), ("Vocab", "vocabulary"))
    }
    vocabulary, data = classes["Vocab"](), classes["Corpus"]()
    vocabulary.__dict__ |= {
        "counter": Counter({symbol: 7 - i for i, symbol in enumerate(SYMBOLS)}),
        "special": ["<eos>"],
        "min_freq": 0,
        "max_size": None,
        "lower_case": False,
        "delimiter": None,
        "vocab_file": None,
        "idx2sym": list(SYMBOLS),
        "sym2idx": OrderedDict((symbol, i) for i, symbol in enumerate(SYMBOLS)),
        "eos_idx": 0,
    } | (vocab or {})
    data.__dict__ |= {"dataset": "wt103", "vocab": vocabulary}
    data.__dict__ |= {split: np.array(ids, np.int64) for split, ids in IDS.items()}
    data.__dict__ |= {"cutoffs": list(CUTOFFS)} | (corpus or {})
    return classes, vocabulary, data


def dump(top, classes):
    """Pickles an object of such classes."""
    modules = {}
    for name, place in (("Corpus", "data_utils"), ("Vocab", "vocabulary")):
        modules[place] = ModuleType(place)
        setattr(modules[place], name, classes[name])
    with mock.patch.dict(sys.modules, modules):
        return pickle.dumps(top, 2)


def dump_corpus(vocab=None, corpus=None):
    """Pickles a corpus; `vocab` and `corpus` change attributes."""
    classes, _, data = make_objects(vocab, corpus)
    return dump(data, classes)


def dump_vocabulary():
    """Pickles a vocabulary alone."""
    classes, vocabulary, _ = make_objects()
    return dump(vocabulary, classes)


def write_string(text):
    """Writes a `str` as Python 2 does."""
    data = text.encode() if isinstance(text, str) else text
    return b"U" + bytes([len(data)]) + data if len(data) < 256 else b"T" + pack_size(data) + data


def pack_size(data):
    return struct.pack("<I", len(data))


def dump_python2_corpus(symbols=SYMBOLS, ids=IDS):
    """Writes a corpus with the operations that Python 2.7 takes at protocol 2."""
    pairs = [
        b"](" + write_string(symbol) + b"K" + bytes([i]) + b"e" for i, symbol in enumerate(symbols)
    ]
    vocabulary = [
        write_string("idx2sym") + b"](" + b"".join(map(write_string, symbols)) + b"e",
        write_string("sym2idx") + b"ccollections\nOrderedDict\n](" + b"".join(pairs) + b"e\x85R",
        write_string("lower_case") + b"\x89",
        write_string("special") + b"]" + write_string("<eos>") + b"a",
        write_string("delimiter") + b"N",
    ]
    arrays = []
    for split, values in ids.items():
        data = np.array(values, "<i8").tobytes()
        arrays += [
            write_string(split),
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R",
            b"(K\x01J" + struct.pack("<i", len(values)) + b"\x85",
            b"cnumpy\ndtype\nU\x02i8K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff",
            b"K\x00tb\x89" + write_string(data) + b"tb",
        ]
    return b"".join(
        [
            b"\x80\x02c__main__\nCorpus\n)\x81}q\x00(" + write_string("vocab"),
            b"cvocabulary\nVocab\n)\x81}q\x01(" + b"".join(vocabulary) + b"ub",
            write_string("dataset") + write_string("wt103"),
            write_string("cutoffs") + b"](" + b"".join(b"K" + bytes([c]) for c in CUTOFFS) + b"e",
            *arrays,
            b"ub.",
        ]
    )
