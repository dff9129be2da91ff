"""Shows what a run attends to: by distance, by term of the scores, and in a stretch of text.

txl attention --run runs/text8 --heads 3.0,5.7
"""

import dataclasses
import functools

from absl import flags

from txl_tf.programs.cli.config_flags import define_jit_flag, define_span_flags, override_evaluation
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import program
from txl_tf.programs.cli.run_flags import (
    choose_out,
    choose_run,
    define_ema_flag,
    define_records_flag,
    define_run_flags,
    open_chosen_run,
    open_run_records,
)
from txl_tf.runs.folder import read_run_config

_OTHERWISE = "as in the run's evaluation"


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    define_run_flags(options)
    define_records_flag(options)
    define("split", str, "valid", "Split to read.")
    text = "Number of targets to average over, rounded up to whole segments."
    define("tokens", int, 10_000, text, lower_bound=1)
    text = (
        "Heads to show in the stretch, as LAYER.HEAD counted from 0. [default: the three that look "
        "back farthest]"
    )
    define("heads", list, None, text)
    text = "Position of the stretch's first target in the split. [default: in the middle]"
    define("start", int, None, text, lower_bound=1)
    define("length", int, 40, "Number of targets in the stretch.", lower_bound=1)
    text = "Largest distance in the figures; the data files hold all. [default: all]"
    define("max_distance", int, None, text, lower_bound=1)
    text = f"Largest number of lanes to read at once. [default: {_OTHERWISE}]"
    define("lanes", int, None, text, lower_bound=1)
    define_span_flags(options, _OTHERWISE)
    define_ema_flag(options)
    define_jit_flag(options)
    text = "Folder for the figures and the numbers. [default: RUN/attention]"
    define("out", str, None, text, is_path=True)
    return options


@program(__doc__, define_flags, positional="run")
def main(options: flags.FlagValues) -> None:
    """Averages the attention of a run, reads a stretch of text, and writes figures and numbers."""
    choose_run(options)
    records = open_run_records(options.run, options.data_dir, options.split)
    out = choose_out(options, options.run, "attention")
    found = read_run_config(options.run)
    evaluation = override_evaluation(found.evaluation, options)

    from txl_tf.lab.attention_average import (
        average_attention,
        count_segments,
        cut_attention_lanes,
    )
    from txl_tf.lab.attention_report import AttentionReport
    from txl_tf.lab.text_attention import parse_heads, place_stretch, read_stretch
    from txl_tf.models.architecture import check_transformer
    from txl_tf.progress import Bar
    from txl_tf.scoring.evaluator import describe_evaluation

    check_transformer(found.model, "an analysis of attention")
    heads = parse_heads(options.heads or [], found.model)
    split = records.split(options.split)
    start = place_stretch(len(split), options.start, options.length)
    config = dataclasses.replace(found, evaluation=evaluation)
    lm = open_chosen_run(options, config=config, records=records, split=options.split)

    n_targets = options.tokens
    lanes = cut_attention_lanes(lm, split, n_targets=n_targets)
    print(f"Reading {options.split} with {describe_evaluation(evaluation, lanes)}.")
    n_segments = count_segments(lanes, n_targets)
    with Bar("attention", total=n_segments, unit="segment") as bar:
        averages = average_attention(
            lm, lanes, n_targets=n_targets, jit=options.jit, report=bar.update
        )
    heads = heads or averages.find_widest_heads()
    stretch = read_stretch(lm, split, heads, start=start, length=options.length)
    settings = {
        "run": options.run,
        "dataset": records.dataset,
        "split": options.split,
        "checkpoint": lm.checkpoint,
        "step": lm.step,
        "is_averaged": lm.is_averaged,
        "evaluation": evaluation.to_json(),
        "lanes": lanes.n_lanes,
        "warm_len": lanes.warm_len,
    }
    report = AttentionReport(settings, averages, stretch, records.vocabulary)
    print(f"Mean attention weights over {averages.n_targets:,} targets, by layer.head:")
    print("\n".join(report.format_table()))
    names = report.write(out, max_distance=options.max_distance)
    print(f"Wrote {', '.join(names)} into {out}")
