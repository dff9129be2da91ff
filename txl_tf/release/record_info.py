"""The listings of the 2019 release's records, which name the files of a split.

`record_info-SPLIT.bsz-B.tlen-T[.core-C].json` holds `filenames`, `bin_sizes` and `num_batch`. A
split may exist in several cuts, for different batch sizes and segment lengths; with `.core-C` it
was written for TPUs, which need whole batches.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from txl_tf.data.records import RecordError

_NAME = re.compile(r"record_info-(\w+)\.bsz-(\d+)\.tlen-(\d+)(?:\.core-(\d+))?\.json")
_SPLITS = ("train", "valid", "test")


class Cut(NamedTuple):
    """The cut of a split: B lanes of segments of `tgt_len` tokens."""

    batch_size: int
    tgt_len: int


class RecordInfo(NamedTuple):
    """The name of a listing and what it states.

    Args:
        path: The path of the listing.
        split: The name of its split.
        cut: The cut of the split.
        is_tpu: Whether the cut is for TPUs, without shorter segments at the end.
    """

    path: Path
    split: str
    cut: Cut
    is_tpu: bool


class Listing(NamedTuple):
    """The content of a listing: the names of the files, and the total number of batches."""

    files: tuple[str, ...]
    num_batch: int


def find_record_infos(folder: str | Path) -> dict[str, list[RecordInfo]]:
    """Returns the listings in a folder by split, in the order train, valid, test, others."""
    found: dict[str, list[RecordInfo]] = {}
    for path in sorted(Path(folder).glob("record_info-*.json")):
        match = _NAME.fullmatch(path.name)
        cut = Cut(int(match[2]), int(match[3])) if match else Cut(0, 0)
        if match and min(cut) > 0:
            info = RecordInfo(path, match[1], cut, is_tpu=match[4] is not None)
            found.setdefault(match[1], []).append(info)
    return {split: found[split] for split in sorted(found, key=_order_split)}


def choose_record_info(infos: Sequence[RecordInfo], cuts: Iterable[Cut]) -> RecordInfo | None:
    """Chooses the listing that a split is read from.

    Args:
        infos: The listings of the split.
        cuts: The requested cuts, the preferred one first.

    Returns:
        The first listing with a requested cut, in the GPU form if there is one; otherwise the only
        listing, or the only one in the GPU form, which has the complete text; otherwise `None`.
    """
    by_form = sorted(infos, key=lambda info: info.is_tpu)
    for cut in cuts:
        for info in by_form:
            if info.cut == cut:
                return info
    whole = [info for info in infos if not info.is_tpu] or infos
    return whole[0] if len(whole) == 1 else None


def read_listing(info: RecordInfo) -> Listing:
    """Reads the content of a listing.

    Raises:
        RecordError: If it is not a listing.
    """
    try:
        content = json.loads(info.path.read_bytes())
        files, num_batch = content["filenames"], content["num_batch"]
        if type(num_batch) is not int or not isinstance(files, list) or not files:
            raise ValueError(f"filenames={files!r}, num_batch={num_batch!r}")
        if any(PurePath(file).name != file for file in files):
            raise ValueError(f"the files must be in the same folder, received {files}")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"no key {error}" if isinstance(error, KeyError) else error
        raise RecordError(
            f"`{info.path}` does not list records of the 2019 release: {reason}"
        ) from error
    return Listing(tuple(files), num_batch)


def _order_split(split: str) -> tuple[int, str]:
    return (_SPLITS.index(split) if split in _SPLITS else len(_SPLITS), split)
