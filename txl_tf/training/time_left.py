"""The time left of a run: its steps, evaluations and saves."""

import math
from datetime import timedelta

from txl_tf.config import TrainConfig
from txl_tf.config.run_options import RunOptions
from txl_tf.config.stages import find_stage, make_stages


class TimeLeft:
    """Estimates the time to the end of a run from the last duration of each of its parts.

    Steps are weighted by their tokens, so that later stages with longer segments take longer.
    Only regular saves are counted, not those after a best evaluation.

    Args:
        training: The training config of the run.
        options: The options of the run, which say when it evaluates and saves.

    Attributes:
        tokens_per_second: The last speed of steps; like the others, set by the run and NaN before.
        evaluation_seconds: The duration of the last evaluation.
        save_seconds: The duration of the last save.
    """

    def __init__(self, training: TrainConfig, options: RunOptions):
        self._train_steps = training.train_steps
        self._n_lanes = training.train_batch_size
        self._stages = make_stages(training.tgt_len_schedule, training.tgt_len)
        self._eval_every = options.eval_every
        self._save_steps = options.save_steps
        self.tokens_per_second = math.nan
        self.evaluation_seconds = math.nan
        self.save_seconds = math.nan

    def describe(self, step: int) -> str:
        """Returns the time left after a step as text, and the parts that it leaves out.

        The text is empty as long as the speed is not known.
        """
        tokens = self._count_tokens(self._train_steps) - self._count_tokens(step)
        seconds = self._n_lanes * tokens / self.tokens_per_second
        if math.isnan(seconds):
            return ""
        left_out = []
        for name, every, each in (
            ("evaluations", self._eval_every, self.evaluation_seconds),
            ("saves", self._save_steps, self.save_seconds),
        ):
            if every and math.isnan(each):
                left_out.append(name)
            elif every:
                seconds += self._count_stops(step, every) * each
        without = f", {' and '.join(left_out)} not counted" if left_out else ""
        return f"{timedelta(seconds=round(seconds))} left{without}"

    def _count_stops(self, step: int, every: int) -> int:
        """Returns the number of stops still to come: multiples of `every`, and the last step."""
        # The stop at `step` itself is still to come.
        return (self._train_steps - 1) // every - (step - 1) // every + 1

    def _count_tokens(self, step: int) -> int:
        """Returns the number of tokens that a lane has read before a step."""
        return find_stage(self._stages, step).count_tokens(step)
