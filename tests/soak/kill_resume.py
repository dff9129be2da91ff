"""Kills training runs at random moments and compares what they become with runs left alone.

python -m tests.soak.kill_resume --kills 100                     # spread over all kinds of runs
python -m tests.soak.kill_resume --kills 50 --kinds muon,replicas

After each kill the same command is given again; a run that ends before enough kills is followed by
another. The runs save at every step, so many kills fall into a save. In the end every logged loss,
gradient norm and validation loss must equal the uninterrupted run's, bit for bit, and every state
must have been readable. The kind `replicas` goes on with one replica and with two in turn, whose
sums are rounded in another order: there losses agree to 1e-6, and gradient norms to 1e-3. Two whole
runs of one replica and of two, never killed, differ by 2e-7 and 1.3e-4.
"""

import json
import random
import signal
import sys
import time
from collections import Counter
from math import isclose, nan

from benchmarks.flag_texts import keep_last
from benchmarks.several_workers import run_python
from tests.helpers.forked_programs import ForkedProgram, train
from tests.soak.harness import run_soak
from txl_tf.errors import UserError
from txl_tf.progress import Bar

# Text of 256 bytes; 16 tokens a segment.
FLAGS = (
    "--n_layer=2 --d_model=32 --d_embed=32 --n_head=2 --d_head=16 --d_inner=64 --dropout=0.2 "
    "--dropatt=0.1 --init_std=0.1 --train_batch_size=8 --tgt_len=16 --mem_len=16 --warmup_steps=20 "
    "--deterministic --jit=none --iterations=1 --save_steps=1"
)
EVALUATING = "--eval_every=7 --eval_batch_size=64 --eval_tgt_len=64 --eval_mem_len=16"
# What each kind adds to the command.
KINDS = {
    "plain": "",
    "compiled": "--jit=whole",
    "muon": (
        "--optimizer=muon --learning_rate=0.01 --schedule=wsd --decay_steps=20 --average_from=30 "
        f"{EVALUATING}"
    ),
    "all": (
        "--cutoffs=60,105 --div_val=2 --accumulate_steps=2 --ema=0.9 --tgt_len_schedule=20:4,60:8 "
        "--reset_at_documents --optimizer=lamb --learning_rate=0.01 --weight_decay=0.1 "
        f"--precision=bfloat16 --keep_checkpoints=1 --patience=10000 {EVALUATING}"
    ),
    "replicas": "--dropout=0 --dropatt=0",
}
# Relative, where the number of replicas changes.
TOLERANCES = {"loss_nats": 1e-6, "grad_norm": 1e-3}


class Run:
    """A run that is started again and again.

    Args:
        root: A folder with the data set of `make_records`.
        name: The folder of the run in it; the log beside it has what the last process printed.
        steps: The steps of the run.
        kind: One of `KINDS`.
        train: Runs the training program, as `forked_programs.train` does.
    """

    def __init__(self, root, name, steps, kind="plain", train=train):
        self.folder, self.log = root / name, root / f"{name}.txt"
        self.folder.mkdir(parents=True)
        self.n_unreadable = 0  # states that a start found
        places = f"--data_dir={root / 'records'} --model_dir={self.folder} --train_steps={steps}"
        self._arguments = keep_last(f"{places} {FLAGS} {KINDS[kind]}".split())
        self._kind, self._train, self._n_starts = kind, train, 0

    def finish(self):
        """Trains until the run is done; a failure is a `UserError`."""
        self._wait_for(self._start())

    def kill(self, wait):
        """Starts the run, lets it go on for `wait` seconds once it has saved, and kills it.

        Returns whether it was killed: it may have been done before.
        """
        before = self._list_saved()
        program = self._start()
        while program.poll() is None and self._list_saved() <= before:
            time.sleep(0.002)
        time.sleep(wait)
        program.kill()
        return self._wait_for(program, -signal.SIGKILL) != 0

    def is_torn(self):
        """Returns whether a save was begun that did not end: it has files, but no index."""
        names = self._list_saved()
        return any(f"{name.split('.')[0]}.index" not in names for name in names)

    def read_numbers(self):
        """Returns what the run logged, by file, step, and name."""
        return {
            (path.name, record["step"], name): record[name]
            for path in (self.folder / "log.jsonl", *self.folder.glob("validation.jsonl"))
            for record in map(json.loads, path.read_text().splitlines())
            for name in TOLERANCES.keys() & record
        }

    def compare(self, whole):
        """Returns a text for each number that is not that of an uninterrupted run."""
        expected, found = whole.read_numbers(), self.read_numbers()
        limits = TOLERANCES if self._kind == "replicas" else dict.fromkeys(TOLERANCES, 0.0)
        pairs = {key: (found.get(key, nan), expected.get(key, nan)) for key in expected | found}
        return [
            f"{key}: {pair[0]}, without interruption {pair[1]}"
            for key, pair in pairs.items()
            if not isclose(*pair, rel_tol=limits[key[-1]])
        ]

    def _start(self):
        replicas = 1 + self._n_starts % 2 if self._kind == "replicas" else 1
        self._n_starts += 1
        arguments = [*self._arguments, f"--cpu_replicas={replicas}"]
        return ForkedProgram(arguments, self.log, run=self._train)

    def _wait_for(self, program, *allowed):
        status, text = program.wait(), self.log.read_text()
        self.n_unreadable += "set aside" in text
        if status not in (0, *allowed):
            raise UserError(f"the run failed with {status}: {text[-2000:]}")
        return status

    def _list_saved(self):
        return {path.name for path in self.folder.glob("checkpoints/ckpt-*")}


def make_records(root):
    """Makes the data set of the runs: the documentation of Python, as bytes."""
    run_python("data_prep/make_tfrecords.py", "--dataset=pydoc", f"--data_dir={root / 'records'}")


def soak(root, options):
    """Kills runs of each kind and compares them with one left alone."""
    make_records(root)
    share = -(-options.kills // len(options.kinds))
    for kind in options.kinds:
        generator = random.Random(kind)
        whole = Run(root, f"{kind}/whole", options.steps, kind)
        whole.finish()
        cells, faults, runs = Counter({"kills": 0, "in a save": 0}), [], []
        with Bar(kind, total=share, unit="kill") as bar:
            while cells["kills"] < share:
                run = Run(root, f"{kind}/{len(runs)}", options.steps, kind)
                runs.append(run)
                while cells["kills"] < share and run.kill(generator.random() * options.seconds):
                    cells.update({"kills": 1, "in a save": run.is_torn()})
                    bar.update()
                run.finish()
                cells["numbers compared"] += len(run.read_numbers())
                faults += run.compare(whole)
                faults += ["a state could not be read"] * run.n_unreadable
        yield kind, cells, faults


def main(argv):
    """Runs the program on a command line and returns its exit status."""
    return run_soak(
        __doc__,
        soak,
        argv,
        kills=(100, "Number of kills in all."),
        kinds=([*KINDS], "Kinds of runs to kill."),
        steps=(400, "Steps of each run."),
        seconds=(1.0, "Longest wait before a kill."),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv))
