"""The loop of a run: training steps, with logging, saving and evaluation in between."""

import math
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from txl_tf.config.training import RunOptions
from txl_tf.data.lanes.training_lanes import TrainingLanes
from txl_tf.errors import StoppedError, UserError
from txl_tf.progress import Bar
from txl_tf.scoring.metrics import Score
from txl_tf.training.checkpoint import Checkpointer
from txl_tf.training.intervals import Interval, Pace
from txl_tf.training.log import TrainingLog, Validation
from txl_tf.training.signals import note_stop_signals
from txl_tf.training.trainer import Trainer

CALL_SECONDS = 5.0  # about the longest delay after a signal to stop
EXIT_AT_LIMIT = 3  # the exit status after `max_hours`, and at `stop_step`


def check_stop_step(stop_step: int, first_step: int) -> None:
    """Checks that a run has not passed the step at which it should stop."""
    if 0 < stop_step <= first_step:
        raise UserError(
            f"the run is at step {first_step} already: `stop_step` must be higher. "
            f"Received: stop_step={stop_step}"
        )


@dataclass(eq=False)
class TrainingLoop:
    """Runs a restored trainer to the end of its schedule, or until early stopping.

    In the 2019 code: the loop of `train` of train_gpu.py.

    `lanes` hold the training split. `log` and `validation` are `None` in processes other than the
    chief. `evaluate` scores the evaluation split, and may generate a sample in Markdown.
    """

    trainer: Trainer
    lanes: TrainingLanes
    checkpointer: Checkpointer
    log: TrainingLog | None
    validation: Validation | None
    options: RunOptions
    evaluate: Callable[[], tuple[Score, str | None]]

    def __post_init__(self) -> None:
        self._workers = self.trainer.workers
        self._say = self._workers.say
        self._train_steps = self.trainer.config.train_steps
        self._saved_step = self.trainer.step
        self._bad_in_a_row = 0

    def run(self) -> signal.Signals | None:
        """Trains to the last step, or until early stopping.

        After a signal to stop, it finishes the current call to the device, which takes a few
        seconds, and saves.

        Returns:
            A signal that arrived when the training was about to end; usually `None`.

        Raises:
            UserError: If the run has passed `stop_step`, the device runs out of memory, a record is
                damaged, too many steps in a row were not finite, a checkpoint cannot be saved, or
                another process has ended.
            StoppedError: If a signal, `max_hours` or `stop_step` stopped the run, after saving.
        """
        start = time.monotonic()
        first_step, stop_step = self.trainer.step, self.options.stop_step
        check_stop_step(stop_step, first_step)
        stops = self._find_stops()
        pace = Pace(first_step, sorted(stops), CALL_SECONDS, changes=self.lanes.changes)
        parts: list[Interval] = []
        is_first = True
        bar = Bar(
            "compiling",
            total=self._train_steps,
            initial=first_step,
            bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} steps [{elapsed}]",
            **({} if self._workers.is_chief else {"disable": True}),
        )
        with bar, note_stop_signals() as received:
            for segments in self.trainer.read_ahead(self.lanes, pace):
                interval = self.trainer.run(segments, pace)
                if is_first:
                    is_first = False
                    self._say(f"Compiled: step {interval.step} has a loss of {interval.loss:.4f}.")
                    # 80 columns have no room for the elapsed time.
                    bar.bar_format = "{l_bar}{bar}| {n_fmt}/{total_fmt}{postfix}"
                    bar.set_description("training")
                self._show(bar, interval)
                self._count_bad(interval)
                parts.append(interval)
                hours = (time.monotonic() - start) / 3600
                stop_signal, is_over = self._agree_to_stop(received, hours, interval.step)
                is_stopped = (stop_signal or is_over) and interval.step < self._train_steps
                if interval.step in stops or is_stopped:
                    if self.log is not None:
                        gauges = self.trainer.read_gauges()
                        self._say(self.log.write_training(Interval.join(parts), gauges))
                    parts.clear()
                if interval.step in stops and self._act(interval.step):
                    break
                if is_stopped:
                    self._save(interval.step)
                    self._raise_stopped(interval.step, stop_signal)
            return self._agree_to_stop(received, 0.0, self.trainer.step)[0]

    def _raise_stopped(self, step: int, stop_signal: signal.Signals | None) -> NoReturn:
        """Raises a `StoppedError` that says what stopped the run and how to resume it."""
        limit, command = "max_hours", "the same command again"
        if step == self.options.stop_step:
            limit, command = "stop_step", "it again without `stop_step`, or with a higher one,"
        raise StoppedError(
            f"stopped by {stop_signal.name if stop_signal else limit} at step {step}, which is "
            f"saved: run {command} to resume",
            128 + stop_signal if stop_signal else EXIT_AT_LIMIT,
        )

    def _show(self, bar: Bar, interval: Interval) -> None:
        """Shows the loss, the speed and the time left next to the bar."""
        parts = [f"loss {interval.loss:.3f}"]
        if self.log is not None and math.isfinite(interval.tokens_per_second):
            # The speed of the bar would include evaluations.
            self.log.time_left.tokens_per_second = interval.tokens_per_second
            parts += [f"{interval.tokens_per_second:,.0f} tokens/s"]
            parts += [self.log.time_left.describe(interval.step)]
        bar.set_postfix_str(", ".join(parts), refresh=False)
        bar.update(interval.step - bar.n)

    def _agree_to_stop(
        self, received: Sequence[signal.Signals], hours: float, step: int
    ) -> tuple[signal.Signals | None, bool]:
        """Returns a signal that any process has received, and whether a limit is reached."""
        is_over = 0 < self.options.max_hours <= hours or step == self.options.stop_step
        numbers, over = self._workers.gather([max(received, default=0), is_over]).T
        return signal.Signals(int(numbers.max())) if numbers.any() else None, bool(over.any())

    def _find_stops(self) -> set[int]:
        """Returns the coming steps at which the run logs, saves, evaluates or stops."""
        options, last = self.options, self._train_steps
        intervals = [options.iterations, options.save_steps, options.eval_every]
        stops = {step for every in intervals if every for step in range(0, last, every)} | {last}
        stops.add(min(options.stop_step, last))
        first_step = self.trainer.step
        return {stop for stop in stops if stop > first_step}

    def _act(self, step: int) -> bool:
        """Evaluates and saves if it is time to; returns whether to stop early."""
        is_last = step == self._train_steps
        is_over = False
        if self.options.eval_every and (step % self.options.eval_every == 0 or is_last):
            is_best, is_over = self._validate(step)
            if is_best:
                self._save(step)
        if step % self.options.save_steps == 0 or is_last or is_over:
            self._save(step)
        return is_over

    def _validate(self, step: int) -> tuple[bool, bool]:
        """Evaluates; returns whether the step is the best so far, and whether to stop early."""
        is_best = is_over = False
        if self.validation is not None and self.log is not None:
            start = time.perf_counter()
            try:
                score, sample = self.evaluate()
            except Exception:
                if self._workers.count == 1:  # others would wait for the result instead
                    self._save(step)  # no step is lost
                    self._say(f"The evaluation at step {step} failed; resuming does not repeat it.")
                raise
            self.log.time_left.evaluation_seconds = time.perf_counter() - start
            line = self.validation.add(step, score)
            is_best, is_over = self.validation.best_step == step, self.validation.is_over
            self.log.write_validation(step, score, sample)
            self._say(line)
            if is_over:
                self._say(self.validation.describe_end())
        is_best, is_over = map(bool, self._workers.broadcast([is_best, is_over]))
        return is_best, is_over

    def _save(self, step: int) -> None:
        if self._saved_step == step:
            return
        best_step = self.validation.best_step if self.validation else None
        start = time.perf_counter()
        path = self.checkpointer.save(keep_step=best_step)
        if self.log is not None:
            self.log.time_left.save_seconds = time.perf_counter() - start
        self._saved_step = step
        self._say(f"Saved {path}")

    def _count_bad(self, interval: Interval) -> None:
        """Counts skipped steps; raises a `UserError` after too many in a row."""
        first = interval.step - len(interval.nats)
        for offset, is_good in enumerate(interval.is_good):
            self._bad_in_a_row = 0 if is_good else self._bad_in_a_row + 1
            if self._bad_in_a_row > self.options.max_bad_steps:
                raise UserError(
                    f"the loss or its gradient is not finite at step {first + offset}: more than "
                    f"max_bad_steps={self.options.max_bad_steps} in a row; a lower learning_rate "
                    "or more warmup_steps may help; the saved checkpoints are not affected"
                )
