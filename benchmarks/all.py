r"""Measures everything that the documentation cites, and writes the results into the pages.

python -m benchmarks.all
python -m benchmarks.all --only latency,prepare
python -m benchmarks.all --peer 'python -m benchmarks.peers.tensorflow2019 --source DIR' \
    --text_dir wikitext-2

It takes hours and can resume: what was measured with the same code is not measured again. Each
measurement is a separate program, which prints tables in Markdown. `docs/lab/figures.json` keeps
them with commit, machine and date, including those of programs that no longer exist. Blocks such as

<!-- figures: latency -->
<!-- end of figures -->

in README.md and the pages show them. `--text_dir` has the files `train.txt` and `valid.txt`.
"""

import datetime
import json
import os
import re
import shlex
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "lab" / "figures.json"
CODE = ("txl_tf", "data_prep", "benchmarks", "examples", "tests/soak", "train_gpu.py")
_BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


class Measurement(NamedTuple):
    """A program that prints tables.

    Args:
        command: What follows `python -m`.
        flag: The flag of `benchmarks.all` without which it is not run.
    """

    command: str
    flag: str = ""


MEASUREMENTS = {
    "compare": Measurement("benchmarks.compare --rounds 1 --seconds 5 --jit whole,chains", "peer"),
    "profile": Measurement("benchmarks.profile"),
    "latency": Measurement("benchmarks.latency"),
    "windows": Measurement("benchmarks.windows --plot docs/lab/speed.png"),
    "prepare": Measurement("benchmarks.prepare"),
    "demo": Measurement("benchmarks.demo --run {work}/demo"),
    "learning": Measurement(
        "benchmarks.curves --compare optimizers --preset small --steps 1000 --seeds 1,2 "
        "--work_dir {work}/learning --train_text {text_dir}/train.txt "
        "--valid_text {text_dir}/valid.txt",
        "text_dir",
    ),
}


def measure(name: str, options: flags.FlagValues) -> dict[str, Any]:
    """Runs a measurement and returns its record.

    Raises:
        UserError: If it fails, or the code changes in the meantime.
    """
    commit = name_commit()
    work = f"build/figures/{commit}"  # for what a measurement keeps, to resume
    command = MEASUREMENTS[name].command.format(text_dir=options.text_dir, work=work)
    arguments = [sys.executable, "-m", *shlex.split(command)]
    if name == "compare":
        arguments += [f"--peer={peer}" for peer in options.peer]
    start = time.monotonic()
    done = subprocess.run(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        raise UserError(f"{name} failed with status {done.returncode}")
    if not has_same_code(commit):
        print(done.stdout, file=sys.stderr)
        raise UserError(f"{name}: the code changed while it was measured")
    return {
        "command": f"python -m {command}",
        "commit": commit,
        "machine": describe_machine(),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "seconds": round(time.monotonic() - start),
        "text": done.stdout.strip(),
    }


def name_commit() -> str:
    """Returns the newest commit that changed the code."""
    return _git("log", "-1", "--format=%h", "--", *CODE).stdout.strip()


def describe_machine() -> str:
    """Returns the processors and the version of TensorFlow."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text() if info.exists() else "")
    return f"{os.cpu_count()} x {names[0] if names else 'CPU'}, TensorFlow {version('tensorflow')}"


def has_same_code(commit: str) -> bool:
    """Returns whether the measured code is that of a commit; false if the commit does not exist."""
    return not _git("diff", "--quiet", commit, "--", *CODE).returncode


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def read_figures() -> dict[str, Any]:
    """Returns all records, by the names of the measurements."""
    return json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}


def write_figures(figures: dict[str, Any]) -> None:
    """Writes all records."""
    text = json.dumps(figures, indent=1, ensure_ascii=False) + "\n"
    FIGURES.write_text(text, encoding="utf-8")


def list_pages() -> list[Path]:
    """Returns the files that may contain blocks."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def fill_blocks(page: str, figures: dict[str, Any]) -> str:
    """Returns a page with the results in its blocks; a block without a result stays as it is."""

    def fill(match: re.Match[str]) -> str:
        head, name, tail = match.groups()
        if name not in figures:
            return match[0]
        record = figures[name]
        source = (
            f"`{record['command']}`, commit {record['commit']}, {record['date']}, "
            f"{record['machine']}."
        )
        return f"{head}\n{record['text']}\n\n{source}\n\n{tail}"

    return _BLOCK.sub(fill, page)


def fill_pages(figures: dict[str, Any]) -> None:
    """Writes the results into the blocks of all pages."""
    for path in list_pages():
        page = path.read_text(encoding="utf-8")
        if (filled := fill_blocks(page, figures)) != page:
            path.write_text(filled, encoding="utf-8")
            print(f"Wrote {path.relative_to(ROOT)}")


def measure_all(options: flags.FlagValues) -> None:
    """Runs the missing measurements, and fills the pages.

    Raises:
        UserError: If the code is not committed, or a measurement fails; the results of the others
            are kept.
    """
    if not has_same_code("HEAD"):
        raise UserError("commit the changes of the code first: each figure names its commit")
    figures, failed = read_figures(), []
    for name in options.only:
        flag = MEASUREMENTS[name].flag
        if flag and not options[flag].value:
            print(f"{name}: not measured without --{flag}")
            continue
        if name in figures and has_same_code(figures[name]["commit"]):
            print(f"{name}: measured with the same code on {figures[name]['date']}")
            continue
        print(f"{name}: {MEASUREMENTS[name].command}", flush=True)
        try:
            figures[name] = measure(name, options)
        except UserError as error:
            failed.append(str(error))
            continue
        figures = read_figures() | {name: figures[name]}  # others may be measured at the same time
        write_figures(figures)
    fill_pages(figures)
    if failed:
        raise UserError("; ".join(failed))


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    names = list(MEASUREMENTS)
    define_flag(options, "only", list, names, "Measurements to run.", choices=names)
    text = "Command that measures another implementation; see benchmarks.compare."
    define_flag(options, "peer", str, [], text, multiple=True)
    text = "Folder with train.txt and valid.txt to learn from. [default: none]"
    define_flag(options, "text_dir", str, None, text, is_path=True)
    return run_program(__doc__, options, measure_all, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
