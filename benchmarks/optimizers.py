"""Optimizers and schedules at equal tokens, each with its learning rate tuned.

The comparison `optimizers` of `python -m benchmarks.curves`. For each setting, the learning rate is
chosen on one seed from a grid of powers of two, which is extended while the best is at an edge.
The setting is then measured on other seeds, so that the choice does not favor it. Two settings are
whole recipes, whose learning rate is fixed: `release`, that of 2019, and `recommended`, that of the
presets for new corpora, without their dropout.
"""

import json
import math
import shutil
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from benchmarks.flag_texts import keep_last
from benchmarks.optimizer_results import REFERENCE, Found, Run, draw, make_record, print_settings
from benchmarks.several_workers import run_python
from txl_tf import presets
from txl_tf.errors import UserError

N_POINTS = 15  # evaluations of a run, which make its curve
WARMUP_SHARE = 1 / 15
LARGEST_GRID = 12
QUICK = {
    **{"variants": ["adam-cosine", "muon-mean"], "steps": 60, "seeds": ["1"]},
    **{"n_layer": 2, "d_model": 32, "n_head": 2, "valid_bytes": 20_000},
}


class Setting(NamedTuple):
    """What is compared.

    Args:
        flags: Flags of the training program, in place of those that all settings share.
        shares: Flags that are a number of steps, as shares of all steps.
        rate: The learning rate in the middle of the first grid.
        is_recipe: Whether the learning rate is fixed.
    """

    flags: tuple[str, ...] = ()
    shares: Mapping[str, float] = {}
    rate: float = 1e-3
    is_recipe: bool = False

    def list_flags(self, rate: float, steps: int) -> list[str]:
        """Returns the flags of a run."""
        counts = [f"--{name}={round(share * steps)}" for name, share in self.shares.items()]
        return [*self.flags, *counts, f"--learning_rate={rate!r}"]


_MUON = ("--optimizer=muon",)
_LINEAR = ("--schedule=linear", "--min_lr_ratio=0")
_WSD = ("--schedule=wsd", "--min_lr_ratio=0")
_CONSTANT = ("--min_lr_ratio=1",)
_DECAY = ("--weight_decay=0.1",)
_SMALL = presets.get("small")
SETTINGS = {
    REFERENCE: Setting(),
    "adam-linear": Setting(_LINEAR),
    "adam-wsd": Setting(_WSD, {"decay_steps": 0.2}),
    "adam-mean": Setting(_CONSTANT, {"average_from": 0.6}),
    "adam-cosine-mean": Setting((), {"average_from": 0.8}),
    "adamw-linear": Setting(("--optimizer=adamw", *_DECAY, *_LINEAR)),
    "muon-cosine": Setting(_MUON, rate=4e-3),
    "muon-linear": Setting((*_MUON, *_LINEAR), rate=4e-3),
    "muon-wsd": Setting((*_MUON, *_WSD), {"decay_steps": 0.2}, rate=4e-3),
    "muon-mean": Setting((*_MUON, *_CONSTANT), {"average_from": 0.6}, rate=4e-3),
    "muon-decay-linear": Setting((*_MUON, *_DECAY, *_LINEAR), rate=4e-3),
    "release": Setting(("--init_std=0.02", "--dropout=0.1"), is_recipe=True),
    "recommended": Setting(
        (
            *(f"--init_std={_SMALL.model.init_std:g}", "--dropout=0"),
            *(f"--{name}={getattr(_SMALL.training, name)}" for name in ("optimizer", "schedule")),
            f"--min_lr_ratio={_SMALL.training.min_lr_ratio:g}",
        ),
        rate=_SMALL.training.learning_rate,
        is_recipe=True,
    ),
}


