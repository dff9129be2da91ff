"""The score of a run beside the published result, as a table and as a record."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from txl_tf import presets
from txl_tf.data.records.reading import Records
from txl_tf.scoring.checkpoints import Outcome, describe_span
from txl_tf.scoring.metrics import Score, format_unknown, name_measure


def make_report(
    outcome: Outcome, records: Records, preset: str | None, *, model_dir: str, dataset: str
) -> dict[str, Any]:
    """Returns an evaluation as an object for JSON, with the published result of a preset."""
    published, split = "", ""
    if preset is not None:
        published, split = presets.get(preset).find_published(outcome.split)
    evaluation = dataclasses.replace(outcome.config, eval_batch_size=outcome.lanes.n_lanes)
    return {
        "run": model_dir,
        "dataset": dataset,
        "recipe": preset,  # the key of the first records
        "published": published,
        "published_split": split if published else "",
        **outcome.make_record(),
        "evaluation": evaluation.to_json(),
        "tokens_left_out": outcome.lanes.n_left_out,
        "unit": name_measure(records.vocabulary.level),
        "seconds": outcome.seconds,
        "tokens_per_second": outcome.tokens_per_second,
    }


def format_report(outcome: Outcome, records: Records, preset: str | None) -> Iterator[str]:
    """Yields the lines of a table of an evaluation, with the published result of a preset."""
    lanes, score, checkpoint = outcome.lanes, outcome.score, outcome.checkpoint
    cut = "" if score.tokens == lanes.n_targets else f" of {lanes.n_targets:,}"
    cut += f", {lanes.n_left_out:,} left out" if lanes.n_left_out else ""
    weights = ", averaged weights" if checkpoint.is_averaged else ""
    weights += f", in {checkpoint.precision}" if checkpoint.precision != "float32" else ""
    rows = {
        "data": f"{records.dataset}, split {outcome.split}",
        "checkpoint": f"{checkpoint.path}{weights}",
        "span": describe_span(outcome.config),
        "lanes": lanes.describe(noun=""),
        "dynamic": outcome.dynamic.describe() if outcome.dynamic else "",
        "tokens": f"{score.tokens:,}{cut}",
        "unknown": format_unknown(score) if records.vocabulary.unknown is not None else "",
        "loss": f"{score.nats_per_token:.4f} nats",
        **_format_measure(score),
        "published": _describe_published(outcome, records, preset),
        "speed": f"{outcome.tokens_per_second:,.0f} tokens/s: {outcome.seconds:.1f} seconds, "
        "compilation included",
    }
    width = max(len(name) for name, text in rows.items() if text)
    for name, text in rows.items():
        if text:
            yield f"{name:<{width}}  {text}"


def _format_measure(score: Score) -> dict[str, str]:
    """Returns the score in its unit, or the reason why it has none."""
    unit = name_measure(score.level)
    if unit == "perplexity":
        return {unit: f"{score.perplexity:.2f}"}
    bits = f"{score.bits_per_token:.4f}"
    if score.n_unknown:
        return {unit: "- (there are unknown characters)", "bits per token": bits}
    return {unit: bits}


def _describe_published(outcome: Outcome, records: Records, name: str | None) -> str:
    """Returns the published result and how its settings differ; empty without a preset."""
    if name is None:
        return ""
    preset = presets.get(name)
    published, split = preset.find_published(outcome.split)
    if not published:
        return f"none for {name}"
    notes, dataset = [name], name.partition("_")[0]
    if (dataset, split) != (records.dataset, outcome.split):
        notes.append(f"on {dataset}, split {split}")
    if describe_span(preset.evaluation) != describe_span(outcome.config):
        notes.append(f"with {describe_span(preset.evaluation)}")
    return f"{published} ({'; '.join(notes)})"
