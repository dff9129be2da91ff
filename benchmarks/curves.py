r"""Loss curves: of runs that should agree (replicas, precisions), and of optimizers.

python -m benchmarks.curves --compare replicas --output replicas.png
python -m benchmarks.curves --compare precision --output precision.png
python -m benchmarks.curves --compare precision --variants float32,bfloat16 --preset small \
    --steps 1000 --seeds 0,1,2 --score_in float32,bfloat16 --json precision.json

Trains a model on the demo's corpus once for each variant and seed, prints how far each run is from
the run of the first variant with the same seed, and draws those of the first seed. With
`--score_in` each trained model is scored on the test split in each of these precisions. It takes
some minutes.

python -m benchmarks.curves --compare optimizers --quick    # minutes: does everything work?
python -m benchmarks.curves --compare optimizers --work_dir runs/optimizers --output curves.png

This tunes the learning rate of each optimizer and schedule, and compares the losses after equal
numbers of tokens; see `benchmarks/optimizers.py`. It takes a night. Finished runs stay in
--work_dir: an interrupted call resumes.
"""

import functools
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from benchmarks import optimizers
from benchmarks.several_workers import ROOT, run_python, start_workers
from benchmarks.tables import define_json_flag, print_table, write_json
from txl_tf import presets
from txl_tf.config.training import PRECISIONS
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

# For each comparison, the variants by name: how many processes, and the flags. The others are
# compared with the first.
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
        "2 replicas reducing in bfloat16": (1, ["--cpu_replicas=2", "--reduce_dtype=bfloat16"]),
    },
}
OPTIMIZERS = "optimizers"  # the comparison that is not one of `VARIANTS`
# Flags that only that comparison reads, and those that it does not read.
FLAGS_OF_OPTIMIZERS = (
    *("quick", "tuning_seed", "work_dir", "train_text", "valid_text", "valid_bytes"),
    *("n_layer", "d_model", "n_head", "tgt_len", "lanes", "init_std"),
)
FLAGS_OF_OTHERS = ("preset", "score_in", "json")


def train(folder: Path, data_dir: Path, n_processes: int, flag_texts: list[str]) -> np.ndarray:
    """Trains a run in `folder / "run"` and returns the loss of each step in nats, (steps,).

    Raises:
        UserError: a process failed.
    """
    folder.mkdir()
    command = [sys.executable, str(ROOT / "train_gpu.py"), "--iterations=1"]
    command += [f"--data_dir={data_dir}", f"--model_dir={folder / 'run'}", *flag_texts]
    logs = [folder / f"output-{index}" for index in range(n_processes)]
    statuses = [process.wait() for process in start_workers([command] * n_processes, logs)]
    if any(statuses):
        raise UserError(f"{' '.join(command)} failed: {logs[0].read_text()[-1000:]}")
    lines = (folder / "run" / "log.jsonl").read_text().splitlines()
    return np.array([json.loads(line)["loss_nats"] for line in lines])


def score(run: Path, data_dir: Path, precision: str) -> float:
    """Returns the bits per byte of a trained model on the test split, computed in a precision."""
    from txl_tf.data import open_records
    from txl_tf.models.transformer_xl import TransformerXL
    from txl_tf.runs.checkpoint_files import find_checkpoint
    from txl_tf.runs.checkpoint_reader import load_weights
    from txl_tf.runs.folder import read_run_config
    from txl_tf.scoring.evaluator import Evaluator
    from txl_tf.training.trainer import DTYPE_POLICIES

    config = read_run_config(str(run))
    model = TransformerXL(config.model, dtype=DTYPE_POLICIES[precision])
    load_weights(model, find_checkpoint(str(run), "newest"))
    evaluator = Evaluator(model, config.evaluation, jit="auto")
    return evaluator.score(open_records(data_dir).split("test")).bits_per_token


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
    """Trains the variants, prints their distances and draws them.

    Raises:
        UserError: If the comparison has no such variant, or a run fails.
    """
    known = VARIANTS[options.compare]
    variants = options.variants or list(known)
    if not set(variants) <= set(known):
        raise UserError(
            f"`variants` must be some of {', '.join(known)}. Received: {','.join(variants)}"
        )
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    curves: dict[str, dict[str, np.ndarray]] = {variant: {} for variant in variants}
    found: list[dict[str, Any]] = []
    settings = [f"--preset={options.preset}", f"--train_steps={options.steps}"]
    settings.append("--save_steps=100000")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        data_dir = root / "pydoc"
        run_python("data_prep/make_tfrecords.py", "--dataset=pydoc", f"--data_dir={data_dir}")
        for seed, variant in itertools.product(options.seeds, variants):
            n_processes, more = known[variant]
            folder = root / f"{variant.replace(' ', '_')}-{seed}"
            curve = train(folder, data_dir, n_processes, [*settings, f"--seed={seed}", *more])
            curves[variant][seed] = curve
            bits = {
                precision: score(folder / "run", data_dir, precision)
                for precision in options.score_in
            }
            found.append({"variant": variant, "seed": seed, "losses": curve.tolist(), "bits": bits})
            print(f"{variant}, seed {seed}: trained", file=sys.stderr)
    header = (
        *("variant", "seed", "loss of the last 20 steps, nats", "off by at most in 50 steps"),
        *("in the mean of all", *(f"bits per byte in {each}" for each in options.score_in)),
    )
    print_table(header, [make_row(each, curves[variants[0]][each["seed"]]) for each in found])
    write_json(options, found)
    if options.output:
        draw({name: curves[name][options.seeds[0]] for name in variants}, options.output)


