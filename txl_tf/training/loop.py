"""The loop of a run: steps, and between them what is logged, saved, evaluated and decided."""

import time
from collections.abc import Callable

import numpy as np
from tqdm import tqdm

from txl_tf.data.lanes import TrainingLanes
from txl_tf.errors import StoppedError, UserError
from txl_tf.run_options import RunOptions
from txl_tf.training.checkpoint import Checkpointer
from txl_tf.training.evaluator import Score
from txl_tf.training.log import TrainingLog, format_score
from txl_tf.training.signals import StopSignals
from txl_tf.training.trainer import Interval, Trainer
from txl_tf.training.validation import Validation

CALL_SECONDS = 5.0  # about how long a signal to stop may have to wait
EXIT_OUT_OF_TIME = 3  # of a run whose `max_hours` are over


class TrainingLoop:
    """Runs a trainer to the end of its schedule.

    Args:
        trainer: restored.
        checkpointer: its checkpoints.
        log: of the run.
        validation: of the run.
        options: when to log, save, evaluate and stop.
        evaluate: scores the split of the evaluations.
        eval_split: its name.
    """

    def __init__(
        self,
        trainer: Trainer,
        checkpointer: Checkpointer,
        log: TrainingLog,
        validation: Validation,
        options: RunOptions,
        *,
        evaluate: Callable[[], Score],
        eval_split: str,
    ):
        self._trainer = trainer
        self._checkpointer = checkpointer
        self._log = log
        self._validation = validation
        self._options = options
        self._evaluate = evaluate
        self._eval_split = eval_split
        self._train_steps = trainer.config.train_steps
        self._saved_step = trainer.step
        self._bad_in_a_row = 0

    def run(self, lanes: TrainingLanes) -> None:
        """Trains on the lanes.

        Raises:
            UserError: too many steps in a row were not finite, or a file cannot be read or
                written.
            StoppedError: the run was asked to stop, or its hours are over; it has saved.
        """
        start = time.monotonic()
        first_step, stops = self._trainer.step, self._find_stops()
        parts: list[Interval] = []
        bar = tqdm(total=self._train_steps, initial=first_step, unit="step", disable=None)
        with bar, StopSignals() as signals:
            for interval in self._trainer.train(lanes, sorted(stops), call_seconds=CALL_SECONDS):
                bar.update(interval.step - bar.n)
                self._count_bad(interval)
                parts.append(interval)
                hours = (time.monotonic() - start) / 3600
                is_late = 0 < self._options.max_hours <= hours
                is_stopped = (signals.received or is_late) and interval.step < self._train_steps
                if interval.step in stops or is_stopped:
                    bar.write(self._log.write_training(Interval.join(parts)))
                    parts.clear()
                if interval.step in stops and self._act(interval.step, bar.write):
                    return
                if is_stopped:
                    self._save(interval.step, bar.write)
                    reason = signals.received.name if signals.received else "max_hours"
                    status = 128 + signals.received if signals.received else EXIT_OUT_OF_TIME
                    raise StoppedError(
                        f"stopped by {reason} at step {interval.step}, which is saved: the same "
                        "command goes on from there",
                        status,
                    )

    def _find_stops(self) -> set[int]:
        """Returns the steps to come at which something is done."""
        options, last = self._options, self._train_steps
        intervals = [options.iterations, options.save_steps, options.eval_every]
        stops = {step for every in intervals if every for step in range(0, last, every)} | {last}
        first_step = self._trainer.step
        return {stop for stop in stops if stop > first_step}

    def _act(self, step: int, write: Callable[[str], None]) -> bool:
        """Evaluates and saves where it is time to; returns whether training is over."""
        is_last = step == self._train_steps
        is_over = False
        if self._options.eval_every and (step % self._options.eval_every == 0 or is_last):
            score = self._evaluate()
            is_best = self._validation.add(step, self._eval_split, score)
            write(f"{self._eval_split} at step {step}: {format_score(score)}{' | best' * is_best}")
            is_over = self._validation.is_over
            if is_best:
                self._save(step, write)
        if step % self._options.save_steps == 0 or is_last or is_over:
            self._save(step, write)
        if is_over:
            write(describe_end(self._validation, self._options))
        return is_over

    def _save(self, step: int, write: Callable[[str], None]) -> None:
        if self._saved_step == step:
            return
        path = self._checkpointer.save(keep_step=self._validation.best_step)
        self._saved_step = step
        write(f"Saved {path}")

    def _count_bad(self, interval: Interval) -> None:
        """Counts the steps that were skipped.

        Raises:
            UserError: there were too many in a row.
        """
        first = interval.step - len(interval.nats)
        for offset in np.flatnonzero(~interval.is_good):
            is_next = offset and not interval.is_good[offset - 1]
            self._bad_in_a_row = self._bad_in_a_row + 1 if is_next or not offset else 1
            if self._bad_in_a_row > self._options.max_bad_steps:
                raise UserError(
                    f"the loss or its gradient is not finite at step {first + offset}: more than "
                    f"max_bad_steps={self._options.max_bad_steps} in a row; a lower learning_rate "
                    "or more warmup_steps may help; the checkpoints are as they were"
                )
        if interval.is_good[-1]:
            self._bad_in_a_row = 0


def describe_end(validation: Validation, options: RunOptions) -> str:
    """Returns why a run that lost its patience ends."""
    return (
        f"Ends here: {options.patience} evaluations without a better one than that of step "
        f"{validation.best_step}, whose checkpoint is kept."
    )
