"""Evaluations of open runs, for `txl evaluate` and the training command."""

import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from txl_tf import presets
from txl_tf.data.files import append_json_line
from txl_tf.data.lanes.evaluation_lanes import EvaluationLanes
from txl_tf.data.records.reading import Records
from txl_tf.errors import StorageError, UserError
from txl_tf.language_model import LanguageModel, open_run
from txl_tf.models.quantization import get_kernel_dtype
from txl_tf.pretrained import is_pretrained
from txl_tf.runs.checkpoint_choice import is_there, list_checkpoints
from txl_tf.runs.folder import EVALUATIONS_NAME, has_own_split
from txl_tf.scoring.evaluator import Evaluator, describe_evaluation
from txl_tf.scoring.metrics import Score, name_unit, warn_of_unknown
from txl_tf.scoring.progress import ScoreBar
from txl_tf.training.job import TrainJob


class Evaluation(NamedTuple):
    """The score of an open run on a split of its records."""

    lm: LanguageModel
    records: Records
    split: str
    evaluator: Evaluator
    lanes: EvaluationLanes
    score: Score
    seconds: float  # including compilation

    @property
    def is_whole(self) -> bool:
        """Whether every token of the split except the first was scored."""
        return self.score.tokens == self.lanes.n_targets + self.lanes.n_left_out

    @property
    def is_own(self) -> bool:
        """Whether the checkpoint and the records are those of the run."""
        run, checkpoint = str(self.lm.run), str(self.lm.checkpoint)
        is_checkpoint_own = not os.path.relpath(checkpoint, run).startswith(os.pardir)
        return is_checkpoint_own and has_own_split(run, self.records, self.split)

    def to_json(self) -> dict[str, Any]:
        """Returns the score and the settings of the evaluation, for `evaluations.jsonl`."""
        lm, lanes, dynamic = self.lm, self.lanes, self.evaluator.reader.dynamic
        return {
            "split": self.split,
            "is_whole": self.is_whole,
            "is_own": self.is_own,
            "checkpoint": lm.checkpoint,
            "is_averaged": lm.is_averaged,
            "precision": get_kernel_dtype(lm.model),
            "step": lm.step,
            **self.score.to_json(),
            "evaluation": self.evaluator.config.to_json(),
            "lanes": lanes.n_lanes,
            "warm_len": lanes.warm_len,  # tokens that warm each lane
            "as_release": lanes.drop_rest,  # counted as the 2019 release does
            "stride": lanes.stride,  # of sliding windows
            "dynamic": dynamic and dynamic.to_json(),
        }

    def make_report(self, preset: str | None) -> dict[str, Any]:
        """Returns a dict for JSON, with the published result of a preset."""
        published, split = presets.get(preset).find_published(self.split) if preset else ("", "")
        found = self.to_json()
        found["evaluation"]["eval_batch_size"] = self.lanes.n_lanes
        return {
            "run": self.lm.run,
            "dataset": self.lm.dataset,
            "recipe": preset,  # the key of the first records
            "published": published,
            "published_split": split if published else "",
            **found,
            "tokens_left_out": self.lanes.n_left_out,
            "unit": name_unit(self.score.level),
            "seconds": self.seconds,
            "tokens_per_second": self.score.tokens / self.seconds,
        }

    def format_table(self, preset: str | None) -> Iterator[str]:
        """Yields the lines of a table, with the published result of a preset."""
        lm, records, lanes, score = self.lm, self.records, self.lanes, self.score
        dynamic, precision = self.evaluator.reader.dynamic, get_kernel_dtype(lm.model)
        weights = ", averaged weights" if lm.is_averaged else ""
        weights += f", in {precision}" if precision != "float32" else ""
        cut = "" if score.tokens == lanes.n_targets else f" of {lanes.n_targets:,}"
        cut += f", {lanes.n_left_out:,} left out" if lanes.n_left_out else ""
        rows = {
            "data": f"{records.dataset}, split {self.split}",
            "checkpoint": f"{lm.checkpoint}{weights}",
            "span": self.evaluator.config.describe(),
            "lanes": lanes.describe(noun=""),
            "dynamic": dynamic.describe() if dynamic else "",
            "tokens": f"{score.tokens:,}{cut}",
            "unknown": score.describe_unknown() if records.vocabulary.unknown is not None else "",
            "loss": f"{score.nats_per_token:.4f} nats",
        }
        unit, bits = name_unit(score.level), f"{score.bits_per_token:.4f}"
        if unit == "perplexity":
            rows[unit] = f"{score.perplexity:.2f}"
        elif unit == "bpc" and score.n_unknown:
            rows |= {unit: "- (there are unknown characters)", "bits per token": bits}
        else:
            rows[unit] = bits
        rows["published"] = self._describe_published(preset) if preset else ""
        speed = f"{score.tokens / self.seconds:,.0f} tokens/s"
        rows["speed"] = f"{speed}: {self.seconds:.1f} seconds, compilation included"
        width = max(len(name) for name, text in rows.items() if text)
        for name, text in rows.items():
            if text:
                yield f"{name:<{width}}  {text}"

    def _describe_published(self, name: str) -> str:
        """Returns the published result of a preset and how its settings differ."""
        preset = presets.get(name)
        published, split = preset.find_published(self.split)
        if not published:
            return f"none for {name}"
        notes, dataset = [name], name.partition("_")[0]
        if (dataset, split) != (self.records.dataset, self.split):
            notes.append(f"on {dataset}, split {split}")
        if preset.evaluation.describe() != self.evaluator.config.describe():
            notes.append(f"with {preset.evaluation.describe()}")
        return f"{published} ({'; '.join(notes)})"


