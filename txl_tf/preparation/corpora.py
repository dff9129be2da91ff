"""The public data sets: their files, symbols and published counts.

Mirrors and unencrypted connections need not be trusted, because the SHA-256 is checked.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from txl_tf.data.download import PublishedFile
from txl_tf.data.text.learning import LearningOptions
from txl_tf.errors import UserError
from txl_tf.preparation.corpus import SPLITS, Corpus, PublicSet
from txl_tf.preparation.standard_library import StandardLibrary

_BYTE_OF_NUMBER = {str(byte).encode("ascii"): byte for byte in range(256)}
_TEXT8 = b"abcdefghijklmnopqrstuvwxyz "
_NOT_TEXT8 = re.compile(rb"[\x80-\xff]+|[^a-z ]")


def parse_text8(text: bytes) -> bytes:
    """Parses characters in the 2019 format: each is followed by a space, and "_" means a space.

    >>> parse_text8(b"a _ b ")
    b'a b'
    """
    symbols = text.split()
    for symbol in symbols:
        if len(symbol) != 1:
            raise UserError(
                "this is not text8 in the format of the 2019 release, whose characters are "
                f"separated: {symbol!r}"
            )
    return b"".join(symbols).replace(b"_", b" ")


def check_text8(text: bytes) -> bytes:
    """Returns a text after checking that it has only the characters of text8."""
    others = text.translate(None, _TEXT8)  # far faster than the search
    if others and (other := _NOT_TEXT8.search(text)):
        raise UserError(
            "text8 has 27 symbols, the letters a to z and the space. This file has others, such as "
            f"{other[0].decode('utf-8', 'backslashreplace')!r}; --dataset text takes any text"
        )
    return text


def parse_enwik8(text: bytes) -> bytes:
    r"""Parses bytes in the 2019 format: decimal numbers, with a line break for byte 10.

    >>> parse_enwik8(b"72 105 \n 33")
    b'Hi\n!'
    """
    # A line break directly after a number is not a byte 10: editors end files with it.
    numbers = re.sub(rb"(?<![0-9])\r?\n", b" 10 ", text).split()
    try:
        return bytes(map(_BYTE_OF_NUMBER.__getitem__, numbers))
    except KeyError as error:
        raise UserError(
            f"this is not enwik8 in the format of the 2019 release, numbers below 256: {error}"
        ) from error


def drop_newlines(text: bytes) -> bytes:
    """Returns a text without byte 10, as the 2019 release made enwik8."""
    return text.replace(b"\n", b"")


def _lay_out(pattern: str) -> dict[str, str]:
    return {split: pattern.format(split) for split in SPLITS}


_MAHONEY = "http://mattmahoney.net/dc"
_FIT = "https://cs.fit.edu/~mmahoney/compression"
_DEEPAI = "https://data.deepai.org"
_SMERITY = "https://wikitext.smerity.com"  # the site of the data set's author
_METAMIND = "https://s3.amazonaws.com/research.metamind.io/wikitext"  # the original location
_GITHUB = "https://raw.githubusercontent.com"
_TENSORFLOW = "https://storage.googleapis.com/download.tensorflow.org/data"
_STATMT = "www.statmt.org/lm-benchmark"
_GLUON = "https://gluonnlp-numpy-data.s3-us-west-2.amazonaws.com/datasets/language_modeling"

_RELEASE_LAYOUT = _lay_out("{}.txt")
_EOS = LearningOptions(line_end="<eos>")
_LM1B = "1-billion-word-language-modeling-benchmark-r13output"
_LM1B_TRAIN = {"train": f"{_LM1B}/training-monolingual.tokenized.shuffled/news.en-*"}
_LM1B_HELD_OUT = f"{_LM1B}/heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050"


def _lay_out_wikitext(folder: str) -> tuple[Mapping[str, str], ...]:
    return (
        _RELEASE_LAYOUT,
        _lay_out("wiki.{}.tokens"),
        _lay_out(f"{folder}/wiki.{{}}.tokens"),
        _lay_out(f"{folder}-v1.zip!{folder}/wiki.{{}}.tokens"),
    )


def _publish_wikitext(name: str, *, size: int, sha256: str) -> tuple[PublishedFile, ...]:
    # Hugging Face's dataset_infos.json of wikitext; the size also in GluonNLP's url_checksums.
    return (PublishedFile(name, (f"{_SMERITY}/{name}", f"{_METAMIND}/{name}"), size, sha256),)


# For the corpora of the 2019 release, the order of ids and the splits counted for it are the same.
CORPORA: dict[str, Corpus] = {
    corpus.name: corpus
    for corpus in (
        PublicSet(
            "text8",
            "char",
            published=(
                PublishedFile(
                    "text8.zip",
                    (f"{_MAHONEY}/text8.zip", f"{_DEEPAI}/text8.zip", f"{_FIT}/text8.zip"),
                    # TensorFlow's word2vec_basic.py; the size also in GluonNLP's url_checksums.
                    size=31_344_016,
                    sha256="a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
                ),
            ),
            layouts=(_RELEASE_LAYOUT,),
            parse_release=parse_text8,
            parse=check_text8,
            raw=("text8", "text8.zip!text8"),
            is_stripped=True,
            learning=LearningOptions(space="_"),
            counts={"vocabulary": 27},
        ),
        PublicSet(
            "enwik8",
            "byte",
            published=(
                PublishedFile(
                    "enwik8.zip",
                    (f"{_MAHONEY}/enwik8.zip", f"{_DEEPAI}/enwik8.zip", f"{_FIT}/enwik8.zip"),
                    # Hugging Face's dataset_infos.json of enwik8; the size also in GluonNLP's.
                    size=36_445_475,
                    sha256="547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
                ),
            ),
            layouts=(_RELEASE_LAYOUT,),
            parse_release=parse_enwik8,
            raw=("enwik8", "enwik8.zip!enwik8"),
            documents=("separator", "</page>"),
            counts={"vocabulary": 205},
        ),
        PublicSet(
            "wt103",
            "word",
            published=_publish_wikitext(
                "wikitext-103-v1.zip",
                size=190_229_076,
                sha256="242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
            ),
            layouts=_lay_out_wikitext("wikitext-103"),
            counted=("train",),
            learning=_EOS,
            documents=("title",),
            cutoffs=(20_000, 40_000, 200_000),
            counts={"train": 103_227_021, "valid": 217_646, "test": 245_569, "vocabulary": 267_735},
        ),
        PublicSet(
            "wt2",
            "word",
            published=_publish_wikitext(
                "wikitext-2-v1.zip",
                size=4_475_746,
                sha256="92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
            ),
            layouts=_lay_out_wikitext("wikitext-2"),
            learning=_EOS,
            documents=("title",),
            counts={"train": 2_088_628, "valid": 217_646, "test": 245_569, "vocabulary": 33_278},
        ),
        PublicSet(
            "ptb",
            "word",
            published=(
                PublishedFile(
                    "simple-examples.tgz",
                    (
                        "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
                        "https://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
                        # PaddlePaddle's copy.
                        "https://dataset.bj.bcebos.com/imikolov%2Fsimple-examples.tgz",
                    ),
                    # Many programs check this size; quantapix/qnarre checks the SHA-256.
                    size=34_869_662,
                    sha256="7d4fe4bd080182dd8423e32557cdbc3e5a967f7eb4a2a598be8ada7b66bd1de7",
                ),
            ),
            layouts=(
                _RELEASE_LAYOUT,
                _lay_out("ptb.{}.txt"),
                _lay_out("simple-examples/data/ptb.{}.txt"),
            ),
            learning=replace(_EOS, lower_case=True),
            counts={"train": 929_589, "valid": 73_760, "test": 82_430, "vocabulary": 10_000},
        ),
        PublicSet(
            "lm1b",
            "word",
            published=(
                PublishedFile(
                    f"{_LM1B}.tar.gz",
                    (
                        f"https://{_STATMT}/{_LM1B}.tar.gz",
                        f"http://{_STATMT}/{_LM1B}.tar.gz",
                        f"{_GLUON}/{_LM1B}.tar.gz",
                    ),
                    # TensorFlow Datasets' url_checksums, Hugging Face's dataset_infos.json of lm1b.
                    size=1_792_209_805,
                    sha256="01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
                ),
                PublishedFile(
                    "1b_word_vocab.txt",
                    (
                        "https://github.com/rafaljozefowicz/lm/raw/master/1b_word_vocab.txt",
                        f"{_GLUON}/1b_word_vocab.txt",
                    ),
                    # quantapix/qnarre. GluonNLP's url_checksums give 9,507,106 bytes for their
                    # copy, which is not known to equal the original.
                    sha256="c758fee313a5c952995f391a659fe31cde50f2b11f5fae6c0e75a0a6e79fa34d",
                ),
            ),
            layouts=(
                _LM1B_TRAIN | {"valid": "valid.txt", "test": "test.txt"},
                _LM1B_TRAIN | {"valid": _LM1B_HELD_OUT, "test": _LM1B_HELD_OUT},
            ),
            learning=LearningOptions(line_start="<S>", line_end="<S>", unknown="<UNK>"),
            vocabulary_file=Path("1b_word_vocab.txt"),
            documents=("line",),
            cutoffs=(60_000, 100_000, 640_000),
            counts={"vocabulary": 793_470, "training files": 99},
            num_shuffles=4,
        ),
        PublicSet(
            "shakespeare",
            "char",
            published=(
                PublishedFile(
                    "input.txt",
                    (
                        f"{_GITHUB}/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
                        # The copy of TensorFlow's tutorials.
                        f"{_TENSORFLOW}/shakespeare.txt",
                    ),
                    size=1_115_394,
                    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
                ),
            ),
            raw=("input.txt", "shakespeare.txt"),
            counted=("train", "valid"),
            held_out=(111_540, 0),  # as in nanoGPT: the last tenth validates, and nothing tests
            counts={"train": 1_003_854, "valid": 111_540, "vocabulary": 65},
        ),
        StandardLibrary("pydoc", "byte", counted=(), documents=("file",)),
    )
}