def make_row(found: dict[str, Any], first: np.ndarray) -> list[str]:
    """Returns the cells of a run, beside the losses of the first variant with the same seed."""
    curve = np.array(found["losses"])
    return [
        *(found["variant"], found["seed"], f"{curve[-20:].mean():.4f}"),
        f"{np.abs(curve / first - 1)[:50].max():.1e}",
        f"{curve.mean() / first.mean() - 1:+.1e}",
        *(f"{bits:.5f}" for bits in found["bits"].values()),
    ]


def run_comparison(options: flags.FlagValues) -> None:
    """Runs the comparison that the flags name.

    Raises:
        flags.Error: If a flag has no effect on it.
        UserError: If the comparison has no such variant, or a run fails.
    """
    of_optimizers = options.compare == OPTIMIZERS
    for name in FLAGS_OF_OTHERS if of_optimizers else FLAGS_OF_OPTIMIZERS:
        if options[name].present:
            raise flags.Error(f"--{name} has no effect with --compare={options.compare}")
    defaults: dict[str, Any] = {"steps": 300, "seeds": ["0"]}
    if of_optimizers:
        defaults = {"steps": 1500, "seeds": ["1", "2", "3"]}
        defaults |= optimizers.QUICK if options.quick else {}
    for name, value in defaults.items():
        if not options[name].present:
            options[name].value = value
    (optimizers.compare if of_optimizers else compare)(options)


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    choices = [*VARIANTS, OPTIMIZERS]
    define("compare", str, "replicas", "Setting in which the runs differ.", choices=choices)
    define("variants", list, [], "Variants to train. [default: all]")
    define("preset", str, "demo", "Preset to train.", choices=presets.names())
    text = "Steps of each run. [default: 300; 1500 for optimizers]"
    define("steps", int, None, text, lower_bound=1)
    text = "Seeds to train each variant with. [default: 0; 1,2,3 for optimizers]"
    define("seeds", list, None, text)
    text = "Precisions in which to score each trained model. [default: none]"
    define("score_in", list, [], text, choices=PRECISIONS)
    define_json_flag(options)
    text = "Picture to write, of the first seed; of the mean for optimizers. [default: none]"
    define("output", str, None, text, is_path=True)
    define_optimizer_flags(define)
    return run_program(__doc__, options, run_comparison, argv)


def define_optimizer_flags(define: Callable[..., None]) -> None:
    """Defines the flags that only the comparison of optimizers reads."""

    def define_own(name: str, kind: type, default: Any, text: str, **rules: Any) -> None:
        define(name, kind, default, f"For optimizers: {text}", **rules)

    define_own("quick", bool, False, "minutes instead of a night, unless other flags are given.")
    define_own("tuning_seed", str, "0", "seed with which the learning rates are tuned.")
    text = "folder for records, results and the table."
    define_own("work_dir", str, "runs/optimizers", text, is_path=True)
    text = "file to train on, as bytes. [default: Python's own documentation]"
    define_own("train_text", str, None, text, is_path=True)
    define_own("valid_text", str, None, "file to evaluate on, with --train_text.", is_path=True)
    text = "bytes to evaluate on, from the beginning."
    define_own("valid_bytes", int, 200_000, text, lower_bound=1000)
    define_own("n_layer", int, 4, "layers of the model.", lower_bound=1)
    define_own("d_model", int, 256, "width of the model; a quarter of d_inner.", lower_bound=2)
    define_own("n_head", int, 4, "heads, which divide the width.", lower_bound=1)
    define_own("tgt_len", int, 64, "length of segment and memory.", lower_bound=1)
    define_own("lanes", int, 16, "lanes of the batch.", lower_bound=1)
    define_own("init_std", float, 0.02, "standard deviation of the initial weights.")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
