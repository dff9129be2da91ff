r"""Compares training runs with those of other people's code.

txl prepare --dataset wt2
txl train --preset wt2 --data_dir data/wt2 --run runs/wt2-444 --seed 444 --precision bfloat16 \
    --eval_every 400 --iterations 50 --save_steps 400 --stop_step 400
python -m benchmarks.trainings --add runs/wt2-444 --plot docs/img/trainings.png

`--add` reads the losses of runs by step, and also evaluates each run as the others do. The results
are kept in `docs/lab/figures.json`, from which the tables and the plot are made; a run replaces the
one with the same preset, settings, seed and precision.
"""

import datetime
import functools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from benchmarks.all import describe_machine, fill_pages, name_commit, read_figures, write_figures
from benchmarks.several_workers import run_python
from benchmarks.tables import format_table
from txl_tf import ModelConfig, TrainConfig, presets
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

Curve = Mapping[int, float]  # perplexities by step


class Reference(NamedTuple):
    """Training runs of other people's code.

    Args:
        title: What was trained.
        unit: The unit of training after which they evaluate: "step" or "epoch".
        n_steps: The number of steps in a unit.
        valid: Perplexities on the validation split, by the name of the seed and number of units.
        train: Perplexities in training, by the name of the seed and step, each over the steps since
            the previous one.
        evaluate: The flags with which `txl evaluate` evaluates as they do.
    """

    title: str
    unit: str
    n_steps: int
    valid: dict[str, Curve]
    train: dict[str, Curve]
    evaluate: Sequence[str]


def _make_curves(units: str, **seeds: str) -> dict[str, Curve]:
    return {
        name.replace("_", " "): dict(
            zip(map(int, units.split()), map(float, values.split()), strict=False)
        )
        for name, values in seeds.items()
    }


SHAKESPEARE = "shakespeare"
# From the README of github.com/karpathy/nanoGPT: the characters read, the parameters, and the
# losses on random windows of the lengths in `WINDOWS`.
WINDOWS = (64, 256)
NANOGPT = (
    ("nanoGPT, on a laptop", "1.54M", "0.80M", ("1.88", "")),
    ("nanoGPT, on an A100", "81.9M", "10.65M", ("", "1.470")),
)
# github.com/ischlag/Fast-Weight-Memory-public, folder language-modelling
REFERENCES = {
    "wt2": Reference(
        title="WikiText-2, with memory",
        unit="step",
        n_steps=1,
        valid=_make_curves(
            "400 800 1200 2000 4000 8000 16000 32000 64000 120000",
            seed_444="950.8 551.4 391.5 253.2 151.7 108.1 87.3 75.0 69.1 65.9",
            seed_555="984.0 550.2 389.2 251.2 151.9 106.4 85.7 74.5 69.0 66.0",
            seed_666="942.0 551.3 390.0 254.9 152.4 108.2 86.5 75.1 69.4 65.9",
        ),
        train=_make_curves(
            "50 100 150 200 250 300 350 400",
            seed_444="27199 16577 10750 7816 5364 3588 2331 1662",
            seed_555="27697 16448 10768 7843 5357 3565 2311 1660",
            seed_666="25928 15203 9978 7418 5079 3389 2237 1624",
        ),
        evaluate=("--warm_len=0",),  # lanes begin with an empty memory
    ),
    "ptb": Reference(
        title="Penn Treebank, without memory",
        unit="epoch",
        n_steps=1372,
        valid=_make_curves(
            "1 2 3 5 10 15 20 30 40 100 125",
            seed_2="370.4 234.5 187.4 147.2 111.5 97.9 89.1 81.2 75.9 62.9 62.0",
            seed_3="373.6 238.2 187.6 148.9 112.7 99.8 91.2 80.8 75.3 62.3 61.3",
            seed_1111="361.1 232.2 187.0 147.3 113.5 98.8 90.7 81.1 75.7 62.5 61.6",
            seed_1111_earlier="369.3 237.5 186.0 147.3 111.5 98.1 90.0 81.0 75.9",
        ),
        train=_make_curves(
            "200 400 600 800 1000 1200",
            seed_2="5139 942 771 686 641 536",
            seed_3="5252 938 770 682 635 527",
            seed_1111="5004 927 758 660 627 524",
            seed_1111_earlier="4857 925 773 697 643 537",
        ),
        evaluate=("--tgt_len=140", "--stride=10", "--temperature=1"),
    ),
}


