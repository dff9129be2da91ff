"""Compares the speed of `CausalLM.fit` with that of `txl train`: same preset, records and steps.

python -m benchmarks.keras_fit
python -m benchmarks.keras_fit --preset small --rounds 5

Each measurement runs in its own process, and a round has one of each kind. The first quarter of the
steps, which includes all compilation, does not count.
"""

import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from absl import flags

import txl_tf
from benchmarks.several_workers import run_python
from txl_tf import presets
from txl_tf.data import open_records
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

STEPS_A_CALL = 50
KINDS = ("txl train", "fit on tensorflow", "fit on jax")


def measure_program(preset: str, data_dir: str, n_steps: int) -> float:
    """Returns the tokens per second of `txl train`: the median over the lines of its log."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        arguments = [f"--preset={preset}", f"--data_dir={data_dir}", f"--run={run}", "--quiet"]
        arguments += [f"--train_steps={n_steps}", f"--iterations={STEPS_A_CALL}"]
        run_python("-m", "txl_tf", "train", *arguments)
        lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
        speeds = [json.loads(line).get("tokens_per_second") for line in lines]
    return statistics.median(filter(None, speeds[len(speeds) // 4 :]))


def measure_fit(preset: str, data_dir: str, n_steps: int) -> float:
    """Returns the tokens per second of `fit`: the median over its calls to the device."""
    import keras

    class Clock(keras.callbacks.Callback):
        """Records the time after each call to the device."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            times.append(time.perf_counter())

    times: list[float] = []
    records, training = open_records(data_dir), presets.get(preset).training
    lm = txl_tf.CausalLM.from_preset(preset, n_token=records.n_token)
    lm.compile(lm.make_optimizer(training), steps_per_execution=STEPS_A_CALL, jit_compile=True)
    batch_size, tgt_len = training.train_batch_size, training.tgt_len
    data = txl_tf.Segments(records.split("train"), batch_size=batch_size, tgt_len=tgt_len)
    lm.fit(data, steps_per_epoch=n_steps, callbacks=[Clock()], verbose=0)
    counted = times[len(times) // 4 :]
    seconds = [stop - start for start, stop in itertools.pairwise(counted)]
    return STEPS_A_CALL * batch_size * tgt_len / statistics.median(seconds)


def measure(kind: str, preset: str, data_dir: str, n_steps: int) -> float:
    """Returns the tokens per second of one of `KINDS`."""
    if kind == KINDS[0]:
        return measure_program(preset, data_dir, n_steps)
    program = (
        "from benchmarks.keras_fit import measure_fit; "
        f"print(measure_fit({preset!r}, {data_dir!r}, {n_steps}))"
    )
    return float(run_python("-c", program, KERAS_BACKEND=kind.split()[-1]).split()[-1])


def compare(options: flags.FlagValues) -> None:
    """Measures all kinds in each round and prints the medians."""
    with tempfile.TemporaryDirectory() as folder:
        data_dir = f"{folder}/data"
        run_python("-m", "txl_tf", "prepare", "--dataset=pydoc", f"--data_dir={data_dir}")
        rounds = [
            [measure(kind, options.preset, data_dir, options.steps) for kind in KINDS]
            for _ in range(options.rounds)
        ]
    for kind, speeds in zip(KINDS, zip(*rounds, strict=True), strict=True):
        ratio = statistics.median(
            speed / each[0] for speed, each in zip(speeds, rounds, strict=True)
        )
        print(f"{kind:<18} {statistics.median(speeds):>9,.0f} tokens/s {ratio:>6.2f}")


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "preset", str, "demo", "Preset to train.")
    define_flag(options, "steps", int, 400, "Steps in each measurement.", lower_bound=200)
    define_flag(options, "rounds", int, 3, "Number of rounds.", lower_bound=1)
    return run_program(__doc__, options, compare, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
