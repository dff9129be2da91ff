"""What an evaluation shows while it goes on."""

import sys
import time
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from txl_tf.evaluation.score import Score, format_measure

_SECONDS = 30.0  # between two bars where they cannot replace each other, as in a file


class Bar:
    """A bar on the standard error, which ends with the `with` block that it is opened in.

    In a pipe or a file it shows nothing for half a minute, and then a bar every half minute.

    Args:
        name: what stands before the bar.
        **options: as tqdm's.
    """

    def __init__(self, name: str, **options: Any):
        interval = 0.1 if sys.stderr.isatty() else _SECONDS
        delay = 0.0 if sys.stderr.isatty() else _SECONDS
        self._bar = tqdm(desc=name, mininterval=interval, delay=delay, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()


class ScoreBar(Bar):
    """A bar of the segments done, with the time left, the score so far and tokens a second.

    Args:
        name: what stands before the bar.
        level: that of the vocabulary, which decides the score's unit.
    """

    def __init__(self, name: str, level: str | None):
        super().__init__(name, unit="segment")
        self._level = level
        self._start = time.perf_counter()
        self.seconds = 0.0  # up to the last segment

    def show(self, done: int, total: int, score: Score) -> None:
        """Shows how far an evaluation is; see `Evaluator.score_lanes`."""
        self.seconds = time.perf_counter() - self._start
        self._bar.total = total
        self._bar.set_postfix_str(self._describe(score), refresh=False)
        self._bar.update(done - self._bar.n)

    def _describe(self, score: Score) -> str:
        if not score.tokens:
            return "filling the memory"
        speed = score.tokens / self.seconds
        return f"{format_measure(score, self._level)}, {speed:,.0f} tokens/s"
