"""Evaluates a run and shows its bpc or perplexity next to the published result.

txl evaluate --run runs/text8 --preset sota
"""

import dataclasses
import functools
import json
import sys

from absl import flags

from txl_tf import presets
from txl_tf.config import DynamicConfig, EvalConfig
from txl_tf.errors import UserError
from txl_tf.pretrained import is_pretrained
from txl_tf.programs.cli.config_flags import (
    define_config_flags,
    define_jit_flag,
    define_span_flags,
    name_flags,
    override,
    override_evaluation,
)
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import program
from txl_tf.programs.cli.run_flags import (
    choose_run,
    define_ema_flag,
    define_precision_flag,
    define_records_flag,
    define_run_flags,
    open_chosen_run,
    open_run_records,
)
from txl_tf.runs.folder import RunConfig, read_run_config

SOTA = "sota"
_DYNAMIC = "dynamic_"  # the prefix of the flags of dynamic evaluation
_OTHERWISE = "the preset's, or the run's without --preset"


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, before parsing."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    define_run_flags(options)
    text = (
        f"Evaluate with the settings of this preset; {SOTA} means the preset whose model the "
        "run has. [default: the settings of the run]"
    )
    define("preset", str, None, text, choices=(SOTA, *presets.names()))
    define_records_flag(options)
    define("split", str, None, "Split to evaluate. [default: test if it exists, else valid]")
    text = f"Number of lanes into which the split is cut. [default: {_OTHERWISE}]"
    define("lanes", int, None, text, lower_bound=1)
    text = "Warm up each lane with the tokens before it; if false, count as the 2019 release does."
    define("warm_lanes", bool, True, text)
    text = (
        "Number of tokens that warm up each lane. [default: four times mem_len, or four times "
        "tgt_len for an LSTM]"
    )
    define("warm_len", int, None, text, lower_bound=0)
    text = (
        "Evaluate without memory, in sliding windows of tgt_len tokens with this stride in tokens; "
        "for models without recurrence. [default: no windows]"
    )
    define("stride", int, None, text, lower_bound=1)
    define_span_flags(options, _OTHERWISE)
    names = ["reset_at_documents", "temperature"]
    define_config_flags(options, EvalConfig, names, prefix="", otherwise=_OTHERWISE)
    text = (
        "Dynamic evaluation: after each segment is scored, update the weights with a gradient step "
        "on it. The run does not change. Uses one lane unless --lanes is given."
    )
    define("dynamic", bool, False, text)
    define_config_flags(options, DynamicConfig, prefix=_DYNAMIC, otherwise="that of the rule")
    define_ema_flag(options)
    define_precision_flag(options)
    text = "Number of segments to score. [default: all]"
    define("max_segments", int, None, text, lower_bound=1)
    define_jit_flag(options)
    define("json", bool, False, "Print one JSON object instead of the table.")
    return options


@program(__doc__, define_flags, positional="run")
def main(options: flags.FlagValues) -> None:
    """Evaluates a run and appends its score to `evaluations.jsonl`."""
    _check_flags(options)
    choose_run(options)
    records = open_run_records(options.run, options.data_dir, options.split)
    found = read_run_config(options.run)
    preset, base = choose_preset(options.preset, found)
    config = dataclasses.replace(found, evaluation=_choose_evaluation(options, base))
    dynamic = choose_dynamic_config(options)
    split = options.split or ("test" if "test" in records.splits else "valid")

    from txl_tf.programs.cli.evaluation import evaluate_lanes
    from txl_tf.scoring.evaluator import describe_evaluation

    lm = open_chosen_run(options, config=config, records=records, split=split)
    say = functools.partial(print, file=sys.stderr if options.json else sys.stdout)
    if lm.vocabulary is None:
        say(f"{options.run} has no vocabulary: its ids are assumed to be those of the records.")
    evaluator = lm.make_evaluator(records, dynamic=dynamic, jit=options.jit)
    lanes = evaluator.cut_lanes(
        records.split(split),
        warm_len=options.warm_len,
        drop_rest=not options.warm_lanes,
        stride=options.stride,
    )
    if lanes.n_lanes < config.evaluation.eval_batch_size:
        say(f"Split {split} has only {lanes.n_lanes} segments: that many lanes are used.")
    say(f"Scoring {split} with {describe_evaluation(config.evaluation, lanes)}.")
    if is_pretrained(options.run):
        say("The score is not recorded: nothing is written into the package.")
    evaluation = evaluate_lanes(
        lm, records, split, evaluator, lanes, max_segments=options.max_segments
    )
    if options.json:
        print(json.dumps(evaluation.make_report(preset)))
    else:
        print(*evaluation.format_table(preset), sep="\n")


def _check_flags(options: flags.FlagValues) -> None:
    """Checks the flags that do not depend on the run."""
    if options.warm_len is not None and not options.warm_lanes:
        raise flags.Error("--warm_len cannot be used with --warm_lanes=false")
    names = [name for name in ("warm_len", "mem_len", "same_length") if options[name].value]
    names += [] if options.warm_lanes else ["warm_lanes=false"]
    if options.stride is not None and names:
        raise flags.Error(f"--{names[0]} cannot be used with --stride, which reads no memory")
    dynamic = [n for n in name_flags(DynamicConfig, _DYNAMIC).values() if options[n].present]
    if dynamic and not options.dynamic:
        raise flags.Error(f"--{dynamic[0]} needs --dynamic")
    if options.dynamic and options.stride is not None:
        raise flags.Error("--stride cannot be used with --dynamic, which reads a text once")
    if options.dynamic and options.precision != "float32":
        raise flags.Error("--dynamic needs --precision=float32")


def _choose_evaluation(options: flags.FlagValues, base: EvalConfig) -> EvalConfig:
    """Returns the evaluation config of the preset or run, overridden by the flags."""
    if options.stride is not None:
        base = dataclasses.replace(base, mem_len=0, same_length=False)
    evaluation = override_evaluation(base, options)
    if options.dynamic and options.lanes is None:
        evaluation = dataclasses.replace(evaluation, eval_batch_size=1)
    return evaluation


def choose_dynamic_config(options: flags.FlagValues) -> DynamicConfig | None:
    """Returns the settings of dynamic evaluation from the flags; `None` for a static evaluation."""
    if not options.dynamic:
        return None
    base = DynamicConfig(options.dynamic_rule or "rms")
    config = override(base, options, prefix=_DYNAMIC)
    if not config.learning_rate:
        print("With a learning rate of 0 the evaluation is static.", file=sys.stderr)
        return None
    return config


def choose_preset(name: str | None, found: RunConfig) -> tuple[str | None, EvalConfig]:
    """Returns the preset whose published result is shown, and the evaluation config.

    The name may be `SOTA`, or `None` for the settings of the run.
    """
    own = presets.find(found.model, found.dataset)
    if name is None:
        return own, found.evaluation
    preset = own if name == SOTA else name
    if preset is None:
        raise UserError(
            f"no preset has a model of the run's shape, so --preset={SOTA} names none. "
            f"Choose one: {', '.join(presets.names())}"
        )
    return preset, presets.get(preset).evaluation