def read_run(folder: Path, commit: str, settings: str) -> tuple[str, dict[str, Any]]:
    """Returns the data set of a run, and the record to keep.

    `settings` says in words what differs from the preset.

    Raises:
        UserError: If there is no reference for this data set.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    dataset, training = config["dataset"], TrainConfig.from_json(config["training"])
    if dataset not in (*REFERENCES, SHAKESPEARE):
        raise UserError(f"`{folder}`: no training on {dataset} is known to compare with")
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    steps = [0, *(line["step"] for line in lines)]
    n_read = [training.count_tokens(step) for step in steps]
    seconds = sum(
        (after - before) / line["tokens_per_second"]
        for before, after, line in zip(n_read, n_read[1:], lines, strict=False)
    )
    run = {
        "seed": training.seed,
        "precision": training.precision,
        "settings": settings,
        "commit": commit,
        "machine": describe_machine(),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "hours": round(seconds / 3600, 2),
    }
    if dataset == SHAKESPEARE:
        model = ModelConfig(**config["model"])
        windows = ["--mem_len=0", "--same_length=false", "--warm_len=0"]
        return dataset, run | {
            "preset": presets.find(model, dataset) or dataset,
            "characters": n_read[-1],
            "parameters": model.count_parameters(),
            "loss": evaluate(folder)["loss_nats"],
            "windows": {
                str(length): evaluate(folder, f"--tgt_len={length}", *windows)["loss_nats"]
                for length in WINDOWS
                if not model.is_recurrent  # its state passes from window to window
            },
        }
    return dataset, run | {
        "train": merge_intervals(REFERENCES[dataset], lines),
        "valid": evaluate_checkpoints(folder, REFERENCES[dataset]),
    }


def merge_intervals(reference: Reference, lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the perplexities in a log, over the intervals of the others' logs.

    >>> reference = Reference("", "step", 1, {}, {"seed": {100: 0.0}}, ())
    >>> merge_intervals(reference, [{"step": 50, "loss_nats": 2}, {"step": 100, "loss_nats": 4}])
    {'100': 20.085536923187668}
    """
    ends = sorted({step for curve in reference.train.values() for step in curve})
    found = {}
    for start, end in zip([0, *ends], ends, strict=False):
        losses = [line["loss_nats"] for line in lines if start < line["step"] <= end]
        if losses and lines[-1]["step"] >= end:
            found[str(end)] = math.exp(sum(losses) / len(losses))
    return found


def evaluate_checkpoints(folder: Path, reference: Reference) -> dict[str, float]:
    """Returns the perplexities after the same units as the others', evaluated as they do."""
    units = {unit for curve in reference.valid.values() for unit in curve}
    found = {}
    for unit in sorted(units):
        path = folder / "checkpoints" / f"ckpt-{unit * reference.n_steps}"
        if path.with_suffix(".index").exists():
            score = evaluate(folder, f"--checkpoint={path}", *reference.evaluate)
            found[str(unit)] = score["perplexity"]
    return found


def evaluate(folder: Path, *arguments: str) -> dict[str, Any]:
    """Returns what `txl evaluate` prints for a run on the validation split.

    Raises:
        UserError: If it fails.
    """
    program = ("-m", "txl_tf", "evaluate", f"--run={folder}", "--split=valid", "--json")
    return json.loads(run_python(*program, *arguments))


