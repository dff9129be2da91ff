"""The progress bars of evaluations."""

import sys
import time
from typing import Any

from tqdm import tqdm

from txl_tf.evaluation.score import Score, format_measure

_SECONDS = 30.0  # between two bars in a pipe or a file, where one cannot overwrite the other


class Bar(tqdm):
    """A progress bar on the standard error, for a `with` block.

    In a pipe or a file it appears after half a minute, and then every half minute.

    Args:
        name: The label of the bar.
        **options: Options of tqdm.
    """

    def __init__(self, name: str, **options: Any):
        seconds = {} if sys.stderr.isatty() else {"mininterval": _SECONDS, "delay": _SECONDS}
        super().__init__(desc=name, **seconds, **options)


class ScoreBar(Bar):
    """A bar of segments that shows the score so far and the tokens per second.

    Args:
        name: The label of the bar.
        level: The level of the vocabulary, which determines the unit of the score.
    """

    def __init__(self, name: str, level: str | None):
        super().__init__(name, unit="segment")
        self._level = level
        self._start = time.perf_counter()
        self.seconds = 0.0  # up to the last segment

    def show(self, done: int, total: int, score: Score, n_resumed_tokens: int = 0) -> None:
        """Shows the progress of an evaluation; see `Evaluator.score_lanes`.

        Args:
            done: The number of segments that were read.
            total: The number of segments to read.
            score: The score so far.
            n_resumed_tokens: The tokens that an interrupted evaluation had scored before.
        """
        self.seconds = time.perf_counter() - self._start
        self.total = total
        self.set_postfix_str(self._describe(score, n_resumed_tokens), refresh=False)
        self.update(done - self.n)

    def _describe(self, score: Score, n_resumed_tokens: int) -> str:
        if not score.tokens:
            return "filling the memory"
        speed = (score.tokens - n_resumed_tokens) / self.seconds
        return f"{format_measure(score, self._level)}, {speed:,.0f} tokens/s"
