"""Kills training runs at random moments and compares what they become with runs left alone.

python -m tests.soak.kill_resume --kills 100                     # spread over all kinds of runs
python -m tests.soak.kill_resume --kills 50 --kinds lamb,staged
python -m tests.soak.kill_resume --kills 50 --kinds plain --replicas 2
python -m tests.soak.kill_resume --kills 50 --kinds plain --workers 2

Run by hand: a kill takes some seconds. Processes are forked from one that has imported tensorflow
and done nothing with it. Two kinds are killed at the same time. The runs save at every step, so
many kills fall into a save. Only the kind `compiled` waits for XLA after each start. After each
kill the same command is given again. In the end every logged loss, gradient norm and validation
loss must equal the uninterrupted run's, bit for bit, and every state must have been readable. The
kind `replicas` goes on with one replica and with two in turn, whose sums are rounded in another
order: there losses agree to 1e-6, and gradient norms to 1e-3. Two whole runs of one replica and of
two, never killed, differ by 2e-7 and 1.3e-4.
"""

import json
import os
import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

from absl import flags

from benchmarks.flag_texts import keep_last
from benchmarks.several_workers import make_environments, run_python
from benchmarks.tables import print_table
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

MODEL = (
    "--n_layer=2 --d_model=32 --d_embed=32 --n_head=2 --d_head=16 --d_inner=64 --dropout=0.2 "
    "--dropatt=0.1 --init_std=0.1"
)
RUN = "--train_batch_size=8 --tgt_len=16 --mem_len=16 --warmup_steps=20 --deterministic --jit=none"


# What each kind adds to the command. Text of 256 bytes; 16 tokens a segment.
EVALUATING = "--eval_every=7 --eval_batch_size=64 --eval_tgt_len=64 --eval_mem_len=16"
KINDS = {
    "plain": "",
    "compiled": "--jit=whole",
    "adaptive": "--cutoffs=60,105 --div_val=2",
    "accumulation": "--accumulate_steps=2",
    "ema": f"--ema=0.9 {EVALUATING}",
    "staged": "--tgt_len_schedule=20:4,60:8",
    "documents": "--reset_at_documents",
    "lamb": "--optimizer=lamb --learning_rate=0.01 --weight_decay=0.1",
    "muon": (
        "--optimizer=muon --learning_rate=0.01 --schedule=wsd --decay_steps=20 --average_from=30 "
        f"{EVALUATING}"
    ),
    "bfloat16": "--precision=bfloat16",
    "patience": f"--patience=10000 {EVALUATING}",
    "one_checkpoint": "--keep_checkpoints=1",
    "all": (
        "--cutoffs=60,105 --div_val=2 --accumulate_steps=2 --ema=0.9 --tgt_len_schedule=20:4,60:8 "
        "--reset_at_documents --optimizer=lamb --learning_rate=0.01 --precision=bfloat16 "
        f"--keep_checkpoints=1 --patience=10000 {EVALUATING}"
    ),
    "replicas": "--dropout=0 --dropatt=0",
}
# Relative, where the number of replicas changes.
TOLERANCES = {"loss_nats": 1e-6, "grad_norm": 1e-3}
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(["tests.soak.preloaded"])


def train(arguments: list[str], log: Path, environment: dict[str, str]) -> None:
    """Runs the training program in a process of its own; the log takes all that it prints."""
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    from txl_tf.programs import train as train_gpu

    sys.exit(train_gpu.main(["train_gpu.py", *arguments]))


def make_records(folder: Path) -> None:
    """Makes the data set of the runs: the documentation of Python, as bytes."""
    run_python("data_prep/make_tfrecords.py", "--dataset=pydoc", f"--data_dir={folder}")


def make_arguments(
    folder: Path, kind: str, data_dir: Path, replicas: int, options: flags.FlagValues
) -> list[str]:
    """Returns the arguments of the training program that trains into `folder`."""
    arguments = [
        f"--data_dir={data_dir}",
        f"--model_dir={folder}",
        f"--train_steps={options.steps}",
        "--iterations=1",
        "--save_steps=1",
        f"--cpu_replicas={replicas}",
        *shlex.split(f"{MODEL} {RUN} {KINDS[kind]}"),
    ]
    return keep_last(arguments)


def read_numbers(folder: Path) -> dict[str, float]:
    """Returns what the run logged of each step, and its validation losses."""
    numbers = {}
    for name in ("log.jsonl", "validation.jsonl"):
        path = folder / name
        for line in path.read_text().splitlines() if path.exists() else ():
            record = json.loads(line)
            for key in ("loss_nats", "grad_norm"):
                if key in record:
                    numbers[f"{name} {record['step']} {key}"] = record[key]
    return numbers


