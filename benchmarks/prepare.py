"""Speed and memory of preparing records, on synthetic corpora of full size.

python -m benchmarks.prepare

Runs `data_prep/make_tfrecords.py` in its own process, once on a few bytes to measure the start-up,
and once on the corpus. Memory is the peak resident set of the process, including all imports.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import flags

from benchmarks.tables import print_table
from txl_tf.data import open_records
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

PROGRAM = Path(__file__).parents[1] / "data_prep" / "make_tfrecords.py"
LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz ", np.uint8)
N_WORDS = 300_000  # different ones
WORDS_PER_LINE = 25
_BLOCK = 2**20  # bytes or words generated at once


class Case(NamedTuple):
    """A data set, the level of its symbols, and its share of `--words` or `--characters`."""

    dataset: str
    level: str = ""
    share: float = 1.0


CASES = {
    "text8": Case("text8"),
    "enwik8": Case("enwik8"),
    "words": Case("text", "word"),
    "subwords": Case("text", "subword", share=0.1),
}


def make_symbols(dataset: str, size: int) -> Iterator[bytes]:
    """Yields random letters and spaces; for enwik8, as many distinct bytes as it has, in pages."""
    page = b"\n  </page>\n  <page>\n"
    generator = np.random.default_rng(0)
    for start in range(0, size, _BLOCK):
        count = min(_BLOCK, size - start)
        if dataset == "text8":
            yield LETTERS[generator.integers(0, len(LETTERS), count)].tobytes()
            continue
        text = bytearray(generator.integers(32, 237, count, np.uint8))
        for place in range(0, len(text) - len(page), 4096):
            text[place : place + len(page)] = page
        yield bytes(text)


def make_words(n_words: int) -> Iterator[bytes]:
    """Yields lines of words whose frequencies follow Zipf's law."""
    generator = np.random.default_rng(0)
    letters = LETTERS[generator.integers(0, 26, (N_WORDS, 16))]
    lengths = np.clip(generator.normal(5 + 0.8 * np.log10(np.arange(1, N_WORDS + 1)), 1.5), 1, 16)
    words = [
        row[:length].tobytes() for row, length in zip(letters, lengths.astype(int), strict=True)
    ]
    shares = np.cumsum(1 / (np.arange(N_WORDS) + 2.7))
    for start in range(0, n_words, _BLOCK):
        count = min(_BLOCK, n_words - start)
        ids = np.searchsorted(shares, generator.random(count) * shares[-1])
        chosen = [words[i] for i in ids.tolist()]
        for place in range(0, count, WORDS_PER_LINE):
            yield b" ".join(chosen[place : place + WORDS_PER_LINE]) + b"\n"


def write_raw(folder: Path, case: Case, size: int) -> list[str]:
    """Writes the raw files of a case, and returns the flags that name them."""
    folder.mkdir(parents=True)
    if case.dataset == "text":
        path = folder / "words.txt"
        with path.open("wb") as file:
            file.writelines(make_words(size))
        return [f"--train={path}", f"--level={case.level}"]
    with (folder / case.dataset).open("wb") as file:
        file.writelines(make_symbols(case.dataset, size))
    held_out = size // 20
    return [f"--raw_dir={folder}", f"--valid_size={held_out}", f"--test_size={held_out}"]


def measure_process(command: list[str]) -> tuple[float, float, int]:
    """Runs a command; returns its seconds, CPU seconds, and peak memory in bytes.

    Raises:
        UserError: If it fails.
    """
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    output = process.stdout.read().decode("utf-8", "replace")
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise UserError(f"{' '.join(command)} failed: {output}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def measure_case(name: str, size: int, folder: Path, num_workers: int) -> list[str]:
    """Prepares a data set and returns a row of the table."""
    case = CASES[name]
    runs = {}
    for part, n in (("start", 2000), ("full", size)):
        raw = folder / f"{name}-{part}"
        command = [
            sys.executable,
            str(PROGRAM),
            f"--dataset={case.dataset}",
            f"--data_dir={raw / 'records'}",
            f"--num_workers={num_workers}",
            *write_raw(raw, case, n),
            *(["--max_symbols=400"] if case.level == "subword" else []),
        ]
        runs[part] = measure_process(command)
    records = open_records(folder / f"{name}-full" / "records")
    n_tokens = sum(records.n_tokens(split) for split in records.splits)
    n_bytes = sum(path.stat().st_size for path in Path(records.data_dir).iterdir())
    (start, cpu_start, _), (full, cpu_full, memory) = runs["start"], runs["full"]
    speeds = (f"{n_tokens / took / 1e6:.1f}" for took in (full - start, cpu_full - cpu_start))
    return [
        *(name, f"{n_tokens:,}", f"{start:.1f}", f"{full - start:.1f}", *speeds),
        *(f"{memory / 1e6:,.0f}", f"{n_bytes / n_tokens:.3f}"),
    ]


def measure_cases(options: flags.FlagValues) -> Iterator[list[str]]:
    """Prepares the data sets and yields a row for each."""
    for name in options.cases:
        size = int(CASES[name].share * (options.words if CASES[name].level else options.characters))
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            yield measure_case(name, size, Path(folder), options.num_workers)


def print_speeds(options: flags.FlagValues) -> None:
    """Prepares the data sets and prints a table."""
    header = (
        *("data set", "tokens", "start-up, s", "the rest, s", "M tokens/s"),
        *("M tokens per CPU second", "memory, MB", "bytes/token"),
    )
    print_table(header, measure_cases(options))


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "cases", list, list(CASES), "Cases to measure.", choices=CASES)
    text = "Number of characters of text8, and of bytes of enwik8."
    define_flag(options, "characters", int, 100_000_000, text)
    text = "Number of words; subwords are learned from a tenth of them."
    define_flag(options, "words", int, 100_000_000, text)
    n_cores = os.cpu_count() or 1
    define_flag(options, "num_workers", int, n_cores, "Pieces to work on at once.", lower_bound=1)
    text = "Folder for the corpora, a few GB. [default: /tmp]"
    define_flag(options, "folder", str, None, text, is_path=True)
    return run_program(__doc__, options, print_speeds, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