def keep(runs: Sequence[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the kept runs with a new one, which replaces or continues one with the same name.

    >>> old = {"seed": 1, "precision": "float32", "valid": {"400": 9.0}}
    >>> keep([old], old | {"valid": {"800": 5.0}})[0]["valid"]
    {'400': 9.0, '800': 5.0}
    """

    def name(run: Mapping[str, Any]) -> tuple[str, str, int, str]:
        return run.get("preset", ""), run.get("settings", ""), run["seed"], run["precision"]

    by_name = {name(run): run for run in runs}
    if "valid" in new:
        valid = by_name.get(name(new), {"valid": {}})["valid"] | new["valid"]
        new = new | {"valid": valid}
    by_name[name(new)] = new
    return [by_name[key] for key in sorted(by_name)]


def format_text(dataset: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """Returns the tables of a data set, and where its runs were trained."""
    is_shakespeare = dataset == SHAKESPEARE
    tables = [format_shakespeare(runs)] if is_shakespeare else format_curves(dataset, runs)
    sources = (
        f"{_name(run, dataset)}: {60 * run['hours']:.0f} minutes, "
        f"commit {run['commit']}, {run['date']}, {run['machine']}."
        for run in runs
    )
    return "\n\n".join([*tables, "\\\n".join(sources)])


def format_shakespeare(runs: Sequence[Mapping[str, Any]]) -> str:
    """Returns the losses in nats per character, next to those of nanoGPT."""
    rows = [[*row, "", *cells] for *row, cells in NANOGPT]
    for run in runs:
        losses = (run["windows"].get(str(length)) for length in WINDOWS)
        windows = ("" if loss is None else f"{loss:.3f}" for loss in losses)
        sizes = (f"{run['characters'] / 1e6:.2f}M", f"{run['parameters'] / 1e6:.2f}M")
        name = f"**{_name(run, '')}**"
        rows.append([name, *sizes, f"**{run['loss']:.3f}**", *windows])
    header = ["loss on valid, nats a character", "characters read", "parameters"]
    header += ["whole split, with memory"]
    header += [f"windows of {length}, no memory" for length in WINDOWS]
    return format_table(header, rows)


def format_curves(dataset: str, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the others' and our perplexities after equal numbers of steps."""
    reference, tables = REFERENCES[dataset], []
    for title, key, others in (
        (f"perplexity on valid after {reference.unit}", "valid", reference.valid),
        ("perplexity in training at step", "train", reference.train),
    ):
        points = sorted({int(point) for run in runs for point in run[key]})
        rows = [
            [f"theirs, {name}", *(_format(curve.get(point)) for point in points)]
            for name, curve in others.items()
        ]
        for run in runs:
            cells = (_format(run[key].get(str(point))) for point in points)
            rows.append([f"**{_name(run, 'ours')}**, {run['precision']}", *cells])
        tables.append(format_table([title, *(f"{point:,}" for point in points)], rows))
    return tables


def _name(run: Mapping[str, Any], otherwise: str) -> str:
    """Returns the preset, settings and seed of a run; `otherwise` replaces a missing preset.

    >>> _name({"seed": 3, "settings": "no memory"}, "ours")
    'ours, no memory, seed 3'
    """
    preset = f"`{run['preset']}`" if "preset" in run else otherwise
    parts = [preset, run.get("settings", ""), f"seed {run['seed']}"]
    return ", ".join(part for part in parts if part)


def _format(perplexity: float | None) -> str:
    """Returns a perplexity with four digits or more; nothing for `None`."""
    if perplexity is None:
        return ""
    return f"{perplexity:,.0f}" if perplexity >= 1000 else f"{perplexity:.1f}"


def draw(kept: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draws the perplexities by step: the others' in gray, ours in color."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, len(kept), squeeze=False)[0]
    for axes, (name, runs) in zip(panels, kept.items(), strict=True):
        reference = REFERENCES[name]
        for curves, n_steps, style in (
            (reference.train, 1, ":"),
            (reference.valid, reference.n_steps, "-"),
        ):
            for curve in curves.values():
                steps = [unit * n_steps for unit in curve]
                axes.loglog(steps, list(curve.values()), style, color="0.6", linewidth=1)
        for index, run in enumerate(runs):
            for key, n_steps, style in (("train", 1, ":"), ("valid", reference.n_steps, "o-")):
                points = {int(point) * n_steps: value for point, value in run[key].items()}
                label = _name(run, "ours") if key == "valid" else None
                values = list(points.values())
                axes.loglog(list(points), values, style, color=f"C{index}", label=label)
        axes.plot([], [], color="0.6", label=f"theirs, {len(reference.valid)} seeds")
        axes.plot([], [], ":", color="0.6", label="dotted: in training")
        axes.set_title(reference.title)
        axes.set_xlabel("step")
        axes.set_ylabel("perplexity on the validation split")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=130)


def compare(options: flags.FlagValues) -> None:
    """Adds runs to those kept, prints the tables, fills the pages and draws the plot.

    Raises:
        UserError: If a run is on another data set, or cannot be evaluated.
    """
    figures = read_figures()
    for folder in options.add:
        commit = options.commit or name_commit()
        dataset, run = read_run(Path(folder).resolve(), commit, options.settings)
        record = figures.get(dataset, {"runs": []})
        runs = keep(record["runs"], run)
        figures[dataset] = {
            "command": f"python -m benchmarks.trainings --add runs/{dataset}-{run['seed']}",
            **{key: run[key] for key in ("commit", "machine", "date")},
            "text": format_text(dataset, runs),
            "runs": runs,
        }
        print(f"{dataset}\n\n{figures[dataset]['text']}\n")
    write_figures(figures)
    fill_pages(figures)
    if options.plot:
        names = [name for name in REFERENCES if name in figures]
        draw({name: figures[name]["runs"] for name in names}, Path(options.plot))


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    define("add", list, [], "Runs to add, on wt2, ptb or shakespeare.", is_path=True)
    text = "Commit with which they were trained. [default: that of this folder]"
    define("commit", str, None, text)
    text = "What differs from the preset, in words. [default: nothing]"
    define("settings", str, "", text)
    define("plot", str, None, "Picture to write. [default: none]", is_path=True)
    return run_program(__doc__, options, compare, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
