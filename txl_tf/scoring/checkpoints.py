"""The evaluation of a run's checkpoints."""

import dataclasses
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from txl_tf import presets
from txl_tf.config import EvalConfig, ModelConfig
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.data.files import append_json_line
from txl_tf.data.lanes.evaluation_lanes import EvaluationLanes
from txl_tf.data.records.reading import Records
from txl_tf.errors import StorageError, UserError
from txl_tf.models.architecture import make_model
from txl_tf.models.segment_model import SegmentModel
from txl_tf.runs.checkpoint_files import is_there, list_checkpoints, read_step
from txl_tf.runs.checkpoint_reader import load_choice
from txl_tf.runs.folder import (
    EVALUATIONS_NAME,
    RunConfig,
    check_vocabulary,
    find_other_splits,
    name_records,
    read_run_vocabulary,
)
from txl_tf.scoring.evaluator import Evaluator
from txl_tf.scoring.metrics import (
    Score,
    format_score,
    format_unknown,
    make_score_record,
    name_measure,
    warn_of_unknown,
)
from txl_tf.scoring.progress import ScoreBar


class Checkpoint(NamedTuple):
    """A checkpoint whose weights were loaded."""

    path: str
    step: int
    is_averaged: bool
    precision: str = "float32"  # one of `KERNEL_DTYPES`


def load_checkpoint(
    model: SegmentModel, model_dir: str, choice: str | int | None = None, *, use_ema: bool = True
) -> Checkpoint:
    """Loads the weights of a checkpoint of a run; see `load_choice`."""
    path, is_averaged = load_choice(model, model_dir, choice, use_ema=use_ema)
    return Checkpoint(path, read_step(path), is_averaged)


class Outcome(NamedTuple):
    """The score of a checkpoint on a split."""

    score: Score
    split: str
    checkpoint: Checkpoint
    lanes: EvaluationLanes
    config: EvalConfig
    dynamic: DynamicConfig | None  # the rule of a dynamic evaluation
    seconds: float  # including compilation

    @property
    def is_whole(self) -> bool:
        """Whether every token of the split but the first was scored."""
        return self.score.tokens == self.lanes.n_targets + self.lanes.n_left_out

    @property
    def tokens_per_second(self) -> float:
        """The number of tokens scored per second of the duration."""
        return self.score.tokens / self.seconds

    def make_record(self) -> dict[str, Any]:
        """Returns the score and the settings of the evaluation, for `evaluations.jsonl`."""
        return {
            "split": self.split,
            "is_whole": self.is_whole,
            "checkpoint": self.checkpoint.path,
            "is_averaged": self.checkpoint.is_averaged,
            "precision": self.checkpoint.precision,
            "step": self.checkpoint.step,
            **make_score_record(self.score),
            "evaluation": self.config.to_json(),
            "lanes": self.lanes.n_lanes,
            "warm_len": self.lanes.warm_len,  # tokens that warm each lane
            "as_release": self.lanes.drop_rest,  # counted as the 2019 release does
            "stride": self.lanes.stride,  # of sliding windows
            "dynamic": self.dynamic and self.dynamic.to_json(),
        }


def evaluate_checkpoints(
    records: Records,
    config: RunConfig,
    *,
    model_dir: str,
    split: str,
    checkpoint: str | None = None,
    first_step: int | None = None,
    max_segments: int | None = None,
    use_ema: bool = True,
    jit: str = "auto",
) -> list[Score]:
    """Evaluates checkpoints of a run, prints their scores and appends them to `evaluations.jsonl`.

    They are all from `first_step` on, if it is given, or else `checkpoint`, as in
    `find_checkpoint`. Returns the scores in the order of the steps.
    """
    check_data(records, config, model_dir=model_dir, split=split)
    choices = [checkpoint]
    if first_step is not None:
        choices = [path for step, path in list_checkpoints(model_dir) if step >= first_step]
        if not choices:
            raise UserError(f"`{model_dir}` holds no checkpoint from step {first_step} on")
    model = make_model(config.model)
    evaluator = Evaluator(model, config.evaluation, vocabulary=records.vocabulary, jit=jit)
    lanes = evaluator.cut_lanes(records.split(split))
    print(f"Scoring {split} with {describe_evaluation(config.evaluation, lanes)}.")
    scores = []
    for choice in choices:
        try:
            loaded = load_checkpoint(model, model_dir, choice, use_ema=use_ema)
        except UserError:
            if first_step is None or is_there(str(choice)):
                raise
            print(f"{choice} is left out: it has been removed since.")
            continue
        outcome = score_checkpoint(
            evaluator, lanes, loaded, model_dir=model_dir, split=split, max_segments=max_segments
        )
        n_tokens = None if outcome.is_whole else lanes.n_targets
        weights = ", averaged weights" if loaded.is_averaged else ""
        found = f"{format_score(outcome.score, n_tokens)} | {lanes.describe()}"
        print(f"{split} at step {loaded.step}{weights}: {found}")
        warn_of_unknown(outcome.score, records.vocabulary)
        scores.append(outcome.score)
    return scores


