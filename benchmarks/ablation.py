r"""The ablations of the paper, measured on small models (tables 6, 7 and 8 of Dai et al. 2019).

python -m benchmarks.ablation --quick                       # minutes: does everything work?
python -m benchmarks.ablation --work_dir runs/ablation      # a night on 2 cores

Trains models of one size on one number of tokens, once for each seed: position encodings, with
recurrence and without, on all of the loss or its last half, and an LSTM. The text is the English
of Python's own documentation, in bytes; for table 7 its lines are shuffled, so that little is to be
learned from long contexts. Each model is evaluated by attention length, and groups
of models by their relative effective context length (RECL).

Runs stay in --work_dir: an interrupted call resumes.
"""

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from absl import flags

from benchmarks.several_workers import run_python
from benchmarks.tables import print_table
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

if TYPE_CHECKING:
    from txl_tf.data.lanes.training_lanes import Tokens
    from txl_tf.language_model import LanguageModel

TGT_LEN = 64
# About a million parameters each.
SIZES = (
    *("--n_layer=4", "--d_model=128", "--d_embed=128"),
    *("--n_head=4", "--d_head=32", "--d_inner=512"),
)
LSTM_SIZES = ("--model_type=lstm", "--n_layer=2", "--d_model=256", "--d_embed=256")
# The best of 1e-3, 2e-3 and 4e-3, and of .02, .05 and .1, for the loss after 400 steps.
RATES = ("--learning_rate=2e-3", "--init_std=0.05")
LSTM_RATES = ("--learning_rate=4e-3", "--init_std=0.1")
CORPORA = ("text", "lines")


class Variant(NamedTuple):
    """A model that is trained.

    Args:
        recurrence: Whether it is trained with a memory, or carries a state.
        encoding: The position encoding; "LSTM" for an LSTM.
        loss: "full", or "half" for the last half of the positions.
        corpus: One of `CORPORA`.
        paper: The perplexity in table 6 or 7, at the length of training; `None` for none.
    """

    recurrence: bool
    encoding: str
    loss: str
    corpus: str = "text"
    paper: float | None = None

    @property
    def name(self) -> str:
        """The name of the variant, for folders and tables."""
        parts = [self.encoding, "memory" if self.recurrence else "segments", self.loss]
        return "-".join([*parts, *([self.corpus] if self.corpus != "text" else [])])

    def list_flags(self) -> list[str]:
        """Returns the flags of the training program that make the model."""
        if self.encoding == "LSTM":
            return [*LSTM_SIZES, *LSTM_RATES, "--mem_len=0"]
        n_rows = {"shaw": 2 * TGT_LEN, "shaw_biased": 2 * TGT_LEN, "learned": TGT_LEN}
        return [
            *(*SIZES, *RATES, "--dropatt=0"),
            f"--mem_len={TGT_LEN if self.recurrence else 0}",
            *(f"--encoding={self.encoding}", f"--n_positions={n_rows.get(self.encoding, 0)}"),
            *(["--half_loss"] if self.loss == "half" else []),
        ]


# In the order of table 6, then what is not in it.
TABLE_6 = [
    Variant(True, "relative", "full", paper=27.02),
    Variant(True, "shaw", "full", paper=27.94),
    Variant(True, "relative", "half", paper=28.69),
    Variant(False, "relative", "full", paper=29.59),
    Variant(False, "relative", "half", paper=30.10),
    Variant(False, "shaw", "full", paper=29.75),
    Variant(False, "shaw", "half", paper=30.50),
    Variant(False, "sinusoid", "half", paper=30.97),
    Variant(False, "learned", "half", paper=31.16),
    Variant(True, "shaw_biased", "full"),
    Variant(False, "sinusoid", "full"),
    Variant(False, "learned", "full"),
    Variant(True, "LSTM", "full"),
]
TABLE_7 = [
    Variant(True, "relative", "full", "lines", 25.2),
    Variant(True, "shaw", "full", "lines", 25.7),
    Variant(False, "relative", "full", "lines", 27.1),
]
VARIANTS = {variant.name: variant for variant in (*TABLE_6, *TABLE_7)}
# The groups of table 8: models are compared with the best of their group.
GROUPS = {
    "Transformer-XL and LSTM": ["relative-memory-full", "LSTM-memory-full"],
    "Transformers": [
        *("relative-memory-full", "shaw-memory-full", "relative-segments-full"),
        "learned-segments-half",
    ],
}
SHARES = (0.1, 0.5, 1.0)  # r of the RECL
LENGTHS = (16, 32, 64, 96, 128, 192, 256, 384)  # of memory or window at test time
COLORS = (
    *("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink"),
    *("tab:gray", "tab:olive", "tab:cyan", "black", "gold", "navy"),
)
QUICK = {"steps": 60, "seeds": ["0"], "eval_tokens": 5_000, "positions": 20, "max_context": 96}


