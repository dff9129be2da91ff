"""What a training run says while it goes on: lines, JSON lines, TensorBoard."""

import math
import os
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from txl_tf.config import EvalConfig
from txl_tf.training.evaluator import Score, compute_perplexity
from txl_tf.training.files import append_json_line, drop_lines_after, explain_errors
from txl_tf.training.measures import (
    format_unknown,
    make_bits_record,
    make_unknown_record,
    name_bits,
    name_measure,
)
from txl_tf.training.run_folder import EVALUATIONS_NAME, EVENTS_NAME, LOG_NAME
from txl_tf.training.trainer import Interval


class TrainingLog:
    """Writes the numbers of each interval to `log.jsonl`, TensorBoard and a line of text.

    Lines of steps that a resumed run takes again are dropped from `log.jsonl`, so that every step
    stands there once.

    Args:
        model_dir: run folder.
        first_step: where the run starts or goes on.
        train_steps: where it ends.
        level: that of the vocabulary, for the name of the bits per token; `None` if not known.
    """

    def __init__(
        self, model_dir: str, *, first_step: int, train_steps: int, level: str | None = None
    ):
        self.train_steps = train_steps
        self._bits = name_bits(level)
        self._path = os.path.join(model_dir, LOG_NAME)
        drop_lines_after(self._path, first_step)
        self._events_path = os.path.join(model_dir, EVENTS_NAME)
        with explain_errors(self._events_path):
            self._events = tf.summary.create_file_writer(self._events_path)
        self._last_step, self._last_time = first_step, time.perf_counter()

    def write_training(self, interval: Interval, gauges: Mapping[str, float]) -> str:
        """Logs an interval: means over its steps, gradient norm and learning rate of the last.

        Steps that were skipped are counted as `bad_steps` and left out of the means.

        Args:
            interval: the steps.
            gauges: what else was read at its end, by name.

        Returns:
            The line for people.
        """
        now = time.perf_counter()
        seconds, steps = now - self._last_time, interval.step - self._last_step
        self._last_step, self._last_time = interval.step, now
        record: dict[str, Any] = {
            "step": interval.step,
            "learning_rate": float(interval.learning_rate[-1]),
            "tokens_per_second": float(interval.tokens.sum()) / seconds,
            "bad_steps": int((~interval.is_good).sum()),
            **gauges,
        }
        if interval.is_good.any():
            good = interval.is_good
            nats = float(interval.nats[good].sum()) / float(interval.tokens[good].sum())
            record |= {
                "loss_nats": nats,
                self._bits: nats / math.log(2),
                "perplexity": compute_perplexity(nats),
                "grad_norm": float(interval.grad_norm[good][-1]),
            }
        self._write("train", record)
        seconds_left = (self.train_steps - interval.step) * seconds / steps
        return self._format(record, seconds_left)

    def _format(self, record: dict[str, Any], seconds_left: float) -> str:
        parts = [f"step {record['step']}/{self.train_steps}"]
        if "loss_nats" in record:
            parts += [
                f"loss {record['loss_nats']:.4f}",
                f"{self._bits.replace('_', ' ')} {record[self._bits]:.4f}",
                f"ppl {record['perplexity']:.5g}",
                f"grad norm {record['grad_norm']:.3g}",
            ]
        if record["bad_steps"]:
            parts.append(f"{record['bad_steps']} steps skipped, not finite")
        parts += [
            f"lr {record['learning_rate']:.3g}",
            f"{record['tokens_per_second']:,.0f} tokens/s",
            f"{format_seconds(seconds_left)} left",
        ]
        return " | ".join(parts)

    def _write(self, group: str, record: dict[str, Any]) -> None:
        append_json_line(self._path, record)
        with explain_errors(self._events_path), self._events.as_default(step=record["step"]):
            for name, value in record.items():
                if name != "step":
                    tf.summary.scalar(f"{group}/{name}", value)
            self._events.flush()


def format_seconds(seconds: float) -> str:
    """Returns a duration as h:mm:ss.

    >>> format_seconds(3725)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def format_score(score: Score, n_tokens: int | None = None) -> str:
    """Returns a score as a line for people.

    Args:
        score: the score.
        n_tokens: the tokens of all of the split, where not all were scored.
    """
    cut = "" if n_tokens is None else f" of {n_tokens:,}"
    bits = "bits per token" if score.bpc is None else "bpc"
    unknown = f", {format_unknown(score)} unknown" if score.n_unknown else ""
    return (
        f"loss {score.nats_per_token:.4f} nats | {bits} {score.bits_per_token:.4f} | "
        f"perplexity {score.perplexity:.5g} | {score.tokens:,.0f} tokens{cut}{unknown}"
    )


def format_measure(score: Score, level: str | None) -> str:
    """Returns a score in the unit in which results at a level of the vocabulary are given.

    >>> format_measure(Score(nats=30.0, tokens=10), "word")
    'perplexity 20.086'
    """
    name = name_measure(level)
    if name == "perplexity":
        return f"{name} {score.perplexity:.5g}"
    return f"{'bits per token' if score.n_unknown else name} {score.bits_per_token:.4f}"


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
