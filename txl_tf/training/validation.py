"""The evaluations during training: the best step, and early stopping."""

import os
import shlex

from txl_tf.data.files import append_json_line, drop_lines_after
from txl_tf.data.lanes.sliding_windows import AnyLanes
from txl_tf.runs.folder import VALIDATION_NAME
from txl_tf.scoring.metrics import Score, format_score, make_score_record


class Validation:
    """The scores of the evaluations during training, one line each in `validation.jsonl`.

    A resumed run drops the scores of steps that it repeats, so that it makes the same decisions
    as an uninterrupted run.

    Args:
        model_dir: The run folder.
        first_step: The step at which the run starts or resumes.
        patience: Early stopping: the number of evaluations without improvement after which the run
            ends; 0 to never stop early.
        split: The name of the split that is evaluated.
        lanes: The lanes of the split; `None` if nothing is evaluated.
    """

    def __init__(
        self,
        model_dir: str,
        *,
        first_step: int,
        patience: int,
        split: str,
        lanes: AnyLanes | None,
    ):
        self._model_dir = model_dir
        self._path = os.path.join(model_dir, VALIDATION_NAME)
        self._patience = patience
        self._split = split
        self._lanes = lanes
        self._kept = drop_lines_after(self._path, first_step)
        self._scores = [(line["step"], line["loss_nats"]) for line in self._kept]

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

    def describe_change(self) -> str:
        """Returns a line about earlier evaluations that counted differently; empty if none did."""
        if self._lanes is None:
            return ""
        # Lanes were cold before records had `warm_len`.
        found = {line["step"]: line.get("warm_len", 0) for line in self._kept}
        others = {step: found[step] for step in found if found[step] != self._lanes.warm_len}
        if not others:
            return ""
        return (
            f"{VALIDATION_NAME}: evaluations up to step {max(others)} used lanes warmed by "
            f"{' or '.join(map(str, sorted(set(others.values()))))} tokens; later ones use lanes "
            f"warmed by {self._lanes.warm_len} tokens, which by itself changes the loss slightly."
        )

    def describe_end(self) -> str:
        """Returns the message of early stopping."""
        run = shlex.quote(self._model_dir)
        return (
            f"Early stopping: {self._patience} evaluations without an improvement on step "
            f"{self.best_step}, whose checkpoint is kept; --patience=0 continues. To evaluate it: "
            f"python -m txl_tf.evaluate --run {run} --checkpoint best"
        )
