"""How long a user waits: for start-up, the first token after a prompt, and many short texts.

python -m benchmarks.latency
python -m benchmarks.latency --parts programs --preset small --json latency.json

The model has the size of a preset and random weights; its run is in a temporary folder, with the
demo's corpus. "Cold" is the first call in a process, including tracing and compilation; "warm" is
the median of the later calls. A program's time starts with its process.
"""

import dataclasses
import functools
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

import txl_tf
from benchmarks.several_workers import ROOT, run_python
from benchmarks.tables import define_json_flag, print_table, write_json
from benchmarks.works import measure_apart
from txl_tf import presets
from txl_tf.data import open_records
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

PROMPT = "Return the "
PROMPT_LENS = (100, 1000, 10_000)
N_TEXTS, TEXT_LENS = 10_000, (25, 75)  # minimum and maximum bytes of a text


def make_run(folder: Path, preset_name: str) -> None:
    """Writes the demo's corpus to `folder / "data"` and a model of a preset to `folder / "run"`."""
    run_python("data_prep/make_tfrecords.py", "--dataset=pydoc", f"--data_dir={folder / 'data'}")
    measure_apart(_save_run, folder, preset_name)


def _save_run(folder: Path, preset_name: str) -> None:
    preset = presets.get(preset_name)
    vocabulary = open_records(folder / "data").vocabulary
    config = dataclasses.replace(preset.model, n_token=len(vocabulary))
    model = txl_tf.TransformerXL(config, seed=0)
    txl_tf.LanguageModel(model, vocabulary, preset.evaluation).save(folder / "run")


def write_texts(folder: Path) -> Path:
    """Writes short texts of the corpus, one per line, and returns the file's path."""
    records, generator = open_records(folder / "data"), np.random.default_rng(0)
    ends = np.cumsum(generator.integers(*TEXT_LENS, N_TEXTS, endpoint=True)).tolist()
    ids = records.split("train").read(0, ends[-1])
    text = records.vocabulary.decode_bytes(ids).replace(b"\n", b" ")
    lines = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    path = folder / "texts.txt"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def time_output(command: Sequence[str], awaited: str) -> float:
    """Returns the seconds from the start of a process until it has printed a text.

    Raises:
        UserError: If the process ends before that.
    """
    start, output = time.perf_counter(), ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        while part := os.read(process.stdout.fileno(), 4096):
            output += part.decode("utf-8", "replace")
            if awaited in output:
                took = time.perf_counter() - start
                process.kill()
                return took
    raise UserError(f"{shlex.join(command)} ended too early: {output[-1000:]}")


def measure_programs(folder: Path, preset_name: str, repetitions: int) -> dict[str, list[float]]:
    """Returns the seconds until each program has shown its first result, in each repetition."""
    python, program = [sys.executable], [sys.executable, "-m", "txl_tf"]
    run, data = f"--run={folder / 'run'}", f"--data_dir={folder / 'data'}"
    load = f"import txl_tf; txl_tf.load({str(folder / 'run')!r}); print('ready')"
    generate = [*program, "generate", run, "--max_new_tokens=1", f"--prompt={PROMPT}", "--json"]
    train = [*program, "train", f"--preset={preset_name}", data, "--iterations=1"]
    works = {
        "import txl_tf": ([*python, "-c", "import txl_tf; print('ready')"], "ready"),
        "txl generate --help": ([*program, "generate", "--help"], "--[no]raw"),
        "import tensorflow, keras": ([*python, "-c", "import keras; print('ready')"], "ready"),
        "txl_tf.load": ([*python, "-c", load], "ready"),
        "txl generate, first token": (generate, '"text":'),
        "txl train, first step": (train, "step 1/"),
    }
    found: dict[str, list[float]] = {name: [] for name in works}
    for index in range(repetitions):
        for name, (command, awaited) in works.items():
            new = [f"--run={folder / f'new-{index}'}"] if command is train else []
            found[name].append(time_output([*command, *new], awaited))
    return found


def measure_calls(run: Path, work: str | int, repetitions: int) -> dict[str, float]:
    """Returns the seconds of the first call and of later calls; to be run in a new process.

    Args:
        run: The run.
        work: The length of a prompt, after which a token is drawn; or the path of a file, whose
            lines are scored.
        repetitions: The number of calls after the first.
    """
    lm = txl_tf.load(run)
    if isinstance(work, int):
        prompt = np.arange(work, dtype=np.int32) % lm.config.n_token
        call: Callable[[], object] = functools.partial(lm.generate, prompt, max_new_tokens=1)
    else:
        texts = Path(work).read_text(encoding="utf-8").splitlines()
        call = functools.partial(lm.score, texts)
    durations = []
    for _ in range(1 + repetitions):
        start = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start)
    return {"cold": durations[0], "warm": statistics.median(durations[1:])}


def measure(options: flags.FlagValues) -> None:
    """Measures the parts, prints them, and writes them to a file if requested."""
    found: dict[str, Any] = {"preset": options.preset}
    rows: list[tuple[str, ...]]
    with tempfile.TemporaryDirectory() as name:
        folder, run = Path(name), Path(name) / "run"
        make_run(folder, options.preset)
        if "programs" in options.parts:
            programs = measure_programs(folder, options.preset, options.repetitions)
            found["programs"] = programs
            rows = [(f"`{label}`", f"{statistics.median(x):.2f}") for label, x in programs.items()]
            print_table(("from the start of the process", "seconds"), rows)
        if "prompts" in options.parts:
            found["prompts"] = {
                str(length): measure_apart(measure_calls, run, length, options.repetitions)
                for length in PROMPT_LENS
            }
            header = ("tokens of the prompt", "cold, seconds to the first token", "warm")
            rows = [
                (f"{int(length):,}", f"{each['cold']:.2f}", f"{each['warm']:.3f}")
                for length, each in found["prompts"].items()
            ]
            print_table(header, rows)
        if "texts" in options.parts:
            path = str(write_texts(folder))
            seconds = measure_apart(measure_calls, run, path, options.repetitions)
            command = [sys.executable, "-m", "txl_tf", "score", f"--run={run}", "--by=line", path]
            title = "`txl score --by line`, from the start of the process"
            seconds[title] = time_output(command, "total")
            n_bytes = os.path.getsize(path) - N_TEXTS
            found["texts"] = {"texts": N_TEXTS, "bytes": n_bytes, "seconds": seconds}
            rows = [
                (each, f"{took:.1f}", f"{n_bytes / took:,.0f}") for each, took in seconds.items()
            ]
            header = (f"{N_TEXTS:,} texts, {n_bytes:,} bytes", "seconds", "bytes/s")
            print_table(header, rows)
    write_json(options, found)


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    parts = ("programs", "prompts", "texts")
    define("parts", list, list(parts), "Parts to measure.", choices=parts)
    define("preset", str, "demo", "Preset with the size of the model.", choices=presets.names())
    define("repetitions", int, 3, "Repetitions of each measurement.", lower_bound=1)
    define_json_flag(options)
    return run_program(__doc__, options, measure, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
