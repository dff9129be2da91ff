"""The public data sets: the places of their files, their symbols and their published counts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from txl_tf.data.text.learning import LearningOptions
from txl_tf.data.text.token_levels import Level

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class CorpusSpec:
    """How the files of a data set become records.

    Args:
        name: The value of `--dataset`.
        level: The level of the vocabulary.
        layouts: The places of the splits' files in `--raw_dir`, alternatives of which the first
            complete one is used. Each split has a pattern, or ARCHIVE.zip!MEMBER.
        release_format: The format of the files of `layouts` if it is not plain text but one of the
            2019 release: "text8" or "enwik8".
        raw: For text8 and enwik8, the possible places of the one file that is cut into splits.
        held_out: The default number of bytes for valid, and also for test.
        counted: The splits whose symbols are counted to order the ids.
        learning: How the vocabulary is learnt.
        unknown: The symbol for unknown words, if the vocabulary has it.
        vocabulary_file: The file in `--raw_dir` from which the vocabulary is read instead.
        documents: The rule for document boundaries, see `txl_tf.data.text.documents`.
        separator: The line that ends a document, if `documents` is "separator".
        cutoffs: The first ids of the second and later bins of the adaptive softmax.
        tokens: The published number of tokens of each split, where known.
        symbols: The published size of the vocabulary; 0 if unknown.
        shuffled: Whether the documents of each training file are shuffled.
        train_files: The published number of training files; 0 if unknown.
    """

    name: str
    level: Level
    layouts: tuple[Mapping[str, str], ...] = ()
    release_format: str | None = None
    raw: tuple[str, ...] = ()
    held_out: int = 0
    counted: tuple[str, ...] = SPLITS
    learning: LearningOptions = field(default_factory=LearningOptions)
    unknown: str | None = None
    vocabulary_file: str | None = None
    documents: str = "none"
    separator: str | None = None
    cutoffs: tuple[int, ...] = ()
    tokens: Mapping[str, int] = field(default_factory=dict)
    symbols: int = 0
    shuffled: bool = False
    train_files: int = 0


def _lay_out(pattern: str) -> dict[str, str]:
    return {split: pattern.format(split) for split in SPLITS}


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


# The order of the ids and the splits counted for it are those of the 2019 release.
CORPORA = {
    corpus.name: corpus
    for corpus in (
        CorpusSpec(
            "text8",
            "char",
            layouts=(_RELEASE_LAYOUT,),
            release_format="text8",
            raw=("text8", "text8.zip!text8"),
            held_out=5_000_000,
            learning=LearningOptions(space="_"),
            symbols=27,
        ),
        CorpusSpec(
            "enwik8",
            "byte",
            layouts=(_RELEASE_LAYOUT,),
            release_format="enwik8",
            raw=("enwik8", "enwik8.zip!enwik8"),
            held_out=5_000_000,
            documents="separator",
            separator="</page>",
            symbols=205,
        ),
        CorpusSpec(
            "wt103",
            "word",
            layouts=_lay_out_wikitext("wikitext-103"),
            counted=("train",),
            learning=_EOS,
            unknown="<unk>",
            documents="title",
            cutoffs=(20_000, 40_000, 200_000),
            tokens={"train": 103_227_021, "valid": 217_646, "test": 245_569},
            symbols=267_735,
        ),
        CorpusSpec(
            "wt2",
            "word",
            layouts=_lay_out_wikitext("wikitext-2"),
            learning=_EOS,
            unknown="<unk>",
            documents="title",
            tokens={"train": 2_088_628, "valid": 217_646, "test": 245_569},
            symbols=33_278,
        ),
        CorpusSpec(
            "ptb",
            "word",
            layouts=(
                _RELEASE_LAYOUT,
                _lay_out("ptb.{}.txt"),
                _lay_out("simple-examples/data/ptb.{}.txt"),
            ),
            learning=replace(_EOS, lower_case=True),
            unknown="<unk>",
            tokens={"train": 929_589, "valid": 73_760, "test": 82_430},
            symbols=10_000,
        ),
        CorpusSpec(
            "lm1b",
            "word",
            layouts=(
                _LM1B_TRAIN | {"valid": "valid.txt", "test": "test.txt"},
                _LM1B_TRAIN | {"valid": _LM1B_HELD_OUT, "test": _LM1B_HELD_OUT},
            ),
            learning=LearningOptions(line_start="<S>", line_end="<S>"),
            unknown="<UNK>",
            vocabulary_file="1b_word_vocab.txt",
            documents="line",
            cutoffs=(60_000, 100_000, 640_000),
            symbols=793_470,
            shuffled=True,
            train_files=99,
        ),
        CorpusSpec(
            "pydoc",
            "byte",
            counted=("train",),
            learning=LearningOptions(every_byte=True),
            documents="file",
        ),
    )
}
