"""Measures how far models look: loss by context length, and effective context lengths.

python -m txl_tf.context --run runs/text8 --run runs/text8_short

The losses are kept in each run, so that another --share takes no time.
"""

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from absl import flags

from txl_tf.cli.data_formats import define_records_flags, open_run_records
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.cli.run_flags import define_ema_flag
from txl_tf.errors import UserError

if TYPE_CHECKING:
    from txl_tf.analysis.attention_lengths import AttentionLengths
    from txl_tf.analysis.effective_length import ContextCurve, Relative
    from txl_tf.data.data_set import DataSet
    from txl_tf.model import TransformerXL
    from txl_tf.runs.folder import RunConfig

_LOSSES_NAME = "context_losses"


class _Run(NamedTuple):
    """A run that is compared."""

    path: str
    config: "RunConfig"
    checkpoint: str
    model: "TransformerXL"


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(__doc__, define_flags(), measure_contexts, argv)


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    text = "Folder of a run; give it once for each run of the group."
    define("run", str, None, text, required=True, is_path=True, multiple=True)
    define_records_flags(options)  # by default the records of the first run
    define("split", str, "valid", "Split of the targets.")
    define("first_context", int, 100, "Shortest context, in tokens.", lower_bound=1)
    define("delta", int, 100, "Difference between contexts, in tokens.", lower_bound=1)
    define("max_context", int, 1000, "Longest context, in tokens.", lower_bound=2)
    text = "Number of targets, drawn at random, the same ones for all runs; 0 for all."
    define("positions", int, 1000, text, lower_bound=0)
    define("seed", int, 0, "Seed of the drawn targets.", lower_bound=0)
    text = "Shares r of the hardest targets that count for the RECL, from 0 to 1."
    define("share", list, ["0.1", "0.5", "1"], text)
    text = "Gain of a longer context that counts for the RECL, as a share of the perplexity."
    define("threshold", float, 0.01, text, lower_bound=0)
    text = "Gain of a longer context that counts for the ECL, as a share of the perplexity."
    define("ecl_threshold", float, 0.001, text, lower_bound=0)
    text = "Number of tokens for the curve of attention lengths; 0 for no such curve."
    define("eval_tokens", int, 50_000, text, lower_bound=0)
    text = "Attention lengths (mem_len) of that curve. [default: .5 to 6 times that of training]"
    define("attention_lengths", list, None, text)
    define_ema_flag(options)
    text = f"Keep the losses in RUN/{_LOSSES_NAME} and use those that are there."
    define("keep_losses", bool, True, text)
    text = "Folder of figures and context.json. [default: FIRST_RUN/context]"
    define("out", str, None, text, is_path=True)
    return options


def measure_contexts(options: flags.FlagValues) -> None:
    """Prints and draws the context lengths of runs.

    Raises:
        flags.Error: If a flag has an invalid value.
        UserError: If there is no such run or split, the split is shorter than the contexts, or the
            runs have different vocabularies.
    """
    lengths = list(range(options.first_context, options.max_context + 1, options.delta))
    if len(lengths) < 2:
        raise flags.Error("--max_context must be at least --first_context + --delta")
    shares = _read_numbers("share", options.share, float, lambda value: 0 < value <= 1)
    attention_lengths = options.attention_lengths and _read_numbers(
        "attention_lengths", options.attention_lengths, int, lambda value: value >= 0
    )

    names = _name_runs(options.run)
    runs = dict(zip(names, (_load_run(path, options) for path in options.run), strict=True))
    records = open_run_records(options.run[0], options.data_dir, options.data_format)
    _check_group(options.run, records, options.split)
    out = options.out or os.path.join(options.run[0], "context")
    _make_folder(out)
    report = _Report(options, runs, records, lengths)
    report.measure_contexts(shares)
    if options.eval_tokens:
        report.measure_attention_lengths(attention_lengths)
    report.write(out)


