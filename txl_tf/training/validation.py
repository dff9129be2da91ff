"""The evaluations during training: the best step, and early stopping."""

import os
import shlex

from txl_tf.config.run_options import RunOptions
from txl_tf.data.files import append_json_line, drop_lines_after
from txl_tf.data.lanes.sliding_windows import AnyLanes
from txl_tf.runs.folder import VALIDATION_NAME
from txl_tf.scoring.metrics import Score, format_score, make_score_record


class Validation:
    """The scores of the evaluations during training, one line each in `validation.jsonl`.

    A resumed run drops the scores of steps that it repeats, so that it makes the same decisions
    as an uninterrupted run. `lanes` are those of the split; `None` if nothing is evaluated.
    """

    def __init__(
        self, model_dir: str, options: RunOptions, *, first_step: int, lanes: AnyLanes | None
    ):
        self._model_dir = model_dir
        self._path = os.path.join(model_dir, VALIDATION_NAME)
        self._patience = options.patience
        self._split = options.eval_split
        self._lanes = lanes
        kept = drop_lines_after(self._path, first_step)
        self._scores = [(line["step"], line["loss_nats"]) for line in kept]

    def add(self, step: int, score: Score) -> str:
        """Adds a score and returns a line of text about it."""
        assert self._lanes is not None
        record = {"step": step, "split": self._split, **make_score_record(score)}
        counting = {"lanes": self._lanes.n_lanes, "warm_len": self._lanes.warm_len}
        append_json_line(self._path, record | counting)
        self._scores.append((step, score.nats_per_token))
        best = " | best" if self.best_step == step else ""
        found = f"{format_score(score)} | {self._lanes.describe()}{best}"
        return f"{self._split} at step {step}: {found}"

    @property
    def best_step(self) -> int | None:
        """The first step with the lowest loss; `None` before the first score."""
        return min(self._scores, key=lambda pair: pair[1])[0] if self._scores else None

    @property
    def is_over(self) -> bool:
        """Whether early stopping ends the run."""
        steps = [step for step, _ in self._scores]
        if not self._patience or not steps:
            return False
        return len(steps) - 1 - steps.index(self.best_step) >= self._patience

    def describe_end(self) -> str:
        """Returns the message of early stopping."""
        run = shlex.quote(self._model_dir)
        return (
            f"Early stopping: {self._patience} evaluations without an improvement on step "
            f"{self.best_step}, whose checkpoint is kept; --patience=0 continues. To evaluate it: "
            f"python -m txl_tf.evaluate --run {run} --checkpoint best"
        )