class Experiment:
    """Trains runs of one model on one text, and keeps what they give in files.

    Args:
        options: The flags of `benchmarks.curves`.
    """

    def __init__(self, options: flags.FlagValues):
        self.folder = Path(options.work_dir)
        self.data_dir = make_data(options)
        self.steps = options.steps
        every = max(1, self.steps // N_POINTS)
        self.shared = [
            *(f"--n_layer={options.n_layer}", f"--init_std={options.init_std}"),
            *(f"--d_model={options.d_model}", f"--d_embed={options.d_model}"),
            *(f"--n_head={options.n_head}", f"--d_head={options.d_model // options.n_head}"),
            *(f"--d_inner={4 * options.d_model}", "--dropout=0.1", "--dropatt=0"),
            *(f"--tgt_len={options.tgt_len}", f"--mem_len={options.tgt_len}"),
            *(f"--train_batch_size={options.lanes}", f"--train_steps={self.steps}"),
            f"--warmup_steps={round(WARMUP_SHARE * self.steps)}",
            *("--eval_batch_size=16", "--eval_same_length", f"--eval_every={every}"),
        ]

    def train(self, name: str, rate: float, seed: str) -> Run:
        """Trains a run, or reads what an earlier call has kept of it.

        Raises:
            UserError: If the run fails, or was kept of other flags.
        """
        own = SETTINGS[name].list_flags(rate, self.steps)
        flag_texts = keep_last([*self.shared, *own, f"--seed={seed}"])
        path = self.folder / "runs" / f"{name}-{rate:.3g}-seed{seed}.json"
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["flags"] != flag_texts:
                raise UserError(
                    f"{path} holds a run with other flags: choose another `work_dir`, or remove it"
                )
            return Run(**kept)
        run = self._train(flag_texts)
        path.parent.mkdir(exist_ok=True)
        aside = path.with_suffix(".writing")
        aside.write_text(json.dumps(run._asdict()), encoding="utf-8")
        aside.rename(path)
        print(f"{name:<18} learning rate {rate:<8.3g} seed {seed}: {run.bits:.4f}", file=sys.stderr)
        return run

    def _train(self, flag_texts: list[str]) -> Run:
        folder = self.folder / "run"
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted call
        try:
            run_python(
                "train_gpu.py",
                *(f"--data_dir={self.data_dir}", f"--model_dir={folder}", *flag_texts),
                *("--save_steps=1000000", "--keep_checkpoints=1", "--sample_tokens=0"),
            )
        except UserError as error:
            if "not finite" not in str(error):
                raise
            return Run(flag_texts, [], 0.0)
        scores = _read_lines(folder / "validation.jsonl")
        speeds = [line.get("tokens_per_second") for line in _read_lines(folder / "log.jsonl")]
        shutil.rmtree(folder)
        return Run(
            flag_texts,
            [(line["step"], line["loss_nats"] / math.log(2)) for line in scores],
            statistics.median(speed for speed in speeds if speed) if any(speeds) else 0.0,
        )

    def measure(self, name: str, tuning_seed: str, seeds: Sequence[str]) -> Found:
        """Tunes the learning rate of a setting on one seed, and measures it on others."""
        rate, tuned = SETTINGS[name].rate, {}
        if not SETTINGS[name].is_recipe:
            tuned = tune(lambda rate: self.train(name, rate, tuning_seed).bits, start=rate)
            rate = min(tuned, key=lambda rate: tuned[rate])
        return Found(tuned, rate, {seed: self.train(name, rate, seed) for seed in seeds})


def tune(measure: Callable[[float], float], *, start: float) -> dict[float, float]:
    """Returns the losses of learning rates `start * 2**k`, of which the best is at no edge.

    Args:
        measure: Returns the loss of a learning rate.
        start: The rate in the middle of the first three.

    Raises:
        UserError: If the grid has `LARGEST_GRID` rates, and the best is still at an edge.
    """
    powers = {power: measure(start * 2.0**power) for power in (-1, 0, 1)}
    # Of rates that all end a run, the lowest is the best.
    while (best := min(powers, key=lambda x: (powers[x], x))) in (min(powers), max(powers)):
        if len(powers) == LARGEST_GRID:
            raise UserError(f"no learning rate near {start} is the best: {powers}")
        power = best + (1 if best == max(powers) else -1)
        powers[power] = measure(start * 2.0**power)
    return {start * 2.0**power: powers[power] for power in sorted(powers)}


def make_data(options: flags.FlagValues) -> Path:
    """Returns the folder of the records, which are made if they are missing.

    The text is that of the flags, or the English of Python's own documentation, in bytes. Of the
    split valid, the beginning is kept.

    Raises:
        UserError: If there are records of another text.
    """
    from txl_tf.data import open_records, write_records

    work_dir = Path(options.work_dir)
    source = ["--dataset=pydoc"]
    if options.train_text:
        source = ["--dataset=text", "--level=byte"]
        source += [f"--train={options.train_text}", f"--valid={options.valid_text}"]
    text = {"source": source, "valid_bytes": options.valid_bytes}
    folder, whole, made = work_dir / "data", work_dir / "data-whole", work_dir / "text.json"
    if made.exists():
        if json.loads(made.read_text(encoding="utf-8")) != text:
            raise UserError(f"`{work_dir}` holds runs on another text: choose another `work_dir`")
        return folder
    work_dir.mkdir(parents=True, exist_ok=True)
    run_python("data_prep/make_tfrecords.py", *source, f"--data_dir={whole}", "--overwrite")
    records = open_records(whole)
    train, valid = records.split("train"), records.split("valid")
    splits = {
        "train": [train.read(0, len(train))],
        "valid": [valid.read(0, min(len(valid), options.valid_bytes))],
    }
    shutil.rmtree(folder, ignore_errors=True)  # of an interrupted call
    write_records(folder, dataset="bytes", vocabulary=records.vocabulary, splits=splits)
    shutil.rmtree(whole)
    made.write_text(json.dumps(text), encoding="utf-8")
    return folder


def compare(options: flags.FlagValues) -> None:
    """Tunes and measures the settings, prints the table, and writes it as JSON.

    Raises:
        UserError: If there is no such setting, one of the texts alone is given, the heads do not
            divide the width, or a run fails.
    """
    if bool(options.train_text) != bool(options.valid_text):
        raise UserError(
            "`train_text` and `valid_text` must be given together. "
            f"Received: train_text={options.train_text}, valid_text={options.valid_text}"
        )
    if options.d_model % options.n_head:
        raise UserError(
            "`n_head` must divide `d_model`. "
            f"Received: n_head={options.n_head}, d_model={options.d_model}"
        )
    names = options.variants or list(SETTINGS)
    if unknown := [name for name in names if name not in SETTINGS]:
        raise UserError(f"`variants` must be some of {', '.join(SETTINGS)}. Received: {unknown[0]}")
    experiment = Experiment(options)
    found: dict[str, Found] = {}
    for name in names:
        found[name] = experiment.measure(name, options.tuning_seed, options.seeds)
        record = make_record(found)
        path = experiment.folder / "optimizers.json"
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print_settings(found)
    if options.output:
        draw(found, options.output)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
