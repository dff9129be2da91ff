"""Opens damaged files of every kind: each is refused in one line, or read.

python -m tests.soak.damaged_files --files 100000
python -m tests.soak.damaged_files --files 500 --kinds pickle,torch

Bytes of a file are changed, removed, inserted, or repeated at random. Anything but a result or a
`UserError` of one line is a fault, and so is a call that takes more than ten seconds: it ends the
tests of its kind. The damage depends on the number that a fault has: `--first NUMBER --files 1
--kinds KIND` repeats it.
"""

import faulthandler
import random
import sys
import tempfile
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from tests.helpers.places import GOLDEN
from tests.soak.harness import run_soak
from txl_tf.errors import UserError
from txl_tf.progress import Bar

# A folder, and patterns of the files that are read of it.
KINDS = {
    "pickle": ("data/wt103", "cache.py?.pkl"),
    "torch": ("hub/word", "config.json", "pytorch_model.bin"),
    "safetensors": ("hub/word", "config.json", "model.safetensors"),
    "release": ("model/char", "checkpoint", "model.ckpt-0.*"),
    "run": ("artifacts/adam", "*.json*", "checkpoints/ckpt-8.*"),
    "records": ("artifacts/records", "*"),
}
LIMIT = 10.0  # seconds
BATCH = 200  # files of a task


def read(kind, folder):
    """Reads the files of a kind."""
    import txl_tf
    from txl_tf import data, release
    from txl_tf.release import importing, transformers_folder

    match kind:
        case "pickle":
            for path in folder.glob("*.pkl"):
                release.read_corpus(path)
        case "torch" | "safetensors":
            transformers_folder.load_transformers_model(str(folder))
        case "release":
            importing.read_release(str(folder))
        case "run":
            txl_tf.load(str(folder))
        case "records":
            for split in data.open_records(folder).splits:
                data.read_ids(folder, split)


def damage(content, generator):
    """Returns a content with one to three changes."""
    for _ in range(generator.randint(1, 3)):
        start = generator.randrange(len(content) + 1)
        length = min(int(generator.expovariate(0.2)) + 1, len(content) - start)
        end, noise = start + length, generator.randbytes(length)
        head, part, tail = content[:start], content[start:end], content[end:]
        middles = (noise, b"", noise + part, part * 2, bytes(length))
        content = generator.choice((head, *(head + middle + tail for middle in middles)))
    return content


def try_files(kind, numbers):
    """Reads damaged files in a process; returns how often each outcome came, and the faults."""
    counts, faults = Counter(), []
    source, *patterns = KINDS[kind]
    read(kind, GOLDEN / source)  # what it imports takes no time later
    with tempfile.TemporaryDirectory() as folder:
        contents = {}
        for path in sorted(path for each in patterns for path in (GOLDEN / source).glob(each)):
            copy = Path(folder, path.relative_to(GOLDEN / source))
            copy.parent.mkdir(exist_ok=True)
            contents[copy] = path.read_bytes()
            copy.write_bytes(contents[copy])
        for number in numbers:
            generator = random.Random(f"{kind} {number}")
            path = generator.choice([*contents])
            path.write_bytes(damage(contents[path], generator))
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            try:
                read(kind, Path(folder))
                counts["read"] += 1
            except UserError as error:
                counts["refused"] += 1
                if "\n" in str(error):
                    faults.append(f"{number}, {path.name}: {error}")
            except BaseException:  # whatever it is, it is a fault
                faults.append(f"{number}, {path.name}: {traceback.format_exc()}")
            faulthandler.cancel_dump_traceback_later()
            path.write_bytes(contents[path])
    return counts, faults


def soak(root, options):
    """Reads damaged files of each kind, in new processes, as they grow."""
    last = options.first - (-options.files // len(options.kinds))
    batches = [range(n, min(n + BATCH, last)) for n in range(options.first, last, BATCH)]
    for kind in options.kinds:
        counts, faults = Counter(refused=0, read=0), []
        with (
            ProcessPoolExecutor(mp_context=get_context("spawn")) as pool,
            Bar(kind, total=len(batches), unit=f" x {BATCH} files") as bar,
        ):
            results = pool.map(try_files, [kind] * len(batches), batches)
            for batch in batches:
                try:
                    found, texts = next(results)
                except BrokenProcessPool:
                    faults.append(f"{batch.start} or later: a process died, or a call took long")
                    break
                counts.update(found)
                faults += texts
                bar.update()
        yield kind, counts, faults


if __name__ == "__main__":
    sys.exit(
        run_soak(
            __doc__,
            soak,
            sys.argv,
            files=(600, "Number of files in all."),
            first=(1, "Number of the first file."),
            kinds=([*KINDS], "Kinds of files."),
        )
    )