class Outcome(NamedTuple):
    """What was measured of a variant and a seed.

    Args:
        lengths: The attention lengths at test time.
        bits: The bits per byte at each.
        initial: The length used in training, one of `lengths`; 0 for an LSTM.
    """

    lengths: list[int]
    bits: list[float]
    initial: int

    @property
    def first(self) -> float:
        """The bits per byte at the length used in training."""
        return self.bits[self.lengths.index(self.initial)]

    @property
    def best(self) -> float:
        """The fewest bits per byte."""
        return min(self.bits)

    @property
    def best_length(self) -> int:
        """The shortest length that reaches them, to three decimals ("Attn Len" in the paper)."""
        rounded = [round(value, 3) for value in self.bits]
        return self.lengths[rounded.index(min(rounded))]


def make_corpora(folder: Path) -> dict[str, Path]:
    """Returns the folders of the records, which are made if they are missing."""
    made = {name: folder / f"data-{name}" for name in CORPORA}
    text = made["text"]
    if not (text / "records.json").exists():
        run_python("data_prep/make_tfrecords.py", "--dataset=pydoc", f"--data_dir={text}")
    if not (made["lines"] / "records.json").exists():
        _shuffle_lines(text, made["lines"])
    return made


def _shuffle_lines(source: Path, target: Path) -> None:
    """Writes records whose lines are those of others, in an order drawn with a fixed seed."""
    from txl_tf.data import open_records, write_records

    records = open_records(source)
    newline = records.vocabulary.symbols.index("10") if records.vocabulary else 0
    splits = {}
    for name in records.splits:
        split = records.split(name)
        ids = split.read(0, len(split))
        lines = np.split(ids, np.flatnonzero(ids == newline) + 1)
        order = np.random.default_rng(0).permutation(len(lines))
        splits[name] = [np.concatenate([lines[index] for index in order])]
    write_records(target, dataset="lines", vocabulary=records.vocabulary, splits=splits)


def train(variant: Variant, seed: str, data_dir: Path, folder: Path, steps: int) -> None:
    """Trains a run, or goes on with it; it does nothing if the run is complete."""
    run_python(
        "train_gpu.py",
        f"--data_dir={data_dir}",
        f"--model_dir={folder}",
        *variant.list_flags(),
        *(f"--tgt_len={TGT_LEN}", "--train_batch_size=32", "--eval_batch_size=16"),
        *(f"--warmup_steps={steps // 20}", f"--train_steps={steps}"),
        *("--dropout=0.1", f"--seed={seed}", "--save_steps=1000"),
    )


def measure_lengths(lm: "LanguageModel", split: "Tokens", n_tokens: int) -> Outcome:
    """Returns the scores of a model by attention length; an LSTM has none, and one score."""
    from txl_tf.config import EvalConfig
    from txl_tf.lab.attention_lengths import measure_attention_lengths, score_tokens
    from txl_tf.scoring.evaluator import Evaluator

    mem_len = lm.training.mem_len
    config = EvalConfig(
        tgt_len=TGT_LEN, mem_len=mem_len, same_length=bool(mem_len), eval_batch_size=16
    )
    if lm.config.model_type == "lstm":
        score = score_tokens(Evaluator(lm.model, config, jit="auto"), split, n_tokens)
        return Outcome([0], [score.bits_per_token], 0)
    initial = mem_len or TGT_LEN
    found = measure_attention_lengths(
        lm.model,
        config,
        split,
        LENGTHS if lm.config.can_have_memory else [],
        initial=initial,
        max_tokens=n_tokens,
        has_windows=not mem_len,
    )
    return Outcome(found.lengths, [score.bits_per_token for score in found.scores], initial)


