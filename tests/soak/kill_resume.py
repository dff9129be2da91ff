"""Kills a training run at random moments and compares what it becomes with one left alone.

python -m tests.soak.kill_resume --kills 50
python -m tests.soak.kill_resume --kills 50 --replicas 2
python -m tests.soak.kill_resume --kills 50 --workers 2

Run by hand: it takes about ten seconds a kill. The run saves at every step, so that many kills fall
into a save. After each one the same command is given again. In the end every logged loss must equal
the uninterrupted run's, bit for bit, and every state must have been readable.
"""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from absl import flags

from benchmarks.several_workers import start_workers
from txl_tf.errors import UserError
from txl_tf.program import define_flag, run_program

ROOT = Path(__file__).parents[2]
MODEL = (
    "--n_layer=2 --d_model=32 --d_embed=32 --n_head=2 --d_head=16 --d_inner=64 --dropout=0.2 "
    "--dropatt=0.1 --init_std=0.1"
)
RUN = "--train_batch_size=8 --tgt_len=16 --mem_len=16 --warmup_steps=20 --deterministic"


def make_command(folder: Path, options: flags.FlagValues) -> list[str]:
    """Returns the command that trains into `folder`."""
    return [
        sys.executable,
        str(ROOT / "train_gpu.py"),
        f"--data_dir={folder.parent / 'records'}",
        f"--model_dir={folder}",
        f"--train_steps={options.steps}",
        "--iterations=1",
        "--save_steps=1",
        f"--cpu_replicas={options.replicas}",
        *shlex.split(f"{MODEL} {RUN}"),
    ]


def read_losses(folder: Path) -> dict[int, float]:
    """Returns the logged loss of each step."""
    lines = (folder / "log.jsonl").read_text().splitlines()
    return {line["step"]: line["loss_nats"] for line in map(json.loads, lines)}


def start(folder: Path, options: flags.FlagValues) -> list[subprocess.Popen]:
    """Starts the processes of the run; what each prints is in `output-INDEX` beside the folder."""
    logs = [folder.parent / f"output-{index}" for index in range(options.workers)]
    return start_workers([make_command(folder, options)] * options.workers, logs)


def read_outputs(folder: Path) -> str:
    """Returns what the processes printed last."""
    return "".join(path.read_text() for path in sorted(folder.parent.glob("output-*")))


def run_to_the_end(folder: Path, options: flags.FlagValues) -> None:
    """Trains until the run is done.

    Raises:
        UserError: it failed.
    """
    statuses = [process.wait() for process in start(folder, options)]
    if any(statuses):
        raise UserError(f"the run failed with {statuses}: {read_outputs(folder)[-2000:]}")


def kill_once(folder: Path, wait: float, options: flags.FlagValues) -> bool:
    """Starts a run, lets it go on for a while once it saves, and kills it.

    Returns:
        Whether the run was over before.

    Raises:
        UserError: it failed by itself.
    """
    before = set(folder.glob("checkpoints/*"))
    processes = start(folder, options)
    while all(each.poll() is None for each in processes):
        if not set(folder.glob("checkpoints/*")) <= before:
            break
        time.sleep(0.001)
    time.sleep(wait)
    for process in processes:
        process.send_signal(signal.SIGKILL)
    statuses = [process.wait() for process in processes]
    failed = set(statuses) - {0, -signal.SIGKILL}
    if failed:
        raise UserError(f"the run failed with {statuses}: {read_outputs(folder)[-2000:]}")
    return statuses[0] == 0


def is_torn(folder: Path) -> bool:
    """Tells whether a save was begun that did not end: it has files, but no index."""
    steps = {path.name.split(".")[0] for path in folder.glob("checkpoints/ckpt-*")}
    return any(not (folder / "checkpoints" / f"{step}.index").exists() for step in steps)


def soak(options: flags.FlagValues) -> None:
    """Makes the two runs and compares them.

    Raises:
        UserError: a state could not be read, or a loss differs.
    """
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    generator = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        make = ["data_prep/make_tfrecords.py", "--dataset=pydoc", f"--data_dir={root / 'records'}"]
        subprocess.run([sys.executable, *make], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        whole, killed = root / "whole", root / "killed"
        run_to_the_end(whole, options)
        kills = n_in_a_save = n_aside = 0
        while kills < options.kills:
            if kill_once(killed, generator.random() * options.seconds, options):
                break
            kills += 1
            n_in_a_save += is_torn(killed)
            n_aside += "was set aside" in read_outputs(killed)
        run_to_the_end(killed, options)
        expected, found = read_losses(whole), read_losses(killed)
        differing = [step for step in expected if found.get(step) != expected[step]]
        print(
            f"{kills} kills, {n_in_a_save} of them in a save; {len(expected)} losses, "
            f"{len(differing)} differ; {n_aside} states could not be read"
        )
        if differing or n_aside or len(found) != len(expected):
            raise UserError(f"the losses of these steps differ: {differing[:20]}")


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "kills", int, 50, "How often to kill the run.", lower_bound=1)
    define_flag(options, "steps", int, 2000, "Steps of the run.", lower_bound=1)
    define_flag(options, "seconds", float, 1.0, "The longest wait before a kill.")
    define_flag(options, "replicas", int, 1, "Logical replicas on the CPU.", lower_bound=1)
    define_flag(options, "workers", int, 1, "Processes of the run, as on hosts.", lower_bound=1)
    define_flag(options, "seed", int, 0, "Of the moments.")
    return run_program(str(__doc__), options, soak, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
