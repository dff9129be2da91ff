"""The listings of the 2019 release's records: which files a split is read from.

`record_info-SPLIT.bsz-B.tlen-T[.core-C].json` holds `filenames`, `bin_sizes` and `num_batch`. A
split may be there several times, cut for other batch sizes and segment lengths; with `.core-C` it
was written for TPUs, which need whole batches.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

from txl_tf.data.records import RecordError

_NAME = re.compile(r"record_info-(\w+)\.bsz-(\d+)\.tlen-(\d+)(?:\.core-(\d+))?\.json")
_SPLITS = ("train", "valid", "test")


class Cut(NamedTuple):
    """How a split was cut: B lanes of segments of `tgt_len` tokens."""

    batch_size: int
    tgt_len: int


@dataclass(frozen=True)
class RecordInfo:
    """A listing by its name.

    Args:
        path: Its file.
        split: The split that it lists.
        cut: How that was cut.
        is_tpu: Whether it was cut for TPUs, without the last segments that are not whole.
    """

    path: Path
    split: str
    cut: Cut
    is_tpu: bool


class Listing(NamedTuple):
    """The content of a listing: the names of its files, and the batches in all of them."""

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
        cuts: How it should be cut, the most wanted first.

    Returns:
        The first with a wanted cut, the GPUs' form before the TPUs'; else the only one, or the only
        one in the GPUs' form, which has all the text; else `None`.
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
        RecordError: It is none.
    """
    try:
        content = json.loads(info.path.read_bytes())
        files, num_batch = content["filenames"], content["num_batch"]
        if type(num_batch) is not int or not isinstance(files, list) or not files:
            raise ValueError(f"filenames={files!r}, num_batch={num_batch!r}")
        if any(PurePath(file).name != file for file in files):
            raise ValueError(f"a file must lie in the folder, received {files}")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"no key {error}" if isinstance(error, KeyError) else error
        raise RecordError(
            f"`{info.path}` lists no records of the 2019 release: {reason}"
        ) from error
    return Listing(tuple(files), num_batch)


def _order_split(split: str) -> tuple[int, str]:
    return (_SPLITS.index(split) if split in _SPLITS else len(_SPLITS), split)