def measure_contexts(lm: "LanguageModel", split: "Tokens", options: flags.FlagValues) -> np.ndarray:
    """Returns the losses of a model after contexts of `list_contexts`, (C, n) in nats."""
    from txl_tf.lab.context_losses import (
        ContextReader,
        compute_losses,
        draw_positions,
    )

    lengths = list_contexts(options)
    positions = draw_positions(len(split), lengths[-1], options.positions, seed=0)
    reader = ContextReader(lm.model, lm.evaluation, lengths[-1])
    return compute_losses(reader, split, positions, lengths)


def list_contexts(options: flags.FlagValues) -> list[int]:
    """Returns the context lengths, which are multiples of 32."""
    return list(range(32, options.max_context + 1, 32))


def find_relative_lengths(
    losses: Mapping[str, np.ndarray], lengths: Sequence[int]
) -> dict[str, dict[str, list[int]]]:
    """Returns the RECL of each model by group, for each of `SHARES`.

    Args:
        losses: (C, n) of each model, by its name.
        lengths: The C context lengths.
    """
    from txl_tf.lab.effective_length import compare_models

    found = {}
    for group, names in GROUPS.items():
        known = [name for name in names if name in losses]
        if not known:
            continue
        relative = [compare_models([losses[name] for name in known], lengths, r) for r in SHARES]
        found[group] = {
            name: [of_share.lengths[index].tokens for of_share in relative]
            for index, name in enumerate(known)
        }
    return found


def run_variants(options: flags.FlagValues) -> None:
    """Trains and measures the variants, prints the tables, and writes figures and numbers.

    Raises:
        UserError: If a program fails.
    """
    if options.quick:
        for name, value in QUICK.items():
            if not options[name].present:
                options[name].value = value
    names = options.variants or list(VARIANTS)
    folder = Path(options.work_dir)
    folder.mkdir(parents=True, exist_ok=True)
    corpora = make_corpora(folder)
    outcomes: dict[str, dict[str, Outcome]] = {name: {} for name in names}
    relative: dict[str, Any] = {}
    for seed in options.seeds:
        losses = {}
        for name in names:
            variant = VARIANTS[name]
            run = folder / f"{name}-{options.steps}-seed{seed}"
            train(variant, seed, corpora[variant.corpus], run, options.steps)
            lm, split = _load(run, corpora[variant.corpus])
            found = outcomes[name][seed] = keep_outcome(
                run / f"lengths-{options.eval_tokens}.json",
                functools.partial(measure_lengths, lm, split, options.eval_tokens),
            )
            if any(name in group for group in GROUPS.values()):
                losses[name] = measure_contexts(lm, split, options)
            print(f"seed {seed}: {name:<28} {found.first:.4f} bits per byte", file=sys.stderr)
        relative[seed] = find_relative_lengths(losses, list_contexts(options))
    print_scores(outcomes)
    print_relative_lengths(relative)
    record = {
        "steps": options.steps,
        "eval_tokens": options.eval_tokens,
        "positions": options.positions,
        "scores": {
            name: {seed: found._asdict() for seed, found in by_seed.items()}
            for name, by_seed in outcomes.items()
        },
        "recl": relative,
    }
    path = folder / "ablation.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    plot = Path(options.plot or folder / "ablation.png")
    draw(outcomes, plot)
    print(f"Wrote {path} and {plot}", file=sys.stderr)


def keep_outcome(path: Path, measure: Callable[[], Outcome]) -> Outcome:
    """Returns what was measured before and is kept in a file, or measures and keeps it."""
    if path.exists():
        return Outcome(**json.loads(path.read_text()))
    found = measure()
    path.write_text(json.dumps(found._asdict()), encoding="utf-8")
    return found


def _load(run: Path, data_dir: Path) -> tuple["LanguageModel", "Tokens"]:
    """Returns a trained model, and the split that it is measured on."""
    from txl_tf.data import open_records
    from txl_tf.language_model import LanguageModel

    return LanguageModel.load(run), open_records(data_dir).split("test")