def evaluate_lanes(
    lm: LanguageModel,
    records: Records,
    split: str,
    evaluator: Evaluator,
    lanes: EvaluationLanes,
    *,
    max_segments: int | None = None,
) -> Evaluation:
    """Scores the lanes of a split with a progress bar, and records the score in the run folder."""
    with ScoreBar(split) as bar:
        score = evaluator.score_lanes(lanes, max_segments=max_segments, report=bar.show)
    found = Evaluation(lm, records, split, evaluator, lanes, score, bar.seconds)
    warn_of_unknown(score, records.vocabulary)
    if lm.run is None or is_pretrained(lm.run):
        return found
    try:
        append_json_line(os.path.join(lm.run, EVALUATIONS_NAME), found.to_json())
    except StorageError as error:  # the score, which may have taken hours, is still printed
        print(f"warning: the evaluation was not recorded: {error}", file=sys.stderr)
    return found


def evaluate_checkpoints(
    job: TrainJob,
    *,
    checkpoint: str | None = None,
    first_step: int | None = None,
    max_segments: int | None = None,
    jit: str = "auto",
) -> list[Score]:
    """Evaluates checkpoints of a job's run with its options, and prints their scores.

    Evaluates all checkpoints from `first_step` on, if it is given, and otherwise `checkpoint`,
    which is chosen as in `find_checkpoint`. Returns the scores in the order of the steps.
    """
    model_dir, records, options = job.model_dir, job.records, job.options
    choices = [checkpoint]
    if first_step is not None:
        choices = [path for step, path in list_checkpoints(model_dir) if step >= first_step]
        if not choices:
            raise UserError(f"`{model_dir}` holds no checkpoint from step {first_step} on")
    split, use_ema = options.eval_split, options.use_ema
    scores: list[Score] = []
    lm = None
    for choice in choices:
        try:
            if lm is None:
                lm = open_run(
                    model_dir,
                    checkpoint=choice,
                    use_ema=use_ema,
                    config=job.config,
                    records=records,
                    split=split,
                )
                evaluator = lm.make_evaluator(records, jit=jit)
                lanes = evaluator.cut_lanes(records.split(split))
                print(f"Scoring {split} with {describe_evaluation(evaluator.config, lanes)}.")
            else:
                lm.load_checkpoint(choice, use_ema=use_ema)
        except UserError:
            if first_step is None or is_there(str(choice)):
                raise
            print(f"{choice} is left out: it has been removed since.")
            continue
        found = evaluate_lanes(lm, records, split, evaluator, lanes, max_segments=max_segments)
        n_tokens = None if found.is_whole else lanes.n_targets
        weights = ", averaged weights" if lm.is_averaged else ""
        text = f"{found.score.describe(n_tokens)} | {lanes.describe()}"
        print(f"{split} at step {lm.step}{weights}: {text}")
        scores.append(found.score)
    return scores
