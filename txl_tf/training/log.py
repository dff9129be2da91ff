"""The log of a training run: lines of text with the time left, JSON lines and TensorBoard.

`Validation` keeps the evaluations during training, which decide the best step and early stopping.
"""

import math
import os
import shlex
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams

from txl_tf.config import EvalConfig, TrainConfig
from txl_tf.config.base import list_differences
from txl_tf.config.training import RunOptions
from txl_tf.data.files import access_path, append_json_line, drop_lines_after
from txl_tf.data.lanes.evaluation_lanes import EvaluationLanes
from txl_tf.runs.checkpoint_choice import VALIDATION_NAME, find_best, list_losses
from txl_tf.runs.folder import EVENTS_NAME, LOG_NAME, RunConfig
from txl_tf.scoring.metrics import Score
from txl_tf.training.intervals import Interval


class TimeLeft:
    """Estimates the remaining time of a run from the last duration of each of its parts.

    Steps are weighted by their tokens, because later stages with longer segments take longer. Only
    regular saves are counted, not those after a best evaluation. The run sets the last speed, and
    the durations of the last evaluation and save.
    """

    def __init__(self, training: TrainConfig, options: RunOptions):
        self._training = training
        self._options = options
        self.tokens_per_second = math.nan
        self.evaluation_seconds = 0.0
        self.save_seconds = 0.0

    def describe(self, step: int) -> str:
        """Returns the time left after a step; empty if the speed is not known yet."""
        count_tokens = self._training.count_tokens
        n_tokens = count_tokens(self._training.train_steps) - count_tokens(step)
        seconds = n_tokens / self.tokens_per_second
        for every, each in (
            (self._options.eval_every, self.evaluation_seconds),
            (self._options.save_steps, self.save_seconds),
        ):
            seconds += self._count_stops(step, every) * each if every else 0.0
        return "" if math.isnan(seconds) else f"{timedelta(seconds=round(seconds))} left"

    def _count_stops(self, step: int, every: int) -> int:
        """Returns the number of stops still to come: multiples of `every`, and the last step."""
        # The stop at `step` itself is still to come.
        return (self._training.train_steps - 1) // every - (step - 1) // every + 1


class TrainingLog:
    """Writes the metrics of each interval to `log.jsonl`, TensorBoard and a line of text.

    A resumed run removes the lines of steps that it repeats from `log.jsonl`, so that every step is
    logged once. TensorBoard shows two runs, train and validation. Losses have the same tags in
    both, loss/NAME, so that one chart shows both curves; other metrics of training are train/NAME.
    """

    def __init__(
        self,
        model_dir: str,
        config: RunConfig,
        options: RunOptions,
        *,
        first_step: int,
        level: str | None,
    ):
        self.train_steps = config.training.train_steps
        self.time_left = TimeLeft(config.training, options)
        self._level = level
        self._path = os.path.join(model_dir, LOG_NAME)
        drop_lines_after(self._path, first_step)
        self._events_path = os.path.join(model_dir, EVENTS_NAME)
        with access_path(self._events_path):
            self._events = {
                name: tf.summary.create_file_writer(os.path.join(self._events_path, name))
                for name in ("train", "validation")
            }
            _write_hyper_parameters(self._events_path, config)

    def write_training(self, interval: Interval, gauges: Mapping[str, float]) -> str:
        """Logs an interval and returns the line of text.

        The line has the mean losses, and the gradient norm and learning rate of the last step.
        Skipped steps are counted as `bad_steps` and excluded from the means. The speed excludes
        compilation, evaluations and saves. `gauges` are further measurements.
        """
        record: dict[str, Any] = {
            "step": interval.step,
            "learning_rate": float(interval.learning_rate[-1]),
            "bad_steps": int((~interval.is_good).sum()),
            **gauges,
        }
        if math.isfinite(interval.tokens_per_second):
            record["tokens_per_second"] = interval.tokens_per_second
            self.time_left.tokens_per_second = interval.tokens_per_second
        losses: dict[str, float | None] = {}
        if interval.is_good.any():
            good = interval.is_good
            nats = float(interval.nats[good].sum())
            score = Score(nats, int(interval.tokens[good].sum()), self._level)
            losses = score.losses
            record["grad_norm"] = float(interval.grad_norm[good][-1])
        self._write_scalars("train", interval.step, "train", record)
        self._write_scalars("train", interval.step, "loss", losses)
        record |= losses
        append_json_line(self._path, record)
        return self._format(record)

    def _format(self, record: dict[str, Any]) -> str:
        parts = [f"step {record['step']}/{self.train_steps}"]
        if "loss_nats" in record:
            bits = "bpc" if "bpc" in record else "bits_per_token"
            parts += [
                f"loss {record['loss_nats']:.4f}",
                f"{bits.replace('_', ' ')} {record[bits]:.4f}",
                f"ppl {record['perplexity']:.5g}",
                f"grad norm {record['grad_norm']:.3g}",
            ]
        if record["bad_steps"]:
            parts.append(f"{record['bad_steps']} steps skipped, not finite")
        parts.append(f"lr {record['learning_rate']:.3g}")
        if "tokens_per_second" in record:
            parts.append(f"{record['tokens_per_second']:,.0f} tokens/s")
        left = self.time_left.describe(record["step"])
        return " | ".join([*parts, left] if left else parts)

    def write_validation(self, step: int, score: Score, sample: str | None = None) -> None:
        """Writes the score of an evaluation, and a sample in Markdown, for TensorBoard."""
        self._write_scalars("validation", step, "loss", score.losses)
        if sample is not None:
            writer = self._events["validation"]
            with access_path(self._events_path), writer.as_default(step=step):
                tf.summary.text("sample", sample)
                writer.flush()

    def _write_scalars(self, run: str, step: int, group: str, values: Mapping[str, Any]) -> None:
        with access_path(self._events_path), self._events[run].as_default(step=step):
            for name, value in values.items():
                if name != "step" and value is not None:
                    tf.summary.scalar(f"{group}/{name}", value)
            self._events[run].flush()


