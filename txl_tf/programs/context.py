"""Measures how far models look back: loss by context length, and effective context lengths.

txl context --run runs/text8 --run runs/text8_short
"""

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag, refuse_flags
from txl_tf.programs.cli.program import program
from txl_tf.programs.cli.run_flags import (
    choose_out,
    choose_run,
    define_checkpoint_flag,
    define_ema_flag,
    define_records_flag,
    define_run_flag,
    define_threads_flag,
    open_chosen_run,
    open_run_records,
)
from txl_tf.progress import Bar
from txl_tf.runs.folder import read_run_config, read_run_vocabulary
from txl_tf.scoring.metrics import name_unit

if TYPE_CHECKING:
    from txl_tf.data.lanes.training_lanes import Tokens
    from txl_tf.data.records.reading import Records
    from txl_tf.lab.attention_lengths import AttentionLengths
    from txl_tf.lab.context_report import ContextReport
    from txl_tf.language_model import LanguageModel


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    define_run_flag(options, multiple=True)
    define_records_flag(options)  # by default the records of the first run
    define("split", str, "valid", "Split of the targets.")
    define("first_context", int, 100, "Shortest context, in tokens.", lower_bound=1)
    define("delta", int, 100, "Difference between contexts, in tokens.", lower_bound=1)
    define("max_context", int, 1000, "Longest context, in tokens.", lower_bound=2)
    text = "Number of targets, drawn at random but the same for all runs; 0 for all."
    define("positions", int, 1000, text, lower_bound=0)
    define("seed", int, 0, "Seed for drawing the targets.", lower_bound=0)
    text = "Shares r (0 to 1) of the hardest targets for the RECL, a length relative to other runs."
    define("share", list, ["0.1", "0.5", "1"], text)
    text = "Smallest gain of a longer context that counts for the RECL, as a share of perplexity."
    define("threshold", float, 0.01, text, lower_bound=0)
    text = "Smallest gain of a longer context that counts for the ECL, as a share of perplexity."
    define("ecl_threshold", float, 0.001, text, lower_bound=0)
    text = "Number of tokens for the curve of losses by attention length; 0 for no such curve."
    define("eval_tokens", int, 50_000, text, lower_bound=0)
    text = (
        "Attention lengths of that curve: memory lengths (mem_len), or sliding windows for runs "
        "that were trained without memory. [default: .5 to 6 times that of training]"
    )
    define("attention_lengths", list, None, text)
    define_checkpoint_flag(options)
    define_ema_flag(options)
    define_threads_flag(options)
    text = "Folder for the figures and context.json. [default: FIRST_RUN/context]"
    define("out", str, None, text, is_path=True)
    define("json", bool, False, "Print context.json; all else goes to standard error.")
    return options


@program(__doc__, define_flags, positional="run")
def main(options: flags.FlagValues) -> None:
    """Prints and plots the context lengths of runs."""
    with contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):
        report = _measure_contexts(options)
    if options.json:
        print(json.dumps(report.make_record()))


