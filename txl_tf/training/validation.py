"""Evaluations while a run trains: the best step, and when to give up."""

import os

from txl_tf.training.evaluator import Score
from txl_tf.training.files import append_json_line, drop_lines_after

VALIDATION_NAME = "validation.jsonl"


class Validation:
    """The scores of a run's evaluations in training, one a line in `validation.jsonl`.

    Those of steps that a resumed run takes again are dropped, so that it decides as the
    uninterrupted one.

    Args:
        model_dir: run folder.
        first_step: where the run starts or goes on.
        patience: evaluations without a new best after which to give up; 0 for never.
    """

    def __init__(self, model_dir: str, *, first_step: int, patience: int):
        self._path = os.path.join(model_dir, VALIDATION_NAME)
        self._patience = patience
        kept = drop_lines_after(self._path, first_step)
        self._scores = [(line["step"], line["loss_nats"]) for line in kept]

    def add(self, step: int, split: str, score: Score) -> bool:
        """Adds a score and returns whether it is the best so far."""
        nats = score.nats_per_token
        record = {"step": step, "split": split, "loss_nats": nats, "tokens": score.tokens}
        append_json_line(self._path, {**record, "bpc": score.bpc, "perplexity": score.perplexity})
        self._scores.append((step, nats))
        return self.best_step == step

    @property
    def best_step(self) -> int | None:
        """The step with the lowest loss, the first of equals; `None` before the first score."""
        return min(self._scores, key=lambda pair: pair[1])[0] if self._scores else None

    @property
    def is_over(self) -> bool:
        """Whether as many evaluations as the patience have brought no new best."""
        steps = [step for step, _ in self._scores]
        if not self._patience or not steps:
            return False
        return len(steps) - 1 - steps.index(self.best_step) >= self._patience

    def describe_end(self) -> str:
        """Returns why a run that lost its patience ends."""
        return (
            f"Ends here: {self._patience} evaluations without a better one than that of step "
            f"{self.best_step}, whose checkpoint is kept."
        )
