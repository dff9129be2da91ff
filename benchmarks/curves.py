"""Loss curves of runs that should agree: any number of replicas, or any precision.

python -m benchmarks.curves --compare replicas --output docs/replicas.png
python -m benchmarks.curves --compare precision --output precision.png

Trains the demo's model once for each variant on the demo's corpus, prints how far each run is from
the first one, and draws all of them. It takes some minutes.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from absl import flags

from benchmarks.several_workers import start_workers
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.errors import UserError

ROOT = Path(__file__).parents[1]
# For each comparison its variants: a name, how many processes, and the flags. The first is what the
# others are compared with.
VARIANTS: dict[str, dict[str, tuple[int, list[str]]]] = {
    "replicas": {
        "1 replica": (1, []),
        "2 replicas": (1, ["--cpu_replicas=2"]),
        "4 replicas": (1, ["--cpu_replicas=4"]),
        "2 processes": (2, []),
    },
    "precision": {
        "float32": (1, []),
        "bfloat16": (1, ["--precision=bfloat16"]),
        "float16": (1, ["--precision=float16"]),
        "2 replicas, reduced in bfloat16": (1, ["--cpu_replicas=2", "--reduce_dtype=bfloat16"]),
    },
}


def train(folder: Path, data_dir: Path, n_processes: int, flag_texts: list[str]) -> np.ndarray:
    """Trains a run and returns the loss of each step in nats, (steps,).

    Raises:
        UserError: a process failed.
    """
    folder.mkdir()
    command = [sys.executable, str(ROOT / "train_gpu.py"), "--preset=demo", "--iterations=1"]
    command += [f"--data_dir={data_dir}", f"--model_dir={folder / 'run'}", *flag_texts]
    logs = [folder / f"output-{index}" for index in range(n_processes)]
    statuses = [process.wait() for process in start_workers([command] * n_processes, logs)]
    if any(statuses):
        raise UserError(f"{' '.join(command)} failed: {logs[0].read_text()[-1000:]}")
    lines = (folder / "run" / "log.jsonl").read_text().splitlines()
    return np.array([json.loads(line)["loss_nats"] for line in lines])


def draw(curves: dict[str, np.ndarray], target: str) -> None:
    """Draws the curves on top of each other, and how far each is from the first."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    losses, differences = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    (first_name, first), *others = curves.items()
    losses.plot(first, color="0.75", linewidth=5, label=first_name)
    for index, (name, curve) in enumerate(others):
        style = {"color": f"C{index}", "linewidth": 1, "label": name}
        losses.plot(curve, linestyle=(2 * index, (4, 4)), **style)
        differences.semilogy(np.abs(curve / first - 1) + 1e-9, **style)
    losses.set_ylabel("loss, nats per byte")
    losses.legend()
    differences.set_ylabel(f"relative difference\nto {first_name}")
    differences.set_xlabel("step")
    for axes in (losses, differences):
        axes.grid(visible=True, alpha=0.3)
    figure.savefig(target, dpi=120)


def compare(options: flags.FlagValues) -> None:
    """Trains the variants, prints their distances and draws them."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    curves: dict[str, np.ndarray] = {}
    schedule = [f"--train_steps={options.steps}", "--save_steps=100000"]
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        data_dir = root / "pydoc"
        make = ["data_prep/make_tfrecords.py", "--dataset=pydoc", f"--data_dir={data_dir}"]
        subprocess.run([sys.executable, *make], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        for variant, (n_processes, more) in VARIANTS[options.compare].items():
            folder = root / variant.replace(" ", "_")
            curves[variant] = train(folder, data_dir, n_processes, [*schedule, *more])
            first = next(iter(curves.values()))
            distance = np.abs(curves[variant] / first - 1)
            print(
                f"{variant:<32} loss of the last 20 steps {curves[variant][-20:].mean():.5f}; "
                f"off by at most {distance[:50].max():.1e} in 50 steps, {distance.max():.1e} in "
                f"{len(distance)}, by {curves[variant].mean() / first.mean() - 1:+.1e} in the mean",
                flush=True,
            )
    if options.output:
        draw(curves, options.output)
        print(f"Wrote {options.output}")


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(
        options, "compare", str, "replicas", "Setting in which the runs differ.", choices=VARIANTS
    )
    define_flag(options, "steps", int, 300, "Steps of each run.", lower_bound=1)
    define_flag(options, "output", str, None, "Picture to write. [default: none]", is_path=True)
    return run_program(__doc__, options, compare, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