def _measure_contexts(options: flags.FlagValues) -> "ContextReport":
    """Prints, plots and returns the context lengths of runs."""
    lengths = list(range(options.first_context, options.max_context + 1, options.delta))
    if len(lengths) < 2:
        raise flags.Error("--max_context must be at least --first_context + --delta")
    if not options.eval_tokens:
        refuse_flags(options, "attention_lengths", reason="with --eval_tokens=0")
    shares = _read_numbers("share", options.share, float, lambda value: 0 < value <= 1)
    attention_lengths = options.attention_lengths and _read_numbers(
        "attention_lengths", options.attention_lengths, int, lambda value: value >= 0
    )

    choose_run(options)
    records = open_run_records(options.run[0], options.data_dir, options.split)
    out = choose_out(options, options.run[0], "context")

    from txl_tf.lab.context_losses import draw_positions
    from txl_tf.lab.context_report import ContextReport
    from txl_tf.lab.effective_length import (
        compare_models,
        find_effective_length,
        summarize_losses,
    )

    _check_group(options.run)
    configs = map(read_run_config, options.run)
    mem_lens = [config.training.mem_len for config in configs if not config.model.is_recurrent]
    if 0 in (attention_lengths or ()) and not all(mem_lens):
        raise flags.Error(
            "--attention_lengths must be positive for runs that were trained without memory"
        )
    split = records.split(options.split)
    os.makedirs(out, exist_ok=True)  # an error now, not after the measurement
    names = [os.path.basename(path.rstrip("/")) or path for path in options.run]
    if len(set(names)) < len(names):
        names = options.run
    models = {
        name: open_chosen_run(options, path, records=records, split=options.split)
        for name, path in zip(names, options.run, strict=True)
    }
    checkpoints = {name: lm.checkpoint for name, lm in models.items()}
    data = f"{records.dataset}, split {options.split}"
    measure = name_unit(records.vocabulary.level)
    positions = draw_positions(len(split), lengths[-1], options.positions, options.seed)
    n_targets = len(positions)
    losses = _compute_losses(models, split, positions, lengths)
    curves, effective = {}, {}
    for name, values in losses.items():
        curves[name] = summarize_losses(values, as_perplexity=measure == "perplexity")
        effective[name] = find_effective_length(values, lengths, options.ecl_threshold)
    group = list(losses.values())
    relative = [compare_models(group, lengths, share, options.threshold) for share in shares]
    settings = {"data": data, "targets": n_targets, "checkpoints": checkpoints}
    settings |= {name: options[name].value for name in ("seed", "threshold", "ecl_threshold")}
    settings["use_ema"] = options.use_ema
    report = ContextReport(settings, measure, lengths, curves, effective, relative, {})
    print(
        f"Loss of {n_targets:,} tokens of {data}, after exactly c tokens ({measure}), and "
        "how much it is above that of the longest context"
    )
    print("\n".join(report.format_contexts()), flush=True)
    report.write(out)  # also if the rest fails or is stopped
    attending = {name: lm for name, lm in models.items() if not lm.config.is_recurrent}
    if options.eval_tokens and len(attending) < len(models):
        others = ", ".join(name for name in models if name not in attending)
        print(f"No attention lengths of {others}: a recurrent model has no attention")
    if options.eval_tokens and attending:
        for name, lm in attending.items():
            found = _measure_attention_lengths(name, lm, records, options, attention_lengths)
            report.add_attention_lengths(name, found)
        print(
            f"Loss of an ordinary evaluation of up to {options.eval_tokens:,} tokens, by "
            f"attention length ({measure})"
        )
        print("\n".join(report.format_attention_lengths()))
    report.write(out)
    print(f"Wrote context.json and figures to {out}")
    return report


def _compute_losses(
    models: Mapping[str, "LanguageModel"],
    split: "Tokens",
    positions: np.ndarray,
    lengths: Sequence[int],
) -> dict[str, np.ndarray]:
    """Returns the losses of each run, (C, n) float32 in nats."""
    from txl_tf.lab.context_losses import ContextReader, compute_losses

    total = len(models) * len(positions) * sum(lengths)
    losses = {}
    with Bar("contexts", total=total, unit="token", unit_scale=True) as bar:
        for name, lm in models.items():
            bar.set_postfix_str(name)
            reader = ContextReader(lm, lengths[-1])
            losses[name] = compute_losses(reader, split, positions, lengths, report=bar.update)
    return losses


def _measure_attention_lengths(
    name: str,
    lm: "LanguageModel",
    records: "Records",
    options: flags.FlagValues,
    lengths: Sequence[int] | None,
) -> "AttentionLengths":
    """Returns the scores of a run with memories, or windows, of several lengths."""
    from txl_tf.lab.attention_lengths import choose_lengths, measure_attention_lengths

    initial = lm.training.mem_len or lm.training.tgt_len
    if not lengths:
        evaluated = lm.evaluation.mem_len if lm.training.mem_len else 0
        lengths = choose_lengths(initial, evaluated, lm.config.max_places)
    total = len({*lengths, initial})
    with Bar(f"{name}, attention lengths", total=total, unit="length") as bar:
        return measure_attention_lengths(
            lm,
            records.split(options.split),
            lengths,
            max_tokens=options.eval_tokens,
            report=bar.update,
        )


def _read_numbers(
    name: str, texts: Sequence[str], kind: Callable[[str], Any], is_valid: Callable[[Any], bool]
) -> list[Any]:
    """Returns the numbers of a list flag, and raises a `flags.Error` if one is not in range."""
    try:
        numbers = [kind(text) for text in texts]
    except ValueError:
        numbers = []
    if not numbers or not all(map(is_valid, numbers)):
        raise flags.Error(f"--{name} must be numbers in range. Received: {','.join(texts)}")
    return numbers


def _check_group(paths: Sequence[str]) -> None:
    """Raises a `UserError` if the runs cannot be compared."""
    if len(set(paths)) < len(paths):
        raise UserError(f"each `run` may be given once. Received: {', '.join(paths)}")
    first = read_run_vocabulary(paths[0]), read_run_config(paths[0]).model.n_token
    for path in paths[1:]:
        if (read_run_vocabulary(path), read_run_config(path).model.n_token) != first:
            raise UserError(
                f"`{path}` has another vocabulary than `{paths[0]}`: "
                "their losses cannot be compared"
            )
