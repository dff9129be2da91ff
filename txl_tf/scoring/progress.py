"""The progress bar of evaluations."""

import time

from txl_tf.progress import Bar
from txl_tf.scoring.metrics import Score


class ScoreBar(Bar):
    """A bar of segments that shows the score so far and the tokens per second."""

    def __init__(self, name: str):
        super().__init__(name, unit="segment")
        self._start = time.perf_counter()
        self.seconds = 0.0  # up to the last segment

    def show(self, done: int, total: int, score: Score) -> None:
        """Shows the progress of an evaluation; see `Evaluator.score_lanes`."""
        self.seconds = time.perf_counter() - self._start
        self.total = total
        self.set_postfix_str(self._describe(score), refresh=False)
        self.update(done - self.n)

    def _describe(self, score: Score) -> str:
        if not score.tokens:
            return "filling the memory"
        speed = score.tokens / self.seconds
        return f"{score.describe_unit()}, {speed:,.0f} tokens/s"
