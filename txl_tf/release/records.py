"""Reads the records of the 2019 release as one stream of ids for each split.

The release cut each file into B lanes of n // B tokens, and the lanes into segments of T. Lane
after lane and file after file, they give the original stream, so any batch size and segment length
can be used. A single file in the GPU form lacks only the n % B tokens at its end that filled no
lane. The TPU form lacks the end of each lane: the text jumps there, and between files. A file may
hold the same text several times (`num_passes`).
"""

import json
import os
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from txl_tf.data.files import is_remote
from txl_tf.data.reading import read_shards
from txl_tf.data.records import RecordError
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.errors import name_program
from txl_tf.release.corpus import load_vocabulary
from txl_tf.release.record_file import RecordFile
from txl_tf.release.record_info import (
    Cut,
    RecordInfo,
    choose_record_info,
    find_record_infos,
    read_listing,
)

CORPUS_INFO_NAME = "corpus-info.json"
CACHE_NAME = "cache.pkl"
_MAX_TOKENS = 2**31  # ids are int32


class CorpusInfo(NamedTuple):
    """The content of a `corpus-info.json`: data set, vocabulary size, cutoffs."""

    dataset: str
    n_token: int
    cutoffs: tuple[int, ...]


class ReleaseSplit:
    """The tokens of one split, read from its files at any position.

    Args:
        name: The name of the split.
        files: Its files, in order.
    """

    def __init__(self, name: str, files: Sequence[RecordFile]) -> None:
        self.name = name
        self._files = files
        self._ends = list(accumulate(map(len, files)))

    def __len__(self) -> int:
        return self._ends[-1]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Reads the tokens from `start` up to but excluding `stop`.

        Returns:
            The ids, (stop - start,) int32.

        Raises:
            ValueError: If the positions are not in order within the split.
            RecordError: If a record that was read is damaged or holds an unknown id.
        """
        return read_shards(self._ends, start, stop, split=self.name, read_shard=self._read_file)

    @property
    def document_starts(self) -> np.ndarray:
        """No positions, (0,) int64: the release does not store where documents begin."""
        return np.zeros(0, np.int64)

    def _read_file(self, index: int, start: int, stop: int, out: np.ndarray) -> None:
        """Reads tokens `start` to `stop` of a file into `out`, (stop - start,) int32."""
        out[:] = self._files[index].read(start, stop)


class ReleaseRecords:
    """A data set of the 2019 release, made by `open_release_records`.

    The files of a split are opened when the split is first used.

    Args:
        data_dir: The folder of the record files.
        corpus: The data set, its vocabulary size and cutoffs.
        vocabulary: The vocabulary; `None` if only its size is known.
        infos: The listings of each split.
        cuts: The requested cuts of each split, the preferred one first.
    """

    def __init__(
        self,
        data_dir: str,
        corpus: CorpusInfo,
        vocabulary: Vocabulary | None,
        infos: Mapping[str, Sequence[RecordInfo]],
        cuts: Mapping[str, Sequence[Cut]],
    ) -> None:
        self.data_dir = data_dir
        self.dataset, self.n_token, self.cutoffs = corpus
        self.vocabulary = vocabulary
        self._infos = infos
        self._chosen = {
            split: choose_record_info(found, cuts.get(split, ())) for split, found in infos.items()
        }
        self._opened: dict[str, ReleaseSplit] = {}

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits for which a listing could be chosen."""
        return tuple(split for split, info in self._chosen.items() if info)

    @property
    def made_from(self) -> Mapping[str, Any]:
        """The listing of each split."""
        return {
            "release2019": {split: info.path.name for split, info in self._chosen.items() if info}
        }

    def n_documents(self, split: str) -> int:
        """Returns 0: the release does not store where documents begin."""
        return len(self.split(split).document_starts)

    def n_tokens(self, split: str) -> int:
        """Returns the number of tokens of a split.

        Raises:
            RecordError: As `split`.
        """
        return len(self.split(split))

    def split(self, name: str) -> ReleaseSplit:
        """Returns a split.

        Raises:
            RecordError: If there is no such split, if it exists in several cuts and none is the
                requested one, or if its files do not match its listing.
        """
        if name not in self._opened:
            self._opened[name] = self._open_split(name)
        return self._opened[name]

    def _open_split(self, name: str) -> ReleaseSplit:
        if name not in self._infos:
            raise RecordError(
                f"`{self.data_dir}` has no split {name!r}; it has {', '.join(self._infos)}."
            )
        info = self._chosen[name]
        if info is None:
            listed = ", ".join(found.path.name for found in self._infos[name])
            raise RecordError(
                f"`{self.data_dir}` has several cuts of split {name!r}, and none has the requested "
                f"batch size and tgt_len: pass those of one of {listed}."
            )
        listing = read_listing(info)
        files = [
            RecordFile(
                os.path.join(self.data_dir, file),
                n_lanes=info.cut.batch_size,
                tgt_len=info.cut.tgt_len,
                n_token=self.n_token,
                is_tpu=info.is_tpu,
            )
            for file in listing.files
        ]
        found = sum(file.n_batches for file in files)
        if found != listing.num_batch:
            raise RecordError(
                f"`{info.path}` lists {listing.num_batch} batches of {info.cut.batch_size}, but "
                f"its files in `{self.data_dir}` hold {found}."
            )
        return ReleaseSplit(name, files)


