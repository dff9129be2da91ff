"""Converts the TFRecords of the 2019 release into records of this package.

The release cut each file into B lanes, and the lanes into segments of T tokens. Record b of batch k
is segment k of lane b, and record k * B + b of the file: a `tf.train.Example` with `inputs` and
`labels`. Lane after lane and file after file, they form the original stream, so that records made
from it serve any batch size and segment length. A file in the GPU form lacks only the tokens at its
end that filled no lane. The TPU form (`.core-C`) lacks the end of each lane: the text jumps there,
and between files. A file may hold the same text several times (`num_passes`).

`record_info-SPLIT.bsz-B.tlen-T[.core-C].json` lists the files of a split. A split may exist in
several cuts, for different batch sizes and segment lengths.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.data.files import check_folder
from txl_tf.data.records.format import RecordError, RecordsInfo
from txl_tf.data.records.writing import check_replaceable, write_records
from txl_tf.errors import UserError, explain_errors
from txl_tf.preparation.corpora import SPLITS
from txl_tf.release.corpus import check_name, load_vocabulary, read_cutoffs

_INFO_NAME = re.compile(r"record_info-([^\W\d]\w*)\.bsz-(\d+)\.tlen-(\d+)(?:\.core-(\d+))?\.json")
_CORPUS_INFO, _CACHE = "corpus-info.json", "cache.pkl"


class Listing(NamedTuple):
    """The path of a `record_info-*.json`, the number of its lanes, and whether it is for TPUs."""

    path: Path
    batch_size: int
    is_tpu: bool


def convert_records(
    source: str | os.PathLike[str], data_dir: str, *, overwrite: bool = False
) -> RecordsInfo:
    """Converts a data set of the release.

    If a split exists in several cuts, it is read from one in the GPU form if possible, and from the
    first by name; a printed line says so. The choice affects only the few tokens at the end that
    filled no lane.

    Args:
        source: The folder of the record files and their listings, or its parent if the folder is
            called `tfrecords`. One of the two holds `corpus-info.json` and `cache.pkl`.
        data_dir: The folder to write, or an address.
        overwrite: Whether to replace existing records.

    Returns:
        The content of the new `records.json`.
    """
    check_folder(data_dir)
    check_replaceable(data_dir, overwrite=overwrite)
    listings = _find_listings(Path(source)) or _find_listings(Path(source, "tfrecords"))
    if not listings:
        raise RecordError(f"`{source}` has no record_info-*.json of the 2019 release")
    folder = next(iter(listings.values()))[0].path.parent
    corpus = _find_file(folder, _CORPUS_INFO)
    fault = f"`{corpus}` does not describe a corpus of the 2019 release"
    try:
        info = json.loads(corpus.read_bytes())
        dataset, bounds = str(info["dataset"]), info["cutoffs"]
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(fault) from error
    vocabulary = load_vocabulary(_find_file(folder, _CACHE), dataset)
    with explain_errors(fault, UserError, raised=RecordError):
        cutoffs = read_cutoffs(bounds, len(vocabulary))
    chosen = {split: _choose(split, found) for split, found in listings.items()}
    return write_records(
        data_dir,
        dataset=check_name(dataset, vocabulary) or "unknown",
        vocabulary=vocabulary,
        splits={split: _read_split(chosen[split], len(vocabulary)) for split in chosen},
        cutoffs=cutoffs,
        made_from={"release2019": {split: chosen[split].path.name for split in chosen}},
        overwrite=overwrite,
    )


def _find_listings(folder: Path) -> dict[str, list[Listing]]:
    """Returns the listings in a folder by split."""
    found: dict[str, list[Listing]] = {}
    for path in sorted(folder.glob("record_info-*.json")):
        match = _INFO_NAME.fullmatch(path.name)
        if match and int(match[2]):
            listing = Listing(path, int(match[2]), is_tpu=match[4] is not None)
            found.setdefault(match[1], []).append(listing)
    known = [split for split in SPLITS if split in found]
    return {split: found[split] for split in dict.fromkeys([*known, *found])}


def _find_file(folder: Path, name: str) -> Path:
    parent = os.path.normpath(folder / "..")  # Path(".").parent is itself
    for path in (folder / name, Path(parent, name)):
        if path.is_file():
            return path
    raise RecordError(f"`{folder}` and its parent have no {name}, which its records need")


def _choose(split: str, listings: list[Listing]) -> Listing:
    chosen, *others = sorted(listings, key=lambda listing: listing.is_tpu)
    if others:
        cuts = "1 other cut" if len(others) == 1 else f"{len(others)} other cuts"
        print(f"{split} is read from {chosen.path.name}, not from {cuts}.")
    return chosen


def _read_split(listing: Listing, n_token: int) -> Iterator[np.ndarray]:
    """Yields the stream of each file of a listing, (n,) int32."""
    try:
        content = json.loads(listing.path.read_bytes())
        files = [PurePath(file).name for file in content["filenames"]]
        n_batches = int(content["num_batch"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"`{listing.path}` does not list records of the 2019 release") from error
    found = 0
    for file in files:
        lanes, count = _read_lanes(listing.path.parent / file, listing.batch_size, n_token)
        found += count
        yield lanes.reshape(-1)
    if found != n_batches:
        raise RecordError(f"`{listing.path}` lists {n_batches} batches, but its files have {found}")


def _read_lanes(path: Path, n_lanes: int, n_token: int) -> tuple[np.ndarray, int]:
    """Returns the lanes of a file, (B, L) int32 with the last labels, and its batches."""
    if not path.is_file():
        raise RecordError(f"`{path}` is missing")
    batches: list[np.ndarray] = []
    last = np.zeros((n_lanes, 0), np.int32)
    features = dict.fromkeys(("inputs", "labels"), tf.io.RaggedFeature(tf.int64))
    try:
        for examples in tf.data.TFRecordDataset(str(path)).batch(n_lanes):
            parsed = tf.io.parse_example(examples, features)
            tensors = (parsed[name].to_tensor(-1) for name in features)
            inputs, labels = (tensor.numpy().astype(np.int32) for tensor in tensors)
            continues = np.array_equal(inputs[:, : last.shape[1]], last)
            if not continues or not np.array_equal(inputs[:, 1:], labels[:, :-1]):
                raise RecordError(f"`{path}` has no {n_lanes} lanes, each label the next input")
            batches.append(inputs)
            last = labels[:, -1:]
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        raise RecordError(f"`{path}` is damaged, after {len(batches)} whole batches") from error
    lanes = np.concatenate([*batches, last], axis=1)
    if lanes.size and (lanes.min() < 0 or lanes.max() >= n_token):
        raise RecordError(f"`{path}` has ids outside of the {n_token} symbols of the vocabulary")
    return lanes, len(batches)
