"""The evaluation of a run's checkpoints."""

import os
import sys
from typing import NamedTuple

from txl_tf.config import EvalConfig
from txl_tf.data.data_set import DataSet, get_level
from txl_tf.data.evaluation_lanes import EvaluationLanes
from txl_tf.errors import UserError
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.progress import ScoreBar
from txl_tf.evaluation.score import (
    Score,
    describe_unknown,
    format_score,
    make_bits_record,
    make_unknown_record,
)
from txl_tf.model import TransformerXL
from txl_tf.runs.checkpoint_files import find_checkpoint, list_checkpoints, read_step
from txl_tf.runs.checkpoint_reader import load_weights
from txl_tf.runs.files import append_json_line
from txl_tf.runs.folder import EVALUATIONS_NAME, RunConfig, check_vocabulary, read_run_vocabulary


class Outcome(NamedTuple):
    """The score of a checkpoint.

    Args:
        score: the score.
        checkpoint: its path.
        step: its step.
        is_averaged: whether its weights are the moving averages.
        is_whole: whether all of the split was scored.
        seconds: how long that took, compilation included.
    """

    score: Score
    checkpoint: str
    step: int
    is_averaged: bool
    is_whole: bool
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """The tokens that counted by the seconds."""
        return self.score.tokens / self.seconds


def evaluate_checkpoints(
    records: DataSet,
    config: RunConfig,
    *,
    model_dir: str,
    split: str,
    checkpoint: str | None = None,
    first_step: int | None = None,
    max_segments: int | None = None,
    use_ema: bool = True,
    jit_compile: bool = True,
) -> list[Score]:
    """Evaluates checkpoints of a run, prints their scores and adds them to `evaluations.jsonl`.

    Args:
        records: the data set.
        config: the run's.
        model_dir: run folder.
        split: split to score.
        checkpoint: path of the checkpoint; `None` for the newest.
        first_step: evaluate every checkpoint from this step on.
        max_segments: segments of each lane to score; `None` for all.
        use_ema: take the averages of the weights where a checkpoint has them.
        jit_compile: whether XLA compiles the model.

    Returns:
        The scores, in the order of the steps.

    Raises:
        UserError: the run has another vocabulary or model, there is no such checkpoint, the split
            knows no documents, or a record is damaged.
    """
    check_data(records, config, model_dir=model_dir, split=split)
    if first_step is None:
        checkpoints = [checkpoint or find_checkpoint(model_dir)]
    else:
        checkpoints = [path for step, path in list_checkpoints(model_dir) if step >= first_step]
        if not checkpoints:
            raise UserError(f"`{model_dir}` holds no checkpoint from step {first_step} on")
    evaluator = Evaluator(
        TransformerXL(config.model),
        config.evaluation,
        vocabulary=records.vocabulary,
        jit_compile=jit_compile,
    )
    lanes = evaluator.cut_lanes(records.split(split))
    print(f"Scores {split} with {describe_evaluation(config.evaluation, lanes)}.")
    scores = []
    for path in checkpoints:
        outcome = score_checkpoint(
            evaluator,
            lanes,
            model_dir=model_dir,
            split=split,
            checkpoint=path,
            level=get_level(records),
            max_segments=max_segments,
            use_ema=use_ema,
        )
        n_tokens = None if outcome.is_whole else lanes.n_targets
        weights = ", averaged weights" if outcome.is_averaged else ""
        found = f"{format_score(outcome.score, n_tokens)} | {lanes.describe()}"
        print(f"{split} at step {outcome.step}{weights}: {found}")
        warn_of_unknown(outcome.score, records)
        scores.append(outcome.score)
    return scores


def score_checkpoint(
    evaluator: Evaluator,
    lanes: EvaluationLanes,
    *,
    model_dir: str,
    split: str,
    checkpoint: str,
    level: str | None,
    max_segments: int | None = None,
    use_ema: bool = True,
) -> Outcome:
    """Scores lanes with the weights of a checkpoint, and adds that to `evaluations.jsonl`.

    Args:
        evaluator: of a model of the checkpoint's shape, whose weights it gets.
        lanes: of the split, as the evaluator cuts them.
        model_dir: run folder.
        split: name of the split.
        checkpoint: path of the checkpoint.
        level: that of the vocabulary, for the bar.
        max_segments: segments of each lane to score; `None` for all.
        use_ema: take the averages of the weights if the checkpoint has any.

    Raises:
        UserError: the checkpoint cannot be read or is of another model, or a record is damaged.
    """
    step = read_step(checkpoint)
    is_averaged = load_weights(evaluator.model, checkpoint, use_averages=use_ema)
    with ScoreBar(split, level) as bar:
        score = evaluator.score_lanes(lanes, max_segments=max_segments, report=bar.show)
    is_whole = score.tokens == lanes.n_targets + lanes.n_left_out
    write_evaluation(
        model_dir,
        score,
        evaluator.config,
        split=split,
        checkpoint=checkpoint,
        step=step,
        is_whole=is_whole,
        is_averaged=is_averaged,
        n_lanes=lanes.n_lanes,
        warm_len=lanes.warm_len,
        as_release=lanes.drop_rest,
    )
    return Outcome(score, checkpoint, step, is_averaged, is_whole, bar.seconds)


