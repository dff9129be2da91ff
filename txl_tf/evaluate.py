"""Evaluates a run, and shows its bpc or perplexity beside the published figure.

python -m txl_tf.evaluate --run runs/text8 --recipe sota
"""

import dataclasses
import functools
import json
import sys
from typing import TYPE_CHECKING

from absl import flags

from txl_tf import presets
from txl_tf.cli.config_flags import answer_as_flags
from txl_tf.cli.data_formats import DATA_FORMATS, RECORDS, check_data_format, open_data_set
from txl_tf.cli.program import define_flag, run_program
from txl_tf.cli.span_flags import define_span_flags, override_evaluation
from txl_tf.config import EvalConfig
from txl_tf.data.data_set import get_level
from txl_tf.errors import UserError

if TYPE_CHECKING:
    from txl_tf.data.data_set import DataSet
    from txl_tf.runs.folder import RunConfig

SOTA = "sota"


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    return run_program(str(__doc__), define_flags(), evaluate_run, argv, positional="run")


def define_flags() -> flags.FlagValues:
    """Returns the flags of the program, not yet read."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    of_recipe = "[default: the recipe's]"
    define("run", str, None, "Folder of the run.", required=True, is_path=True)
    define(
        *("recipe", str, None),
        f"How to evaluate: {SOTA}, as the recipe whose model the run has; or as one of "
        f"{', '.join(presets.names())}. [default: as the run's own config says]",
    )
    define("data_dir", str, None, "Folder of the records. [default: the run's own]", is_path=True)
    define("data_format", str, RECORDS, f"What it holds: {' or '.join(DATA_FORMATS)}.")
    define("split", str, None, "Split to evaluate on. [default: test if there is one, else valid]")
    define("lanes", int, None, f"Lanes to cut the split into. {of_recipe}", lower_bound=1)
    define("warm_lanes", bool, True, "Warm the lanes; if not, count as the 2019 release did.")
    define(
        *("warm_len", int, None, "Tokens that warm a lane. [default: four times mem_len]"),
        lower_bound=0,
    )
    define_span_flags(options, of_recipe)
    define(
        *("reset_at_documents", bool, None),
        f"A document sees nothing of the one before it. {of_recipe}",
    )
    define("checkpoint", str, None, "Path of the checkpoint. [default: the newest]", is_path=True)
    define("use_ema", bool, True, "Take averaged weights where the checkpoint has them.")
    define("max_segments", int, None, "Segments to score. [default: all]", lower_bound=1)
    define("jit", bool, True, "Compile the model with XLA.")
    define("json", bool, False, "Print one JSON object instead of the table.")
    return options


def evaluate_run(options: flags.FlagValues) -> None:
    """Evaluates a run as the flags say, prints its score and adds it to `evaluations.jsonl`.

    Raises:
        flags.Error: flags that contradict each other, or that no evaluation can have.
        UserError: no run, no records, or some that do not fit.
    """
    _check_flags(options)

    from txl_tf.evaluation.checkpoints import (
        check_data,
        describe_evaluation,
        score_checkpoint,
        warn_of_unknown,
    )
    from txl_tf.evaluation.evaluator import Evaluator
    from txl_tf.evaluation.report import Job
    from txl_tf.model import TransformerXL
    from txl_tf.runs.checkpoint_files import find_checkpoint
    from txl_tf.runs.folder import read_run_config, read_run_vocabulary

    found = read_run_config(options.run)
    recipe, base = choose_recipe(options.recipe, found)
    config = dataclasses.replace(found, evaluation=override_evaluation(base, options))
    records = open_run_records(options)
    split = options.split or ("test" if "test" in records.splits else "valid")
    check_data(records, config, model_dir=options.run, split=split)
    checkpoint = options.checkpoint or find_checkpoint(options.run)
    say = functools.partial(print, file=sys.stderr if options.json else sys.stdout)
    evaluator = Evaluator(
        TransformerXL(config.model),
        config.evaluation,
        vocabulary=records.vocabulary,
        jit_compile=options.jit,
    )
    lanes = evaluator.cut_lanes(
        records.split(split), warm_len=options.warm_len, drop_rest=not options.warm_lanes
    )
    if lanes.n_lanes < config.evaluation.eval_batch_size:
        say(f"Split {split} has {lanes.n_lanes} segments: so many lanes, more would be empty.")
        fewer = dataclasses.replace(config.evaluation, eval_batch_size=lanes.n_lanes)
        config = dataclasses.replace(config, evaluation=fewer)
    job = Job(options.run, config, records, split, recipe, lanes)
    if read_run_vocabulary(options.run) is None:
        say(f"{options.run} has no vocabulary: its ids are taken for those of the records.")
    say(f"Scores {split} with {describe_evaluation(config.evaluation, lanes)}.")
    say(job.describe_counting())
    outcome = score_checkpoint(
        evaluator,
        lanes,
        model_dir=options.run,
        split=split,
        checkpoint=checkpoint,
        level=get_level(records),
        max_segments=options.max_segments,
        use_ema=options.use_ema,
    )
    warn_of_unknown(outcome.score, records)
    if options.json:
        print(json.dumps(job.make_record(outcome)))
        return
    for line in job.format_table(outcome):
        print(line)


def _check_flags(options: flags.FlagValues) -> None:
    """Checks what can be known without the run.

    Raises:
        flags.Error: there is no such recipe, or flags contradict each other.
    """
    answer_as_flags(check_data_format, options.data_format)
    if options.recipe not in (None, SOTA):
        try:
            presets.get(options.recipe)
        except UserError as error:
            raise flags.Error(f"--recipe: {error}, or {SOTA}") from error
    if options.warm_len is not None and not options.warm_lanes:
        raise flags.Error("--warm_len is for lanes that are warmed: --warm_lanes=false has none")


def choose_recipe(name: str | None, found: "RunConfig") -> tuple[str | None, EvalConfig]:
    """Returns the recipe whose figure is shown, and how to evaluate.

    Args:
        name: of the recipe, or `SOTA`, or `None` for an evaluation by the run's own config.
        found: the run's.

    Raises:
        UserError: `SOTA`, and the run has no recipe's model.
    """
    own = presets.find(found.model, found.dataset)
    if name is None:
        return own, found.evaluation
    recipe = own if name == SOTA else name
    if recipe is None:
        raise UserError(
            f"no recipe has a model of the run's shape, so that --recipe {SOTA} names none. "
            f"Choose one: {', '.join(presets.names())}"
        )
    return recipe, presets.get(recipe).evaluation


def open_run_records(options: flags.FlagValues) -> "DataSet":
    """Opens the records that the flags name; else those in the run's folder, or of its training.

    Raises:
        UserError: there are none, or they are not there any more.
    """
    from txl_tf.runs.data_place import DataPlace, find_run_data

    place: DataPlace | None
    if options.data_dir:
        place = DataPlace(options.data_dir, options.data_format)
    else:
        place = find_run_data(options.run)
    if place is None:
        raise UserError(
            f"`{options.run}` holds no records, and does not know where its data are: pass "
            "--data_dir, the folder of the records"
        )
    return open_data_set(
        place.data_dir,
        place.data_format,
        record_info_dir=place.record_info_dir,
        corpus_info_path=place.corpus_info_path,
        eval_batch_size=options.lanes,
        tgt_len=options.tgt_len,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv))
