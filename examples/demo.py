"""The main job in one go: corpus, training, evaluation, a sample, a plot, a comparison.

python examples/demo.py
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from absl import flags

from txl_tf.errors import UserError
from txl_tf.program import define_flag, run_program

ROOT = Path(__file__).parents[1]
DATA_DIR, MODEL_DIR = "data/pydoc", "runs/demo"


def list_commands(preset: str) -> list[str]:
    """Returns the commands of the demo, as a user would type them in the project's folder."""
    run = f"--data_dir {DATA_DIR} --model_dir {MODEL_DIR}"
    prepare = f"python data_prep/make_tfrecords.py --dataset pydoc --data_dir {DATA_DIR}"
    is_prepared = (ROOT / DATA_DIR / "records.json").exists()
    return ([] if is_prepared else [prepare]) + [
        f"python train_gpu.py --preset {preset} {run} --iterations 200",
        f"python train_gpu.py --do_train=false --do_eval --eval_split test {run}",
        f"python examples/sample.py --model_dir {MODEL_DIR} --prompt 'Return the ' --length 400",
        f"python examples/plot_loss.py --model_dir {MODEL_DIR}",
        f"python -m benchmarks.baselines {run}",
    ]


def run_commands(options: flags.FlagValues) -> None:
    """Prints each command and runs it; stops at the first that fails."""
    start = time.monotonic()
    commands = list_commands(options.preset)
    if len(commands) == 5:
        print(f"{DATA_DIR} holds the records already.", flush=True)
    for command in commands:
        print(f"\n$ {command}", flush=True)
        arguments = shlex.split(command)
        done = subprocess.run(
            [sys.executable, *arguments[1:]], cwd=ROOT, env=os.environ, check=False
        )
        if done.returncode:
            raise UserError(f"the command failed with status {done.returncode}: {command}")
    print(f"\nAll of it took {time.monotonic() - start:.0f} seconds.")


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "preset", str, "demo", "Recipe to train.")
    return run_program(str(__doc__), options, run_commands, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
