"""How long a run still takes: its steps, its evaluations and its saves."""

import math

from txl_tf.config import TrainConfig
from txl_tf.config.run_options import RunOptions
from txl_tf.config.stages import find_stage, make_stages


class TimeLeft:
    """Estimates the seconds to the end of a run from what its parts took last.

    Steps are counted by their tokens, so that those of later stages with longer segments take
    longer. Of saves only those at regular steps are counted, not those of a best evaluation.

    Args:
        training: the config of the run.
        options: when it evaluates and saves.
    """

    def __init__(self, training: TrainConfig, options: RunOptions):
        self._train_steps = training.train_steps
        self._n_lanes = training.train_batch_size
        self._stages = make_stages(training.tgt_len_schedule, training.tgt_len)
        self._eval_every = options.eval_every
        self._save_steps = options.save_steps
        self._tokens_per_second = math.nan
        self._evaluation_seconds = math.nan
        self._save_seconds = math.nan

    def note_speed(self, tokens_per_second: float) -> None:
        """Takes note of the speed of steps."""
        self._tokens_per_second = tokens_per_second

    def note_evaluation(self, seconds: float) -> None:
        """Takes note of how long an evaluation took."""
        self._evaluation_seconds = seconds

    def note_save(self, seconds: float) -> None:
        """Takes note of how long a save took."""
        self._save_seconds = seconds

    def describe(self, step: int) -> str:
        """Returns the time left after a step, for people, with what it leaves out.

        Empty where nothing is known of the speed.
        """
        tokens = self._count_tokens(self._train_steps) - self._count_tokens(step)
        seconds = self._n_lanes * tokens / self._tokens_per_second
        if math.isnan(seconds):
            return ""
        n_evaluations = self._count_stops(step, self._eval_every) if self._eval_every else 0
        n_saves = self._count_stops(step, self._save_steps)
        left_out = []
        for name, count, each in (
            ("evaluations", n_evaluations, self._evaluation_seconds),
            ("saves", n_saves, self._save_seconds),
        ):
            if count and math.isnan(each):
                left_out.append(name)
            elif count:
                seconds += count * each
        without = f", {' and '.join(left_out)} not counted" if left_out else ""
        return f"{format_seconds(seconds)} left{without}"

    def _count_stops(self, step: int, every: int) -> int:
        """Returns how often there will be something to do: at multiples, and at the last step."""
        last = self._train_steps
        # What is due at `step` itself is still to be done.
        return (last - 1) // every - (step - 1) // every + 1

    def _count_tokens(self, step: int) -> int:
        """Returns the tokens that a lane has read before a step."""
        return find_stage(self._stages, step).count_tokens(step)


def format_seconds(seconds: float) -> str:
    """Returns a duration as h:mm:ss.

    >>> format_seconds(3725)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