def open_release_records(
    folder: str | os.PathLike[str],
    *,
    train_batch_size: int | None = None,
    eval_batch_size: int | None = None,
    tgt_len: int | None = None,
    record_info_dir: str | None = None,
    corpus_info_path: str | None = None,
) -> ReleaseRecords:
    """Opens the records of the 2019 release.

    If a split exists in several cuts, the one with the given batch size and segment length is read,
    in the GPU form if there is one, or else the only cut in the GPU form. The choice changes only
    the few tokens at the end that filled no lane.

    Args:
        folder: The folder of the record files, or its parent, which holds `cache.pkl`.
        train_batch_size: The batch size that the training split was cut for.
        eval_batch_size: The batch size that the other splits were cut for, if it is different.
        tgt_len: The segment length that the splits were cut for.
        record_info_dir: The folder of the listings, if it is different.
        corpus_info_path: The path of `corpus-info.json`, if it is not in one of these folders or
            their parents.

    Returns:
        The data set.

    Raises:
        UserError: If there are no such records, or their descriptions are missing or wrong.
    """
    for path in (os.fspath(folder), record_info_dir or "", corpus_info_path or ""):
        _check_local(path)
    listed_in = Path(record_info_dir or _find_listings(os.fspath(folder)))
    data_dir = _find_data_folder(Path(folder), listed_in)
    infos = find_record_infos(listed_in)
    if not infos:
        raise RecordError(f"`{listed_in}` holds no record_info-*.json of the 2019 release.")
    places = [data_dir, data_dir.parent, listed_in, listed_in.parent]
    corpus_info = (
        Path(corpus_info_path) if corpus_info_path else _find_file(places, CORPUS_INFO_NAME)
    )
    if corpus_info is None:
        raise RecordError(f"`{data_dir}` and its parent folder have no {CORPUS_INFO_NAME}.")
    corpus = read_corpus_info(corpus_info)
    cache = _find_file([*places, corpus_info.parent], CACHE_NAME)
    vocabulary = load_vocabulary(cache, corpus.dataset) if cache else None
    if vocabulary is not None and len(vocabulary) != corpus.n_token:
        raise RecordError(
            f"`{cache}` has {len(vocabulary)} symbols, but `{corpus_info}` states {corpus.n_token}."
        )
    train, other = (
        [Cut(size, tgt_len)] if size and tgt_len else []
        for size in (train_batch_size, eval_batch_size)
    )
    cuts = {split: train if split == "train" else [*other, *train] for split in infos}
    return ReleaseRecords(str(data_dir), corpus, vocabulary, infos, cuts)


def holds_release_records(folder: str | os.PathLike[str]) -> bool:
    """Returns whether a local folder, or `tfrecords` in it, has records of the 2019 release."""
    path = os.fspath(folder)
    return not is_remote(path) and bool(find_record_infos(_find_listings(path)))


def read_corpus_info(path: str | Path) -> CorpusInfo:
    """Reads a `corpus-info.json`, and drops cutoffs outside of the vocabulary.

    Raises:
        RecordError: If it cannot be read, or does not describe a corpus.
    """
    try:
        content = json.loads(Path(path).read_bytes())
        dataset, n_token = content["dataset"], content["vocab_size"]
        bounds = content["cutoffs"]  # with 0 and the vocabulary size at the ends, or empty
        if (
            type(n_token) is not int
            or not 1 <= n_token <= _MAX_TOKENS
            or not isinstance(dataset, str)
        ):
            raise ValueError(f"dataset={dataset!r}, vocab_size={n_token!r}")
        if bounds != [] and (bounds[0] != 0 or bounds[-1] != n_token):
            raise ValueError(f"cutoffs={bounds!r}")
        within = tuple(int(cutoff) for cutoff in bounds[1:-1] if cutoff < n_token)
        return CorpusInfo(dataset, n_token, within)
    except (KeyError, TypeError, ValueError, OSError, RecursionError) as error:
        reason = f"no key {error}" if isinstance(error, KeyError) else error
        raise RecordError(
            f"`{path}` does not describe a corpus of the 2019 release: {reason}"
        ) from error


def _find_listings(folder: str) -> str:
    """Returns the folder, or `tfrecords` in it if only that one has listings."""
    inside = os.path.join(folder, "tfrecords")
    return inside if not find_record_infos(folder) and find_record_infos(inside) else folder


def _find_data_folder(folder: Path, listed_in: Path) -> Path:
    """Returns the folder of the record files: `folder`, or `tfrecords` in it."""
    inside = folder / "tfrecords"
    is_above = folder.resolve() != listed_in.resolve() and not any(folder.glob("*.tfrecords"))
    return inside if is_above and inside.is_dir() else folder


def _find_file(folders: Sequence[Path], name: str) -> Path | None:
    return next((path for folder in folders if (path := folder / name).is_file()), None)


def _check_local(path: str) -> None:
    if is_remote(path):
        raise RecordError(
            f"`{path}`: records of the 2019 release are read only from a local folder. Copy them, "
            f"or make new ones with: {name_program('make_tfrecords')}"
        )
