"""How long a user waits: start-up, the first token after a prompt, and many short texts.

python -m benchmarks.latency
python -m benchmarks.latency --parts programs --preset small --json latency.json

The model has the size of a preset and random weights, and its run lies in a temporary folder with
the demo's corpus. "Cold" is the first call in a process, with all that is traced and compiled;
"warm" is the median of the calls after it. A program's time runs from the start of its process.
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
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.data import open_records
from txl_tf.errors import UserError

PROMPT = "Return the "
PROMPT_LENS = (100, 1000, 10_000)
N_TEXTS, TEXT_LENS = 10_000, (25, 75)  # bytes of a text, at least and at most


def make_run(folder: Path, preset_name: str) -> None:
    """Writes the demo's corpus to `folder / "data"` and a model of a preset to `folder / "run"`."""
    run_python("data_prep/make_tfrecords.py", "--dataset=pydoc", f"--data_dir={folder / 'data'}")
    measure_apart(_save_run, folder, preset_name)


def _save_run(folder: Path, preset_name: str) -> None:
    from txl_tf import LanguageModel, TransformerXL

    preset = presets.get(preset_name)
    vocabulary = open_records(folder / "data").vocabulary
    config = dataclasses.replace(preset.model, n_token=len(vocabulary))
    lm = LanguageModel(TransformerXL(config, seed=0), vocabulary, preset.evaluation)
    lm.save(folder / "run")


def write_texts(folder: Path) -> Path:
    """Writes short texts of the corpus, one per line, and returns the file's path."""
    records = open_records(folder / "data")
    lengths = np.random.default_rng(0).integers(*TEXT_LENS, N_TEXTS, endpoint=True)
    ids = records.split("train").read(0, int(lengths.sum()))
    text = records.vocabulary.decode_bytes(ids).replace(b"\n", b" ")
    ends = np.cumsum(lengths).tolist()
    lines = [text[end - n : end] for end, n in zip(ends, lengths.tolist(), strict=True)]
    path = folder / "texts.txt"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def time_output(command: Sequence[str], is_reached: Callable[[str], bool]) -> float:
    """Returns the seconds from the start of a process until its output satisfies a condition.

    Raises:
        UserError: If the process ends before.
    """
    start, text = time.perf_counter(), ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        while part := os.read(process.stdout.fileno(), 4096):
            text += part.decode("utf-8", "replace")
            if is_reached(text):
                took = time.perf_counter() - start
                process.kill()
                return took
    raise UserError(f"{shlex.join(command)} ended too early: {text[-1000:]}")


def measure_programs(folder: Path, preset_name: str, repetitions: int) -> dict[str, list[float]]:
    """Returns the seconds until each program has shown its first result, in each repetition."""
    run, data, python = folder / "run", folder / "data", [sys.executable]
    generate = [*python, "-m", "txl_tf", "generate", f"--run={run}", "--max_new_tokens=1"]
    train = [*python, "train_gpu.py", f"--preset={preset_name}", f"--data_dir={data}"]
    train += ["--iterations=1", "--model_dir={}"]
    works: dict[str, tuple[list[str], Callable[[str], bool]]] = {
        "import txl_tf": ([*python, "-c", "import txl_tf; print(1)"], bool),
        "txl generate --help": (
            [*python, "-m", "txl_tf", "generate", "--help"],
            lambda text: "--[no]raw" in text,
        ),
        "import tensorflow, keras": ([*python, "-c", "import keras; print('ready')"], _is_ready),
        "txl_tf.load": (
            [*python, "-c", f"import txl_tf; txl_tf.load({str(run)!r}); print('ready')"],
            _is_ready,
        ),
        "txl generate, first token": (
            [*generate, f"--prompt={PROMPT}"],
            lambda text: text.startswith(PROMPT) and len(text) > len(PROMPT),
        ),
        "train_gpu.py, first step": (train, lambda text: "step 1/" in text),
    }
    found: dict[str, list[float]] = {name: [] for name in works}
    for index in range(repetitions):
        for name, (command, is_reached) in works.items():
            arguments = [text.replace("{}", str(folder / f"new-{index}")) for text in command]
            found[name].append(time_output(arguments, is_reached))
    return found


def _is_ready(text: str) -> bool:
    return "ready" in text


def measure_prompt(run: Path, length: int, repetitions: int) -> list[float]:
    """Returns the seconds to the first token after a prompt, of each call in a new process."""
    lm = txl_tf.load(run)
    prompt = np.arange(length, dtype=np.int32) % lm.config.n_token
    return _time_calls(lambda: lm.generate(prompt, max_new_tokens=1), repetitions)


def measure_texts(run: Path, texts: Sequence[str], repetitions: int) -> list[float]:
    """Returns the seconds that `LanguageModel.score` takes for texts, of each call."""
    lm = txl_tf.load(run)
    return _time_calls(lambda: lm.score(texts), repetitions)


def _time_calls(call: Callable[[], object], repetitions: int) -> list[float]:
    durations = []
    for _ in range(1 + repetitions):
        start = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start)
    return durations


def split_durations(durations: Sequence[float]) -> dict[str, float]:
    """Returns the first duration as cold and the median of the others as warm."""
    return {"cold": durations[0], "warm": statistics.median(durations[1:])}


def measure_all_texts(folder: Path, repetitions: int) -> dict[str, Any]:
    """Measures the scoring of many short texts by the class and by the program."""
    path = write_texts(folder)
    texts = path.read_text(encoding="utf-8").splitlines()
    seconds = split_durations(measure_apart(measure_texts, folder / "run", texts, repetitions))
    command = [sys.executable, "-m", "txl_tf", "score", f"--run={folder / 'run'}", "--by=line"]
    seconds["`txl score --by line`, from the start of the process"] = time_output(
        [*command, str(path)], lambda text: "total" in text
    )
    return {"texts": len(texts), "bytes": sum(map(len, texts)), "seconds": seconds}


def measure(options: flags.FlagValues) -> None:
    """Measures the parts, prints them and writes them to a file if wanted."""
    found: dict[str, Any] = {"preset": options.preset}
    with tempfile.TemporaryDirectory() as name:
        folder, run = Path(name), Path(name) / "run"
        make_run(folder, options.preset)
        if "programs" in options.parts:
            programs = measure_programs(folder, options.preset, options.repetitions)
            found["programs"] = programs
            rows = [(f"`{label}`", f"{statistics.median(x):.2f}") for label, x in programs.items()]
            print_table(("from the start of the process", "seconds"), rows)
        if "prompts" in options.parts:
            found["prompts"], rows = {}, []
            for length in PROMPT_LENS:
                durations = measure_apart(measure_prompt, run, length, options.repetitions)
                found["prompts"][str(length)] = each = split_durations(durations)
                rows.append((f"{length:,}", f"{each['cold']:.2f}", f"{each['warm']:.3f}"))
            header = ("tokens of the prompt", "cold, seconds to the first token", "warm")
            print_table(header, rows)
        if "texts" in options.parts:
            found["texts"] = texts = measure_all_texts(folder, options.repetitions)
            rows = [
                (label, f"{seconds:.1f}", f"{texts['bytes'] / seconds:,.0f}")
                for label, seconds in texts["seconds"].items()
            ]
            title = f"{texts['texts']:,} texts, {texts['bytes']:,} bytes"
            print_table((title, "seconds", "bytes/s"), rows)
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