def score_checkpoint(
    evaluator: Evaluator,
    lanes: EvaluationLanes,
    checkpoint: Checkpoint,
    *,
    model_dir: str | None,
    split: str,
    max_segments: int | None = None,
) -> Outcome:
    """Scores lanes with a loaded checkpoint, and records the score in the run folder if any."""
    with ScoreBar(split) as bar:
        score = evaluator.score_lanes(lanes, max_segments=max_segments, report=bar.show)
    dynamic = evaluator.reader.dynamic
    outcome = Outcome(score, split, checkpoint, lanes, evaluator.config, dynamic, bar.seconds)
    if model_dir is None:
        return outcome
    try:
        append_json_line(os.path.join(model_dir, EVALUATIONS_NAME), outcome.make_record())
    except StorageError as error:  # the score, which may have taken hours, is still printed
        print(f"warning: the evaluation was not recorded: {error}", file=sys.stderr)
    return outcome


def check_data(records: Records, config: RunConfig, *, model_dir: str, split: str) -> None:
    """Checks that a split exists and fits a run: its vocabulary and document boundaries."""
    if read_run_vocabulary(model_dir) is not None:  # an import may know only ids
        check_vocabulary(model_dir, records.vocabulary)
    check_records(records, config.model, config.evaluation, split)
    is_own = os.path.abspath(records.data_dir) == os.path.abspath(name_records(model_dir))
    if is_own and split in find_other_splits(model_dir, records):
        print(
            f"warning: `{records.data_dir}` was made again since `{model_dir}` was trained: split "
            f"{split} holds other records",
            file=sys.stderr,
        )


def check_records(records: Records, model: ModelConfig, config: EvalConfig, split: str) -> None:
    """Checks that a split exists and fits a model and an evaluation."""
    if records.n_token != model.n_token:
        raise UserError(
            f"the model has {model.n_token} symbols; the records in {records.data_dir} have "
            f"{records.n_token}"
        )
    records.split(split)  # raises if there is none
    if config.reset_at_documents:
        check_documents(records, split)


def check_documents(records: Records, split: str) -> None:
    """Checks that a split exists and has document boundaries."""
    records.split(split)  # raises if there is none
    if not records.n_documents(split):
        raise UserError(
            "`reset_at_documents` needs a data set with document boundaries; "
            f"{records.data_dir} has none in split {split}"
        )


def describe_evaluation(config: EvalConfig, lanes: EvaluationLanes | None = None) -> str:
    """Returns the settings of an evaluation as text, and how lanes start if they are known.

    >>> describe_evaluation(EvalConfig(80, 2100, clamp_len=820, eval_batch_size=2))
    'tgt_len 80, mem_len 2100, same_length false, clamp_len 820, 2 lanes'
    """
    reset = ", reset_at_documents true" if config.reset_at_documents else ""
    n_lanes = config.eval_batch_size
    counting = lanes.describe() if lanes is not None else f"{n_lanes} lane{'s' * (n_lanes > 1)}"
    return f"{describe_span(config)}, {counting}{reset}"