def print_scores(outcomes: Mapping[str, Mapping[str, Outcome]]) -> None:
    """Prints tables 6 and 7."""
    header = (
        *("recurrence", "encoding", "loss", "text", "bits per byte: init", "best"),
        *("Attn Len", "paper"),
    )
    rows = []
    for name, by_seed in outcomes.items():
        variant, found = VARIANTS[name], list(by_seed.values())
        lengths = ", ".join(str(outcome.best_length) for outcome in found)
        cells = [
            *("yes" if variant.recurrence else "no", variant.encoding, variant.loss),
            variant.corpus,
            _format_spread([outcome.first for outcome in found]),
            _format_spread([outcome.best for outcome in found]),
            lengths if found[0].initial else "-",
            f"{variant.paper:.2f}" if variant.paper else "-",
        ]
        rows.append(cells)
    print_table(header, rows)


def print_relative_lengths(relative: Mapping[str, Any]) -> None:
    """Prints table 8, with the values of all seeds."""
    rows = []
    first = next(iter(relative.values()))
    for group, name in ((group, name) for group, by_name in first.items() for name in by_name):
        by_seed = [found[group][name] for found in relative.values()]
        cells = [", ".join(map(str, of_share)) for of_share in zip(*by_seed, strict=True)]
        rows.append([group, name, *cells])
    print_table(["group", "model", *(f"r = {share:g}" for share in SHARES)], rows)


def _format_spread(values: Sequence[float]) -> str:
    """Returns the mean of the seeds, and the range if there are several.

    >>> _format_spread([2.5]), _format_spread([2.5, 2.52])
    ('2.500', '2.510 (2.500 to 2.520)')
    """
    mean = f"{np.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f} to {max(values):.3f})"


def draw(outcomes: Mapping[str, Mapping[str, Outcome]], path: Path) -> None:
    """Draws the loss by attention length; a star marks that of training, a bar the seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 8.5), layout="constrained")
    panels = figure.subplots(len(CORPORA), height_ratios=(2, 1))
    for axes, corpus in zip(panels, CORPORA, strict=True):
        axes.set_prop_cycle(color=COLORS)
        for name, by_seed in outcomes.items():
            if VARIANTS[name].corpus != corpus:
                continue
            found = list(by_seed.values())
            bits = np.array([outcome.bits for outcome in found])  # (seeds, lengths)
            lengths, initial = found[0].lengths, found[0].initial
            if not initial:  # an LSTM
                axes.axhline(bits.mean(), color="0.5", linestyle=":", label=name)
                continue
            errors = np.abs(np.stack([bits.min(axis=0), bits.max(axis=0)]) - bits.mean(axis=0))
            bars = axes.errorbar(lengths, bits.mean(axis=0), errors, marker="o", ms=3, label=name)
            star = bits.mean(axis=0)[lengths.index(initial)]
            axes.plot([initial], [star], "*", markersize=12, color=bars.lines[0].get_color())
        axes.set_title({"text": "text", "lines": "shuffled lines"}[corpus])
        axes.set_xlabel("attention length at test time (bytes); star: in training")
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
        if axes.has_data():
            axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
        axes.set_ylabel("bits per byte")
    figure.savefig(path, dpi=130)


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    text = "Minutes instead of a night: few steps and tokens, and one seed, unless they are given."
    define("quick", bool, False, text)
    text = "Variants to train. [default: all]"
    define("variants", list, [], text, choices=list(VARIANTS))
    define("steps", int, 6_000, "Steps of each run, of 32 lanes of 64 bytes.", lower_bound=20)
    define("seeds", list, ["0", "1"], "Seeds to train each variant with.")
    text = "Bytes of the test split to evaluate for each attention length."
    define("eval_tokens", int, 100_000, text, lower_bound=1)
    text = "Targets, drawn at random, for the relative effective context lengths."
    define("positions", int, 1000, text, lower_bound=1)
    define("max_context", int, 384, "Longest context of these targets.", lower_bound=64)
    text = "Folder for corpora, runs and results; an interrupted call resumes."
    define("work_dir", str, "runs/ablation", text, is_path=True)
    text = "Picture to write. [default: ablation.png in --work_dir]"
    define("plot", str, None, text, is_path=True)
    return run_program(__doc__, options, run_variants, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
