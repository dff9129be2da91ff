"""Runs the whole workflow: corpus, training, evaluation, a sample and a plot.

python examples/demo.py
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from absl import flags

from txl_tf import presets
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

ROOT = Path(__file__).parents[1]
DATA_DIR = "data/pydoc"


def list_commands(preset: str, model_dir: str) -> list[str]:
    """Returns the commands of the demo, which run in the project's folder."""
    run = f"--data_dir {DATA_DIR} --model_dir {model_dir}"
    return [
        f"python data_prep/make_tfrecords.py --dataset pydoc --data_dir {DATA_DIR}",
        f"python train_gpu.py --preset {preset} {run} --iterations 200 --save_steps 1200",
        f"python train_gpu.py --do_train=false --do_eval --eval_split test {run}",
        f"python -m txl_tf generate {model_dir} --prompt 'Return the ' --max_new_tokens 400",
        f"python examples/plot_loss.py --model_dir {model_dir}",
    ]


def list_next(preset: str) -> list[tuple[str, str]]:
    """Returns commands that follow the demo, each with its purpose."""
    run = f"--run runs/{preset}"
    return [
        (f"txl generate {run} --interactive", "type, and the model continues"),
        (f"txl score {run} README.md", "how likely is a text?"),
        (f"txl attention {run}", "what does it look at?"),
        (
            "txl prepare --dataset text --train MINE.txt --valid_fraction .05 --data_dir data/mine",
            "your own text",
        ),
        ("txl", "all programs"),
    ]


def run_commands(options: flags.FlagValues) -> None:
    """Prints and runs each command, up to the first that fails."""
    start = time.monotonic()
    print("# To run these commands yourself, begin with:\n$ . .venv/bin/activate")
    for command in list_commands(options.preset, f"runs/{options.preset}"):
        print(f"\n$ {command}")
        arguments = shlex.split(command)
        done = subprocess.run(
            [sys.executable, *arguments[1:]], cwd=ROOT, env=os.environ, check=False
        )
        if done.returncode:
            raise UserError(f"the command failed with status {done.returncode}: {command}")
    print(f"\nThe demo took {time.monotonic() - start:.0f} seconds. What you can do next:")
    for command, purpose in list_next(options.preset):
        print(f"  # {purpose}\n  {command}")


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "preset", str, "demo", "Preset to train.", choices=presets.names())
    return run_program(__doc__, options, run_commands, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