def describe_span(config: EvalConfig) -> str:
    """Returns segment, span and temperature of an evaluation as text.

    >>> describe_span(EvalConfig(80, 2100, clamp_len=820))
    'tgt_len 80, mem_len 2100, same_length false, clamp_len 820'
    >>> describe_span(EvalConfig(128, 1600, same_length=True, counts_self=True))
    'tgt_len 128, mem_len 1600, same_length true, counts_self true, clamp_len -1'
    >>> describe_span(EvalConfig(10, 0, temperature=1.08))
    'tgt_len 10, mem_len 0, same_length false, clamp_len -1, temperature 1.08'
    """
    temperature = "" if config.temperature == 1 else f", temperature {config.temperature:g}"
    own = ", counts_self true" if config.same_length and config.counts_self else ""
    return (
        f"tgt_len {config.tgt_len}, mem_len {config.mem_len}, "
        f"same_length {str(config.same_length).lower()}{own}, clamp_len {config.clamp_len}"
        f"{temperature}"
    )


def make_report(
    outcome: Outcome, records: Records, preset: str | None, *, model_dir: str, dataset: str
) -> dict[str, Any]:
    """Returns an evaluation as an object for JSON, with the published result of a preset."""
    published, split = "", ""
    if preset is not None:
        published, split = presets.get(preset).find_published(outcome.split)
    evaluation = dataclasses.replace(outcome.config, eval_batch_size=outcome.lanes.n_lanes)
    return {
        "run": model_dir,
        "dataset": dataset,
        "recipe": preset,  # the key of the first records
        "published": published,
        "published_split": split if published else "",
        **outcome.make_record(),
        "evaluation": evaluation.to_json(),
        "tokens_left_out": outcome.lanes.n_left_out,
        "unit": name_measure(records.vocabulary.level),
        "seconds": outcome.seconds,
        "tokens_per_second": outcome.tokens_per_second,
    }


def format_report(outcome: Outcome, records: Records, preset: str | None) -> Iterator[str]:
    """Yields the lines of a table of an evaluation, with the published result of a preset."""
    lanes, score, checkpoint = outcome.lanes, outcome.score, outcome.checkpoint
    cut = "" if score.tokens == lanes.n_targets else f" of {lanes.n_targets:,}"
    cut += f", {lanes.n_left_out:,} left out" if lanes.n_left_out else ""
    weights = ", averaged weights" if checkpoint.is_averaged else ""
    weights += f", in {checkpoint.precision}" if checkpoint.precision != "float32" else ""
    rows = {
        "data": f"{records.dataset}, split {outcome.split}",
        "checkpoint": f"{checkpoint.path}{weights}",
        "span": describe_span(outcome.config),
        "lanes": lanes.describe(noun=""),
        "dynamic": outcome.dynamic.describe() if outcome.dynamic else "",
        "tokens": f"{score.tokens:,}{cut}",
        "unknown": format_unknown(score) if records.vocabulary.unknown is not None else "",
        "loss": f"{score.nats_per_token:.4f} nats",
        **_format_measure(score),
        "published": _describe_published(outcome, records, preset),
        "speed": f"{outcome.tokens_per_second:,.0f} tokens/s: {outcome.seconds:.1f} seconds, "
        "compilation included",
    }
    width = max(len(name) for name, text in rows.items() if text)
    for name, text in rows.items():
        if text:
            yield f"{name:<{width}}  {text}"


def _format_measure(score: Score) -> dict[str, str]:
    """Returns the score in its unit, or the reason why it has none."""
    unit = name_measure(score.level)
    if unit == "perplexity":
        return {unit: f"{score.perplexity:.2f}"}
    bits = f"{score.bits_per_token:.4f}"
    if score.n_unknown:
        return {unit: "- (there are unknown characters)", "bits per token": bits}
    return {unit: bits}


def _describe_published(outcome: Outcome, records: Records, name: str | None) -> str:
    """Returns the published result and how its settings differ; empty without a preset."""
    if name is None:
        return ""
    preset = presets.get(name)
    published, split = preset.find_published(outcome.split)
    if not published:
        return f"none for {name}"
    notes, dataset = [name], name.partition("_")[0]
    if (dataset, split) != (records.dataset, outcome.split):
        notes.append(f"on {dataset}, split {split}")
    if describe_span(preset.evaluation) != describe_span(outcome.config):
        notes.append(f"with {describe_span(preset.evaluation)}")
    return f"{published} ({'; '.join(notes)})"
