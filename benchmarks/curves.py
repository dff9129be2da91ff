r"""Learning curves of runs that should agree (replicas, precisions), and of two recipes.

python -m benchmarks.curves --compare replicas --output replicas.png
python -m benchmarks.curves --compare precision --variants float32,bfloat16 --preset small \
    --steps 1000 --seeds 0,1,2 --score_in float32,bfloat16 --json precision.json
python -m benchmarks.curves --compare optimizers --preset small --steps 1000 --seeds 1,2 \
    --train_text TRAIN.txt --valid_text VALID.txt --work_dir runs/optimizers

Trains a model once for each variant and seed, on Python's documentation or on a text of yours, as
bytes. For runs that should agree, it prints how far each is from the run of the first variant with
the same seed, and with `--score_in`, the loss on the split valid in each of these precisions. For
the recipes, that of the preset and that of the 2019 release, it prints the loss on valid, and the
step at which it reaches the final loss of the release. It draws the curves of the first seed. With
`--work_dir`, a comparison keeps its runs there and can resume.
"""

import functools
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from benchmarks.several_workers import ROOT, run_python, start_workers
from benchmarks.tables import define_json_flag, print_table, write_json
from txl_tf import presets
from txl_tf.config import KERNEL_DTYPES, ModelConfig, TrainConfig
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

N_POINTS = 15  # evaluations in a run
_MODEL, _TRAINING = ModelConfig(n_token=256), TrainConfig()
# The release's own learning rate, .00025, is for larger models.
_RELEASE = [
    f"--optimizer={_TRAINING.optimizer}",
    f"--schedule={_TRAINING.schedule}",
    f"--min_lr_ratio={_TRAINING.min_lr_ratio}",
    "--learning_rate=0.001",
    f"--init_std={_MODEL.init_std}",
    f"--dropout={_MODEL.dropout}",
]
RECIPES = "optimizers"  # the comparison whose runs need not agree
# For each comparison, the variants by name: the number of processes, and the flags. Variants are
# compared with the first one, recipes with the last.
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
    RECIPES: {"recommended": (1, []), "release": (1, _RELEASE)},
}


def make_data(folder: Path, options: flags.FlagValues) -> None:
    """Prepares the records of the text, unless they exist."""
    source = ["--dataset=pydoc"]
    if options.train_text:
        source = ["--dataset=text", "--level=byte"]
        source += [f"--train={options.train_text}", f"--valid={options.valid_text}"]
    if not folder.exists():
        run_python("data_prep/make_tfrecords.py", *source, f"--data_dir={folder}")


def train(folder: Path, data_dir: Path, n_processes: int, flag_texts: list[str]) -> dict[str, Any]:
    """Trains a run in `folder / "run"` and returns its losses and its speed.

    Raises:
        UserError: If a process fails.
    """
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(ROOT / "train_gpu.py"), "--iterations=1"]
    command += [f"--data_dir={data_dir}", f"--model_dir={folder / 'run'}", *flag_texts]
    logs = [folder / f"output-{index}" for index in range(n_processes)]
    statuses = [process.wait() for process in start_workers([command] * n_processes, logs)]
    if any(statuses):
        raise UserError(f"{' '.join(command)} failed: {logs[0].read_text()[-1000:]}")
    log, validation = (
        [json.loads(line) for line in (folder / "run" / name).read_text().splitlines()]
        for name in ("log.jsonl", "validation.jsonl")
    )
    speeds = [line["tokens_per_second"] for line in log if "tokens_per_second" in line]
    return {
        "losses": [line["loss_nats"] for line in log],
        "valid": [(line["step"], line["loss_nats"] / math.log(2)) for line in validation],
        "tokens_per_second": statistics.median(speeds) if speeds else math.nan,
    }