class Run:
    """A run that is started again and again.

    Args:
        folder: of the run; what its processes print is in `output-INDEX` beside it.
        kind: one of `KINDS`.
        data_dir: its data set.
        options: the flags.
        train: runs the training program, as `train` does.
    """

    def __init__(
        self,
        folder: Path,
        kind: str,
        data_dir: Path,
        options: flags.FlagValues,
        train: Callable[..., None] = train,
    ):
        self.folder, self._kind, self._data_dir = folder, kind, data_dir
        self._options = options
        self._train = train
        self._n_starts = 0

    def _start(self) -> list[BaseProcess]:
        options = self._options
        replicas = 1 + self._n_starts % 2 if self._kind == "replicas" else options.replicas
        self._n_starts += 1
        arguments = make_arguments(self.folder, self._kind, self._data_dir, replicas, options)
        processes = []
        for index, environment in enumerate(make_environments(options.workers)):
            log = self.folder.parent / f"output-{index}"
            processes.append(FORKS.Process(target=self._train, args=(arguments, log, environment)))
            processes[-1].start()
        return processes

    def read_outputs(self) -> str:
        """Returns what the processes printed last."""
        return "".join(path.read_text() for path in sorted(self.folder.parent.glob("output-*")))

    def finish(self) -> None:
        """Trains until the run is done.

        Raises:
            UserError: it failed.
        """
        statuses = wait_for(self._start())
        if any(statuses):
            raise UserError(f"the run failed with {statuses}: {self.read_outputs()[-2000:]}")

    def kill(self, wait: float) -> bool:
        """Starts the run, lets it go on for a while once it has saved, and kills it.

        Returns:
            Whether the run was over before.

        Raises:
            UserError: it failed by itself.
        """
        before = set(self.folder.glob("checkpoints/*"))
        processes = self._start()
        while all(each.exitcode is None for each in processes):
            if not set(self.folder.glob("checkpoints/*")) <= before:
                break
            time.sleep(0.002)
        time.sleep(wait)
        for process in processes:
            process.kill()
        statuses = wait_for(processes)
        failed = set(statuses) - {0, -signal.SIGKILL}
        if failed:
            raise UserError(f"the run failed with {statuses}: {self.read_outputs()[-2000:]}")
        return statuses[0] == 0


def wait_for(processes: list[BaseProcess]) -> list[int | None]:
    """Waits until all processes are over; returns their exit statuses."""
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def is_torn(folder: Path) -> bool:
    """Returns whether a save was begun that did not end: it has files, but no index."""
    steps = {path.name.split(".")[0] for path in folder.glob("checkpoints/ckpt-*")}
    return any(not (folder / "checkpoints" / f"{step}.index").exists() for step in steps)


def soak_kind(
    root: Path, kind: str, n_kills: int, options: SimpleNamespace
) -> tuple[str, int, int, int, int, int]:
    """Kills a run of a kind, compares it with one left alone, and returns a row of the table.

    Raises:
        UserError: The run failed.
    """
    generator = random.Random(f"{options.seed} {kind}")
    data_dir = root / "records"
    whole = Run(root / kind / "whole" / "run", kind, data_dir, options)
    killed = Run(root / kind / "killed" / "run", kind, data_dir, options)
    for run in (whole, killed):
        run.folder.parent.mkdir(parents=True)
    whole.finish()
    kills = n_in_a_save = n_aside = 0
    while kills < n_kills:
        if killed.kill(generator.random() * options.seconds):
            break
        kills += 1
        n_in_a_save += is_torn(killed.folder)
        n_aside += "set aside" in killed.read_outputs()
    killed.finish()
    n_aside += "set aside" in killed.read_outputs()
    expected, found = read_numbers(whole.folder), read_numbers(killed.folder)
    tolerances = TOLERANCES if kind == "replicas" else {}
    differing = [
        name
        for name in expected | found
        if not (name in found and name in expected)
        or abs(found[name] - expected[name])
        > tolerances.get(name.split()[-1], 0.0) * abs(expected[name])
    ]
    if differing:
        print(f"{kind}: these numbers differ: {differing[:20]}", file=sys.stderr)
    return kind, kills, n_in_a_save, len(expected), len(differing), n_aside


def soak(options: flags.FlagValues) -> None:
    """Makes both runs of each kind and compares them.

    Raises:
        UserError: If a state could not be read, or a number differs.
    """
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        make_records(root / "records")
        share = -(-options.kills // len(options.kinds))
        header = ("run", "kills", "in a save", "numbers compared", "different", "unreadable states")
        rows = []
        values = SimpleNamespace(**options.flag_values_dict())
        soak_next = partial(soak_kind, root, n_kills=share, options=values)

        def make_rows() -> Iterator[tuple[object, ...]]:
            with ProcessPoolExecutor(2, get_context("spawn")) as pool:
                for row in pool.map(soak_next, options.kinds):
                    rows.append(row)
                    yield row

        print_table(header, make_rows())
    if failed := [kind for kind, *_, n_differing, n_aside in rows if n_differing or n_aside]:
        raise UserError(f"numbers differ, or a state could not be read: {', '.join(failed)}")


def define_run_flags(options: flags.FlagValues, n_steps: int) -> None:
    """Defines the flags that a `Run` needs."""
    define_flag(options, "steps", int, n_steps, "Steps of each run.", lower_bound=1)
    define_flag(options, "replicas", int, 1, "Logical replicas on the CPU.", lower_bound=1)
    define_flag(options, "workers", int, 1, "Processes of the run, as on hosts.", lower_bound=1)


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "kills", int, 100, "Number of kills in all.", lower_bound=1)
    define_flag(options, "kinds", list, [*KINDS], "Kinds of runs to kill.", choices=KINDS)
    define_run_flags(options, n_steps=2000)
    define_flag(options, "seconds", float, 1.0, "Longest wait before a kill.")
    define_flag(options, "seed", int, 0, "Seed of the moments of the kills.")
    return run_program(__doc__, options, soak, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