class _Report:
    """Measures a group of runs, and prints, draws and stores what was found.

    Args:
        options: The flags of the program.
        runs: The runs, by their names.
        records: The data set.
        lengths: The context lengths.
    """

    def __init__(
        self,
        options: flags.FlagValues,
        runs: Mapping[str, _Run],
        records: "DataSet",
        lengths: Sequence[int],
    ):
        from txl_tf.data.data_set import get_level
        from txl_tf.evaluation.score import name_measure

        self._options = options
        self._runs = runs
        self._records = records
        self._split = records.split(options.split)
        self._lengths = list(lengths)
        level = get_level(records)
        self._measure = name_measure(level)
        self._curves: dict[str, ContextCurve] = {}
        self._relative: list[Relative] = []
        self._attention: dict[str, AttentionLengths] = {}
        self._found: dict[str, Any] = {
            "data": f"{records.dataset}, split {options.split}",
            "measure": self._measure,
            "contexts": self._lengths,
            "seed": options.seed,
        }

    def measure_contexts(self, shares: Sequence[float]) -> None:
        """Computes the losses and prints the context curve, the ECL and the RECL."""
        from txl_tf.analysis.context_losses import draw_positions
        from txl_tf.analysis.effective_length import (
            compare_models,
            find_effective_length,
            summarize_losses,
        )

        options = self._options
        positions = draw_positions(
            len(self._split), self._lengths[-1], options.positions, options.seed
        )
        losses = self._compute_losses(positions)
        as_perplexity = self._measure == "perplexity"
        self._curves = {
            name: summarize_losses(values, as_perplexity=as_perplexity)
            for name, values in losses.items()
        }
        self._found["targets"] = len(positions)
        self._found["checkpoints"] = {name: run.checkpoint for name, run in self._runs.items()}
        print(
            f"Loss of {len(positions):,} tokens of {self._found['data']}, after exactly c tokens "
            f"({self._measure}), and how much it is above that of the longest context"
        )
        self._print_row("c", list(self._runs))
        for index, length in enumerate(self._lengths):
            cells = [
                f"{curve.means[index]:,.4f}"
                f" {curve.excess[index]:+.4f} ± {curve.excess_errors[index]:.4f}"
                for curve in self._curves.values()
            ]
            self._print_row(f"{length:,}", cells)
        errors = [f"± {curve.errors[-1]:.4f}" for curve in self._curves.values()]
        self._print_row("standard error", errors)
        self._found["losses"] = {
            name: {
                "mean": curve.means.tolist(),
                "standard_error": curve.errors.tolist(),
                "standard_error_of_difference_to_last": curve.excess_errors.tolist(),
            }
            for name, curve in self._curves.items()
        }
        found = {
            name: find_effective_length(values, self._lengths, options.ecl_threshold)
            for name, values in losses.items()
        }
        self._print_row("ECL", list(map(str, found.values())))
        self._found["ecl"] = {name: length._asdict() for name, length in found.items()}
        self._relative = [
            compare_models(list(losses.values()), self._lengths, share, options.threshold)
            for share in shares
        ]
        self._found["recl"] = []
        for relative in self._relative:
            self._print_row(f"RECL, r = {relative.share:g}", list(map(str, relative.lengths)))
            by_name = zip(losses, relative.lengths, relative.losses, strict=True)
            self._found["recl"].append(
                {
                    "share": relative.share,
                    "targets": relative.n_positions,
                    "runs": {
                        name: {**length._asdict(), "losses": _list_known(means)}
                        for name, length, means in by_name
                    },
                }
            )

    def _compute_losses(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the losses of each run, (C, n) float32 in nats."""
        from txl_tf.analysis.context_losses import (
            ContextReader,
            LossStore,
            compute_losses,
            hash_texts,
            hash_weights,
        )
        from txl_tf.evaluation.progress import Bar

        texts = hash_texts(self._split, positions, self._lengths[-1])
        total = len(self._runs) * len(positions) * sum(self._lengths)
        losses = {}
        with Bar("contexts", total=total, unit="token", unit_scale=True) as bar:
            for name, run in self._runs.items():
                settings = {
                    "weights": hash_weights(run.model),
                    "texts": texts,
                    "evaluation": run.config.evaluation.to_json(),
                }
                reader = ContextReader(run.model, run.config.evaluation)
                bar.set_postfix_str(name)
                losses[name] = compute_losses(
                    reader,
                    self._split,
                    positions,
                    self._lengths,
                    LossStore(self._find_store(run.path), settings),
                    report=bar.update,
                )
        return losses

    def _find_store(self, path: str) -> str | None:
        """Returns the folder for the losses of a run; `None` if they are not kept."""
        from txl_tf.data.files import is_remote

        if not self._options.keep_losses:
            return None
        if is_remote(path) or not os.access(path, os.W_OK):
            print(f"The losses of {path} are not kept: it cannot be written.", file=sys.stderr)
            return None
        return os.path.join(path, _LOSSES_NAME)

    def measure_attention_lengths(self, lengths: Sequence[int] | None) -> None:
        """Evaluates the runs with memories of several lengths and prints a table."""
        from txl_tf.analysis.attention_lengths import choose_lengths, measure_attention_lengths
        from txl_tf.evaluation.progress import Bar

        print(
            f"Loss of an ordinary evaluation of up to {self._options.eval_tokens:,} tokens, by "
            f"attention length ({self._measure})"
        )
        self._print_row("", ["init", "best", "Attn Len"])
        for name, run in self._runs.items():
            config = run.config.evaluation
            initial = run.config.training.mem_len
            wanted = lengths or choose_lengths(initial, config.mem_len)
            total = len({*wanted, initial})
            with Bar(f"{name}, attention lengths", total=total, unit="length") as bar:
                found = measure_attention_lengths(
                    run.model,
                    config,
                    self._split,
                    wanted,
                    initial=initial,
                    max_tokens=self._options.eval_tokens,
                    vocabulary=self._records.vocabulary,
                    report=bar.update,
                )
            self._attention[name] = found
            values = dict(zip(found.lengths, self._list_values(found), strict=True))
            cells = [f"{values[initial]:,.4f} at {initial:,}", f"{values[found.best]:,.4f}"]
            self._print_row(name, [*cells, f"{found.best:,}"])
        self._found["attention_lengths"] = {
            name: {
                "lengths": found.lengths,
                "losses": self._list_values(found),
                "initial": found.initial,
                "best": found.best,
                "tokens": found.scores[0].tokens,
            }
            for name, found in self._attention.items()
        }

    def write(self, out: str) -> None:
        """Writes the figures and `context.json` to a folder."""
        from txl_tf.analysis.context_plots import (
            draw_attention_lengths,
            draw_context_curves,
            draw_gains,
        )
        from txl_tf.errors import explain_errors

        path = functools.partial(os.path.join, out)
        with explain_errors(f"the results cannot be written to `{out}`", OSError):
            with open(path("context.json"), "w", encoding="utf-8") as file:
                file.write(json.dumps(self._found, indent=1) + "\n")
            draw_context_curves(path("context.png"), self._lengths, self._curves, self._measure)
            draw_gains(path("gains.png"), self._lengths, list(self._runs), self._relative[0])
            if self._attention:
                curves = {
                    name: (found, self._list_values(found))
                    for name, found in self._attention.items()
                }
                draw_attention_lengths(path("attention_lengths.png"), curves, self._measure)
        print(f"Wrote context.json and figures to {out}")

    def _list_values(self, found: "AttentionLengths") -> list[float]:
        if self._measure == "perplexity":
            return [score.perplexity for score in found.scores]
        return [score.bits_per_token for score in found.scores]

    def _print_row(self, label: str, cells: Sequence[str]) -> None:
        width = max(30, *(2 + len(name) for name in self._runs))
        print(f"{label:<{max(16, width if label in self._runs else 0)}}", end="")
        print("".join(f"{cell:>{width}}" for cell in cells), flush=True)


def _read_numbers(
    name: str, texts: Sequence[str], kind: Callable[[str], Any], is_valid: Callable[[Any], bool]
) -> list[Any]:
    """Returns the numbers of a list flag.

    Raises:
        flags.Error: If a text is not a number in range.
    """
    try:
        numbers = [kind(text) for text in texts]
    except ValueError:
        numbers = []
    if not numbers or not all(map(is_valid, numbers)):
        raise flags.Error(f"--{name} must be numbers in range. Received: {','.join(texts)}")
    return numbers


def _name_runs(paths: Sequence[str]) -> list[str]:
    """Returns short names of runs: the last parts of their paths, if these differ."""
    names = [os.path.basename(path.rstrip("/")) or path for path in paths]
    return names if len(set(names)) == len(names) else list(paths)


def _load_run(path: str, options: flags.FlagValues) -> _Run:
    from txl_tf.model import TransformerXL
    from txl_tf.runs.checkpoint_files import find_checkpoint
    from txl_tf.runs.checkpoint_reader import load_weights
    from txl_tf.runs.folder import read_run_config

    config = read_run_config(path)
    checkpoint = find_checkpoint(path)
    model = TransformerXL(config.model)
    load_weights(model, checkpoint, use_ema=options.use_ema)
    return _Run(path, config, checkpoint, model)


def _check_group(paths: Sequence[str], records: "DataSet", split: str) -> None:
    """Checks that runs can be compared on a split.

    Raises:
        UserError: If their vocabularies differ, or a run cannot be evaluated on the split.
    """
    from txl_tf.evaluation.checkpoints import check_data
    from txl_tf.runs.folder import read_run_config, read_run_vocabulary

    if len(set(paths)) < len(paths):
        raise UserError(f"each `run` may be given once. Received: {', '.join(paths)}")
    first = read_run_vocabulary(paths[0]), read_run_config(paths[0]).model.n_token
    for path in paths:
        config = read_run_config(path)
        if (read_run_vocabulary(path), config.model.n_token) != first:
            raise UserError(
                f"`{path}` has another vocabulary than `{paths[0]}`: "
                "their losses cannot be compared"
            )
        check_data(records, config, model_dir=path, split=split)


def _make_folder(path: str) -> None:
    """Creates the folder of the results.

    Raises:
        UserError: If that is not possible.
    """
    from txl_tf.data.files import is_remote
    from txl_tf.errors import explain_errors

    if is_remote(path):
        raise UserError(f"`{path}` must be a folder on this machine: pass --out")
    with explain_errors(f"`{path}` cannot be created", OSError):
        os.makedirs(path, exist_ok=True)


def _list_known(means: np.ndarray) -> list[list[float | None]]:
    """Returns a matrix as lists, with `None` for NaN."""
    return [[None if np.isnan(value) else float(value) for value in row] for row in means]


if __name__ == "__main__":
    sys.exit(main(sys.argv))
