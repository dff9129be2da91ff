"""Evaluations while a run trains: the best step, and early stopping."""

import os

from txl_tf.evaluation.score import Score, make_bits_record, make_unknown_record
from txl_tf.runs.files import append_json_line, drop_lines_after

VALIDATION_NAME = "validation.jsonl"


class Validation:
    """The scores of a run's evaluations in training, one a line in `validation.jsonl`.

    Those of steps that a resumed run takes again are dropped, so that it decides as the
    uninterrupted one.

    Args:
        model_dir: run folder.
        first_step: where the run starts or goes on.
        patience: evaluations without a new best after which to give up; 0 for never.
        n_lanes: the lanes of the evaluations to come.
        warm_len: the tokens that warm each of these.
    """

    def __init__(
        self,
        model_dir: str,
        *,
        first_step: int,
        patience: int,
        n_lanes: int = 1,
        warm_len: int = 0,
    ):
        self._path = os.path.join(model_dir, VALIDATION_NAME)
        self._patience = patience
        self._counting = {"lanes": n_lanes, "warm_len": warm_len}
        kept = drop_lines_after(self._path, first_step)
        # Before records said so, lanes were cold.
        self._others = [line for line in kept if line.get("warm_len", 0) != warm_len]
        self._scores = [(line["step"], line["loss_nats"]) for line in kept]

    def add(self, step: int, split: str, score: Score) -> bool:
        """Adds a score and returns whether it is the best so far."""
        nats = score.nats_per_token
        record = {
            "step": step,
            "split": split,
            "loss_nats": nats,
            "tokens": score.tokens,
            **make_bits_record(score),
            "perplexity": score.perplexity,
            **make_unknown_record(score),
            **self._counting,
        }
        append_json_line(self._path, record)
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

    def describe_change(self) -> str:
        """Returns a line on evaluations of before that counted otherwise; empty if none did."""
        if not self._others:
            return ""
        found = sorted({line.get("warm_len", 0) for line in self._others})
        return (
            f"{VALIDATION_NAME}: evaluations up to step {self._others[-1]['step']} were of lanes "
            f"warmed by {' or '.join(map(str, found))} tokens, those to come are of lanes warmed "
            f"by {self._counting['warm_len']}: their losses differ slightly for that alone."
        )

    def describe_end(self) -> str:
        """Returns why a run that lost its patience ends."""
        return (
            f"Ends here: {self._patience} evaluations without a better one than that of step "
            f"{self.best_step}, whose checkpoint is kept."
        )