def compare(options: flags.FlagValues) -> None:
    """Trains the variants, prints the results, and draws the curves.

    Raises:
        UserError: If a variant is unknown, or a run fails.
    """
    known = VARIANTS[options.compare]
    variants = options.variants or list(known)
    if unknown := [name for name in variants if name not in known]:
        raise UserError(f"`variants` must be some of {', '.join(known)}. Received: {unknown[0]}")
    settings = [f"--preset={options.preset}", f"--train_steps={options.steps}"]
    settings += [f"--warmup_steps={options.steps // 15}", "--save_steps=100000"]
    settings += [f"--eval_every={max(1, options.steps // N_POINTS)}", "--sample_tokens=0"]
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(options.work_dir or name).resolve()
        root.mkdir(parents=True, exist_ok=True)
        make_data(root / "data", options)
        for seed, variant in itertools.product(options.seeds, variants):
            n_processes, more = known[variant]
            folder = root / f"{variant.replace(' ', '_')}-{seed}"
            flag_texts = [*settings, f"--seed={seed}", *more]
            run = train(folder, root / "data", n_processes, flag_texts)
            evaluate = ("-m", "txl_tf", "evaluate", f"--run={folder / 'run'}", "--split=valid")
            run["bits"] = {
                each: json.loads(run_python(*evaluate, f"--precision={each}", "--json"))["bpc"]
                for each in options.score_in
            }
            found.append({"variant": variant, "seed": seed, **run})
            print(f"{variant}, seed {seed}: trained", file=sys.stderr)
    if options.compare == RECIPES:
        print_recipes(found)
    else:
        print_agreement(found, options.score_in)
    write_json(options, found)
    if options.output:
        draw([run for run in found if run["seed"] == options.seeds[0]], options.output)


def print_agreement(found: list[dict[str, Any]], precisions: list[str]) -> None:
    """Prints how far each run is from the run of the first variant with the same seed."""
    first = {run["seed"]: np.array(run["losses"]) for run in reversed(found)}
    rows = []
    for run in found:
        curve, expected = np.array(run["losses"]), first[run["seed"]]
        rows.append(
            [
                *(run["variant"], run["seed"], f"{curve[-20:].mean():.4f}"),
                f"{np.abs(curve / expected - 1)[:50].max():.1e}",
                f"{curve.mean() / expected.mean() - 1:+.1e}",
                *(f"{bits:.5f}" for bits in run["bits"].values()),
            ]
        )
    header = (
        *("variant", "seed", "loss of the last 20 steps, nats", "off by at most in 50 steps"),
        *("in the mean of all", *(f"bits per byte in {each}" for each in precisions)),
    )
    print_table(header, rows)


def print_recipes(found: list[dict[str, Any]]) -> None:
    """Prints the losses on valid, and when their mean reaches the final one of the last recipe."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for run in found:
        by_name.setdefault(run["variant"], []).append(run)
    curves = {
        name: np.mean([[bits for _, bits in run["valid"]] for run in runs], axis=0)
        for name, runs in by_name.items()
    }
    steps = [step for step, _ in found[0]["valid"]]
    goal, rows = list(curves.values())[-1][-1], []
    for name, runs in by_name.items():
        reached = [step for step, bits in zip(steps, curves[name], strict=True) if bits <= goal]
        last = [run["valid"][-1][1] for run in runs]
        speed = statistics.median(run["tokens_per_second"] for run in runs)
        cells = [name, f"{curves[name][-1]:.4f}", f"{min(last):.4f} to {max(last):.4f}"]
        rows.append([*cells, f"{reached[0]:,}" if reached else "never", f"{speed:,.0f}"])
    step = f"first evaluation as good as the last of {list(curves)[-1]}, step"
    print_table(("recipe", "bits per byte on valid", "range", step, "tokens/s"), rows)


def draw(found: list[dict[str, Any]], target: str) -> None:
    """Draws the curves on top of each other, and how far each is from the first."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    losses, differences = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    (first_name, first), *others = [(run["variant"], np.array(run["losses"])) for run in found]
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


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    define("compare", str, "replicas", "The setting that differs between runs.", choices=VARIANTS)
    define("variants", list, [], "Variants to train. [default: all]")
    define("preset", str, "demo", "Preset to train.", choices=presets.names())
    define("steps", int, 300, "Training steps of each run.", lower_bound=1)
    define("seeds", list, ["0"], "Seeds to train each variant with.")
    text = "Precisions in which to score each trained model. [default: none]"
    define("score_in", list, [], text, choices=KERNEL_DTYPES)
    text = "File to train on, as bytes. [default: Python's own documentation]"
    define("train_text", str, None, text, is_path=True)
    text = "File to evaluate on, with --train_text. [default: none]"
    define("valid_text", str, None, text, is_path=True)
    text = "Folder that keeps records and runs. [default: none]"
    define("work_dir", str, None, text, is_path=True)
    define_json_flag(options)
    define("output", str, None, "Picture to write. [default: none]", is_path=True)
    return run_program(__doc__, options, compare, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
