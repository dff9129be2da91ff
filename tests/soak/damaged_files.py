"""Opens damaged files of every kind: each is refused in one line, or read.

python -m tests.soak.damaged_files --files 100000
python -m tests.soak.damaged_files --files 500 --kinds pickle,torch

Bytes of a file are changed, removed, inserted, or repeated at random. Anything but a result or a
`UserError` of one line, and any call that takes more than ten seconds, is a fault. The damage
depends on the number that a fault has: `--first NUMBER --files 1 --kinds KIND` repeats it.
"""

import faulthandler
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from absl import flags

from benchmarks.tables import print_table
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

GOLDEN = Path(__file__).parents[1] / "golden"
# What the readers read of these folders.
RELEASE_FILES = ("checkpoint", "model.ckpt-0.index", "model.ckpt-0.data-00000-of-00001")
RUN_FILES = (
    *("config.json", "run.json", "vocabulary.json", "validation.jsonl"),
    *("ckpt-8.index", "ckpt-8.data-00000-of-00001"),
)
LIMIT = 10.0  # seconds
BATCH = 200  # files of a task


def read_pickle(folder: Path) -> None:
    """Reads the cache of the 2019 data code."""
    from txl_tf.release import read_corpus

    for path in folder.glob("*.pkl"):
        read_corpus(path)


def read_hub(folder: Path) -> None:
    """Reads a folder of Hugging Face transformers."""
    from txl_tf.release.hub import load_hub_model

    load_hub_model(str(folder))


def read_release(folder: Path) -> None:
    """Reads a checkpoint of the 2019 release."""
    from txl_tf.release.importing import read_release

    read_release(str(folder))


def read_config(folder: Path) -> None:
    """Reads the settings of a run."""
    from txl_tf.runs.folder import read_run_config

    read_run_config(str(folder))


def read_run(folder: Path) -> None:
    """Loads a run."""
    import txl_tf

    txl_tf.load(str(folder))


def read_records(folder: Path) -> None:
    """Reads all ids of a data set."""
    from txl_tf.data import open_records, read_ids

    for split in open_records(folder).splits:
        read_ids(folder, split)


class Kind(NamedTuple):
    """Files of which one is damaged.

    Args:
        folder: The folder that is copied.
        read: Reads the copy.
        names: The files of the copy; empty for all.
    """

    folder: Path
    read: Callable[[Path], None]
    names: tuple[str, ...] = ()

    def list_files(self) -> list[Path]:
        """Returns the paths of the files, sorted."""
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return [path for path in paths if not self.names or path.name in self.names]


KINDS = {
    "pickle": Kind(GOLDEN / "data" / "wt103", read_pickle, ("cache.py2.pkl", "cache.py3.pkl")),
    "torch": Kind(GOLDEN / "hub" / "word", read_hub, ("config.json", "pytorch_model.bin")),
    "safetensors": Kind(GOLDEN / "hub" / "word", read_hub, ("config.json", "model.safetensors")),
    "release": Kind(GOLDEN / "model" / "char", read_release, RELEASE_FILES),
    "run": Kind(GOLDEN / "artifacts" / "adam", read_run, RUN_FILES),
    "config": Kind(GOLDEN / "artifacts" / "adam", read_config, ("config.json",)),
    "records": Kind(GOLDEN / "artifacts" / "records", read_records),
}


def damage(content: bytes, generator: random.Random) -> bytes:
    """Returns a content with one to three changes."""
    for _ in range(generator.randint(1, 3)):
        start = generator.randrange(len(content) + 1)
        length = min(int(generator.expovariate(0.2)) + 1, len(content) - start)
        head, part, tail = (
            content[:start],
            content[start : start + length],
            content[start + length :],
        )
        change = generator.choice(("change", "cut", "remove", "insert", "repeat", "zero"))
        content = {
            "change": head + generator.randbytes(length) + tail,
            "cut": head,
            "remove": head + tail,
            "insert": head + generator.randbytes(length) + part + tail,
            "repeat": head + part * 2 + tail,
            "zero": head + bytes(length) + tail,
        }[change]
    return content


def try_file(name: str, number: int, folder: Path) -> tuple[str, str]:
    """Damages a file and reads it; returns "read", "refused", or "fault" and its text."""
    kind, generator = KINDS[name], random.Random(f"{name} {number}")
    paths = kind.list_files()
    chosen = generator.choice(paths)
    for path in paths:
        content = path.read_bytes()
        target = folder / path.relative_to(kind.folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(damage(content, generator) if path == chosen else content)
    start = time.monotonic()
    faulthandler.dump_traceback_later(3 * LIMIT, exit=True)
    try:
        kind.read(folder)
        found, text = "read", ""
    except UserError as error:
        text = str(error)
        found = "fault" if "\n" in text else "refused"
    except BaseException:  # whatever it is, it is a fault
        found, text = "fault", traceback.format_exc()
    faulthandler.cancel_dump_traceback_later()
    if (took := time.monotonic() - start) > LIMIT:
        found, text = "fault", f"it took {took:.0f} s: {text}"
    return found, f"{name} {number}, {chosen.name}: {text}" if found == "fault" else ""


def try_files(name: str, numbers: range) -> tuple[Counter, list[str]]:
    """Tries many files in a new process; returns how often each end came, and the faults."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    ends, faults = Counter(), []
    KINDS[name].read(KINDS[name].folder)  # undamaged: what it imports takes no time later
    with tempfile.TemporaryDirectory() as root:
        for number in numbers:
            folder = Path(root) / "copy"
            end, fault = try_file(name, number, folder)
            shutil.rmtree(folder)
            ends[end] += 1
            faults += [fault] * bool(fault)
    return ends, faults


def soak(options: flags.FlagValues) -> None:
    """Tries all kinds and prints a table.

    Raises:
        UserError: If there is a fault.
    """
    share = -(-options.files // len(options.kinds))
    last, faults = options.first + share, []

    def make_rows() -> Iterator[tuple[object, ...]]:
        for name in options.kinds:
            batches = [range(n, min(n + BATCH, last)) for n in range(options.first, last, BATCH)]
            ends: Counter = Counter()
            # New processes for each kind, as they grow.
            with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
                results = pool.map(try_files, [name] * len(batches), batches)
                for batch in batches:
                    try:
                        found, texts = next(results)
                    except BrokenProcessPool as error:
                        raise UserError(
                            f"{name}: a process died, or a call did not end, at one of the files "
                            f"from {batch.start} on; --first {batch.start} --kinds {name} repeats "
                            "it"
                        ) from error
                    ends += found
                    faults.extend(texts)
                    for text in texts:
                        print(text, file=sys.stderr, flush=True)
            yield name, ends.total(), ends["refused"], ends["read"], ends["fault"]

    print_table(("kind", "damaged files", "refused", "read", "faults"), make_rows())
    if faults:
        raise UserError(f"{len(faults)} faults")


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "files", int, 600, "Number of files in all.", lower_bound=1)
    define_flag(options, "first", int, 0, "Number of the first file.", lower_bound=0)
    define_flag(options, "kinds", list, [*KINDS], "Kinds of files.", choices=KINDS)
    return run_program(__doc__, options, soak, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