def check_data(records: DataSet, config: RunConfig, *, model_dir: str, split: str) -> None:
    """Checks that a run can be evaluated on a split.

    Raises:
        UserError: the run has another vocabulary, there is no such split, or it must know its
            documents and does not.
    """
    if read_run_vocabulary(model_dir) is not None:  # an import may know ids alone
        check_vocabulary(model_dir, records.vocabulary)
    if records.n_token != config.model.n_token:
        raise UserError(
            f"`{model_dir}` is of a model with {config.model.n_token} symbols; the records in "
            f"{records.data_dir} have {records.n_token}"
        )
    records.split(split)  # raises if there is none
    if config.evaluation.reset_at_documents:
        check_documents(records, split)


def check_documents(records: DataSet, split: str) -> None:
    """Checks that a split knows where its documents begin.

    Raises:
        UserError: it does not, or there is no such split.
    """
    records.split(split)  # raises if there is none
    if not records.n_documents(split):
        raise UserError(
            "`reset_at_documents` needs a data set with document boundaries; "
            f"{records.data_dir} has none in split {split}"
        )


def warn_of_unknown(score: Score, records: DataSet) -> None:
    """Prints a line to the standard error if tokens that were scored are unknown ones."""
    if score.n_unknown and records.vocabulary:
        print(f"warning: {describe_unknown(score, records.vocabulary.unknown)}", file=sys.stderr)


def describe_evaluation(config: EvalConfig, lanes: EvaluationLanes | None = None) -> str:
    """Returns how a split is scored, for people.

    Args:
        config: lanes, segment and span.
        lanes: of the split, where they are known: they say how they begin.

    >>> describe_evaluation(EvalConfig(80, 2100, clamp_len=820, eval_batch_size=2))
    'tgt_len 80, mem_len 2100, same_length false, clamp_len 820, 2 lanes'
    """
    reset = ", reset_at_documents true" if config.reset_at_documents else ""
    n_lanes = config.eval_batch_size
    counting = lanes.describe() if lanes is not None else f"{n_lanes} lane{'s' * (n_lanes > 1)}"
    return f"{describe_span(config)}, {counting}{reset}"


def describe_span(config: EvalConfig) -> str:
    """Returns segment and span of an evaluation, for people.

    >>> describe_span(EvalConfig(80, 2100, clamp_len=820))
    'tgt_len 80, mem_len 2100, same_length false, clamp_len 820'
    >>> describe_span(EvalConfig(128, 1600, same_length=True, counts_self=True))
    'tgt_len 128, mem_len 1600, same_length true, counts_self true, clamp_len -1'
    """
    own = ", counts_self true" if config.same_length and config.counts_self else ""
    return (
        f"tgt_len {config.tgt_len}, mem_len {config.mem_len}, "
        f"same_length {str(config.same_length).lower()}{own}, clamp_len {config.clamp_len}"
    )


def write_evaluation(
    model_dir: str,
    score: Score,
    config: EvalConfig,
    *,
    split: str,
    checkpoint: str,
    step: int,
    is_whole: bool,
    is_averaged: bool,
    n_lanes: int,
    warm_len: int = 0,
    as_release: bool = False,
) -> None:
    """Adds a score to the run's `evaluations.jsonl`, with how it came about."""
    record = {
        "split": split,
        "is_whole": is_whole,  # all of the split was scored
        "checkpoint": checkpoint,
        "is_averaged": is_averaged,  # of the moving averages of its weights
        "step": step,
        "loss_nats": score.nats_per_token,
        **make_bits_record(score),
        "perplexity": score.perplexity,
        "tokens": score.tokens,
        **make_unknown_record(score),
        "evaluation": config.to_json(),
        "lanes": n_lanes,
        "warm_len": warm_len,  # tokens that each lane read before those that count
        "as_release": as_release,  # counted as the 2019 release does
    }
    append_json_line(os.path.join(model_dir, EVALUATIONS_NAME), record)