def _write_hyper_parameters(path: str, config: RunConfig) -> None:
    """Writes the config of a run for TensorBoard's hyperparameter table."""
    evaluation = config.evaluation.to_json()
    values = {"dataset": config.dataset, **config.model.to_json(), **config.training.to_json()}
    values |= {f"eval_{name.removeprefix('eval_')}": evaluation[name] for name in evaluation}
    is_plain = (bool, int, float, str)
    plain = {name: x if isinstance(x, is_plain) else str(x) for name, x in values.items()}
    writer = tf.summary.create_file_writer(path)
    with writer.as_default(step=0):
        hparams.hparams(plain)
    writer.close()


class Validation:
    """The scores of the evaluations during training, one line each in `validation.jsonl`.

    A resumed run removes the scores of steps that it repeats, so that it makes the same decisions
    as an uninterrupted run. `lanes` are those of the split; `None` if nothing is evaluated.
    """

    def __init__(
        self,
        model_dir: str,
        options: RunOptions,
        *,
        first_step: int,
        lanes: EvaluationLanes | None,
        evaluation: EvalConfig,
    ):
        self._model_dir = model_dir
        self._path = os.path.join(model_dir, VALIDATION_NAME)
        self._patience = options.patience
        self._split = options.eval_split
        self._lanes = lanes
        kept = drop_lines_after(self._path, first_step)
        self._losses = list_losses(self._path, kept, self._split)
        self._settings = evaluation.to_json()
        before = [line.get("evaluation") for line in kept if line["split"] == self._split]
        self._settings_before = before[-1] if before else None

    def add(self, step: int, score: Score) -> str:
        """Adds a score and returns a line of text about it."""
        assert self._lanes is not None
        record = {"step": step, "split": self._split, **score.to_json()}
        counting = {"lanes": self._lanes.n_lanes, "warm_len": self._lanes.warm_len}
        append_json_line(self._path, record | counting | {"evaluation": self._settings})
        self._losses[step] = score.nats_per_token
        best = " | best" if self.best_step == step else ""
        found = f"{score.describe()} | {self._lanes.describe()}{best}"
        return f"{self._split} at step {step}: {found}"

    def compare_settings(self) -> list[str]:
        """Describes how the settings of the last evaluation so far differ from those to come."""
        if self._lanes is None or self._settings_before is None:
            return []
        return list_differences(self._settings_before, self._settings)

    @property
    def best_step(self) -> int | None:
        """The first step with the lowest loss; `None` before the first score."""
        return find_best(self._losses)

    @property
    def is_over(self) -> bool:
        """Whether early stopping ends the run."""
        best = self.best_step
        if not self._patience or best is None:
            return False
        steps = list(self._losses)
        return len(steps) - 1 - steps.index(best) >= self._patience

    def describe_end(self) -> str:
        """Returns the message of early stopping."""
        run = shlex.quote(self._model_dir)
        return (
            f"Early stopping: {self._patience} evaluations without an improvement on step "
            f"{self.best_step}, whose checkpoint is kept; --patience=0 continues. To evaluate it: "
            f"txl evaluate --run {run} --checkpoint best"
        )
