"""The loop of a run: steps, and between them what is logged, saved, evaluated and decided."""

import signal
import time
from collections.abc import Callable

import numpy as np
from tqdm import tqdm

from txl_tf.config.run_options import RunOptions
from txl_tf.data.lanes import TrainingLanes
from txl_tf.errors import StoppedError, UserError
from txl_tf.evaluation.score import Score, format_score
from txl_tf.training.checkpoint import Checkpointer
from txl_tf.training.log import TrainingLog
from txl_tf.training.signals import StopSignals
from txl_tf.training.time_left import TimeLeft
from txl_tf.training.trainer import Interval, Trainer
from txl_tf.training.validation import Validation

CALL_SECONDS = 5.0  # about how long a signal to stop may have to wait
EXIT_OUT_OF_TIME = 3  # of a run whose `max_hours` are over


class TrainingLoop:
    """Runs a trainer to the end of its schedule.

    Args:
        trainer: restored.
        checkpointer: its checkpoints.
        log: of the run; `None` where another process keeps it.
        validation: of the run; `None` where another process keeps it.
        options: when to log, save, evaluate and stop.
        evaluate: scores the split of the evaluations, and may generate a text in Markdown.
        eval_split: its name.
        counting: how its tokens are counted, for people.
    """

    def __init__(
        self,
        trainer: Trainer,
        checkpointer: Checkpointer,
        log: TrainingLog | None,
        validation: Validation | None,
        options: RunOptions,
        *,
        evaluate: Callable[[], tuple[Score, str | None]],
        eval_split: str,
        counting: str = "",
    ):
        self._trainer = trainer
        self._checkpointer = checkpointer
        self._log = log
        self._validation = validation
        self._options = options
        self._evaluate = evaluate
        self._eval_split = eval_split
        self._counting = f" | {counting}" if counting else ""
        self._workers = trainer.workers
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
        is_chief = self._workers.is_chief
        is_silent = None if is_chief else True  # None: unless it is no terminal
        # The log says how fast it goes: the bar's own speed would count evaluations in.
        bar = tqdm(
            total=self._train_steps,
            initial=first_step,
            disable=is_silent,
            bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} steps [{elapsed}]",
        )
        write: Callable[[str], None] = bar.write if is_chief else _say_nothing
        with bar, StopSignals() as signals:
            for interval in self._trainer.train(lanes, sorted(stops), call_seconds=CALL_SECONDS):
                bar.update(interval.step - bar.n)
                self._count_bad(interval)
                parts.append(interval)
                hours = (time.monotonic() - start) / 3600
                stop_signal, is_late = self._agree_to_stop(signals.received, hours)
                is_stopped = (stop_signal or is_late) and interval.step < self._train_steps
                if interval.step in stops or is_stopped:
                    if self._log is not None:
                        gauges = self._trainer.read_gauges()
                        write(self._log.write_training(Interval.join(parts), gauges))
                    parts.clear()
                if interval.step in stops and self._act(interval.step, write):
                    return
                if is_stopped:
                    self._save(interval.step, write)
                    reason = stop_signal.name if stop_signal else "max_hours"
                    raise StoppedError(
                        f"stopped by {reason} at step {interval.step}, which is saved: the same "
                        "command goes on from there",
                        128 + stop_signal if stop_signal else EXIT_OUT_OF_TIME,
                    )

    def _agree_to_stop(
        self, received: signal.Signals | None, hours: float
    ) -> tuple[signal.Signals | None, bool]:
        """Returns the signal to stop that some process received, and whether the hours are over."""
        is_late = 0 < self._options.max_hours <= hours
        numbers, late = self._workers.gather([received or 0, is_late]).T
        return signal.Signals(int(numbers.max())) if numbers.any() else None, bool(late.any())

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
            is_best, is_over = self._validate(step, write)
            if is_best:
                self._save(step, write)
        if step % self._options.save_steps == 0 or is_last or is_over:
            self._save(step, write)
        return is_over

    def _validate(self, step: int, write: Callable[[str], None]) -> tuple[bool, bool]:
        """Evaluates; returns whether the step is the best so far, and whether to give up."""
        is_best = is_over = False
        if self._validation is not None:
            start = time.perf_counter()
            score, sample = self._evaluate()
            self._note(TimeLeft.note_evaluation, start)
            is_best = self._validation.add(step, self._eval_split, score)
            is_over = self._validation.is_over
            if self._log is not None:
                self._log.write_validation(step, score, sample)
            found = f"{format_score(score)}{self._counting}{' | best' * is_best}"
            write(f"{self._eval_split} at step {step}: {found}")
            if is_over:
                write(self._validation.describe_end())
        is_best, is_over = map(bool, self._workers.broadcast([is_best, is_over]))
        return is_best, is_over

    def _save(self, step: int, write: Callable[[str], None]) -> None:
        if self._saved_step == step:
            return
        best_step = self._validation.best_step if self._validation else None
        start = time.perf_counter()
        path = self._checkpointer.save(keep_step=best_step)
        self._note(TimeLeft.note_save, start)
        self._saved_step = step
        write(f"Saved {path}")

    def _note(self, note: Callable[[TimeLeft, float], None], start: float) -> None:
        """Has the log know how long something took that began at `start`."""
        if self._log is not None and self._log.time_left is not None:
            note(self._log.time_left, time.perf_counter() - start)

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


def _say_nothing(line: str) -> None:
    """Stands in for a line's way to the terminal: one process speaks for all."""
