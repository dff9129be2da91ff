"""The score of a run beside the published result, as a table and as a record."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from txl_tf import presets
from txl_tf.data.lanes.sliding_windows import AnyLanes
from txl_tf.data.records.reading import Records
from txl_tf.runs.folder import RunConfig
from txl_tf.scoring.checkpoints import Outcome, describe_span
from txl_tf.scoring.metrics import Score, format_unknown, name_measure


class Job(NamedTuple):
    """An evaluation to report."""

    model_dir: str
    config: RunConfig  # with the settings of this evaluation
    records: Records
    split: str
    preset: str | None  # whose published result is shown
    lanes: AnyLanes

    def describe_counting(self) -> str:
        """Returns as text which tokens count."""
        lanes = self.lanes
        if lanes.drop_rest:
            lane_len, rest = divmod(len(self.records.split(self.split)), lanes.n_lanes)
            return (
                f"Counting as the 2019 release does: {lanes.n_lanes} lane"
                f"{'s' * (lanes.n_lanes > 1)} of {lane_len:,} tokens, "
                f"cold; {rest} tokens at the end and the first token of each lane are left out."
            )
        if lanes.stride is not None:
            return (
                f"Every token but the first counts once, in windows of {lanes.tgt_len:,} tokens "
                f"that move by {lanes.stride:,}, without memory."
            )
        if not lanes.warm_len:
            return "Every token but the first counts once."
        return (
            "Every token but the first counts once; each lane first reads the "
            f"{lanes.warm_len:,} tokens before it."
        )

    def describe_published(self) -> str:
        """Returns the published result and how its settings differ; empty without a preset."""
        if self.preset is None:
            return ""
        preset, evaluation = presets.get(self.preset), self.config.evaluation
        published, split = preset.find_published(self.split)
        if not published:
            return f"none for {self.preset}"
        notes = [self.preset]
        dataset = self.preset.partition("_")[0]
        if (dataset, split) != (self.records.dataset, self.split):
            notes.append(f"on {dataset}, split {split}")
        if describe_span(preset.evaluation) != describe_span(evaluation):
            notes.append(f"with {describe_span(preset.evaluation)}")
        return f"{published} ({'; '.join(notes)})"

    def make_record(self, outcome: Outcome) -> dict[str, Any]:
        """Returns the evaluation as an object for JSON."""
        published, split = "", ""
        if self.preset is not None:
            published, split = presets.get(self.preset).find_published(self.split)
        return {
            "run": self.model_dir,
            "dataset": self.config.dataset,
            "recipe": self.preset,  # the key of the first records
            "published": published,
            "published_split": split if published else "",
            **outcome.make_record(),
            "evaluation": self.config.evaluation.to_json(),
            "tokens_left_out": self.lanes.n_left_out,
            "unit": name_measure(self.records.vocabulary.level),
            "seconds": outcome.seconds,
            "tokens_per_second": outcome.tokens_per_second,
        }

    def format_table(self, outcome: Outcome) -> Iterator[str]:
        """Yields the lines of a table."""
        rows = self._make_rows(outcome)
        width = max(map(len, rows))
        for name, text in rows.items():
            yield f"{name:<{width}}  {text}"

    def _format_measure(self, score: Score) -> dict[str, str]:
        """Returns the score in its unit, or the reason why it has none."""
        unit = name_measure(score.level)
        if unit == "perplexity":
            return {unit: f"{score.perplexity:.2f}"}
        bits = f"{score.bits_per_token:.4f}"
        if score.n_unknown:
            return {unit: "- (there are unknown characters)", "bits per token": bits}
        return {unit: bits}

    def _make_rows(self, outcome: Outcome) -> dict[str, str]:
        lanes, score = self.lanes, outcome.score
        cut = "" if score.tokens == lanes.n_targets else f" of {lanes.n_targets:,}"
        weights = ", averaged weights" if outcome.checkpoint.is_averaged else ""
        if outcome.checkpoint.precision != "float32":
            weights += f", in {outcome.checkpoint.precision}"
        has_unknown = self.records.vocabulary.unknown is not None
        unknown = {"unknown": format_unknown(score)} if has_unknown else {}
        published = self.describe_published()
        return {
            "data": f"{self.records.dataset}, split {self.split}",
            "checkpoint": f"{outcome.checkpoint.path}{weights}",
            "span": describe_span(self.config.evaluation),
            "lanes": lanes.describe(noun=""),
            **({"dynamic": outcome.dynamic.describe()} if outcome.dynamic else {}),
            "tokens": f"{score.tokens:,}{cut}",
            **unknown,
            "loss": f"{score.nats_per_token:.4f} nats",
            **self._format_measure(score),
            **({"published": published} if published else {}),
            "speed": f"{outcome.tokens_per_second:,.0f} tokens/s: {outcome.seconds:.1f} seconds, "
            "compilation included",
        }
