"""The model card of a shared model: what it is, how to use it, its figures and how they count."""

import json
import os
from typing import Any, NamedTuple

from txl_tf.config import EvalConfig
from txl_tf.data.files import exists, read_json_lines
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import name_install_command
from txl_tf.runs.folder import EVALUATIONS_NAME, RunConfig
from txl_tf.scoring.checkpoints import describe_span
from txl_tf.scoring.metrics import name_measure
from txl_tf.version import __version__


class Card(NamedTuple):
    """What a model card is made of.

    `name` is that of the repository, "user/model", and `records` are evaluations of the weights.
    """

    name: str
    config: RunConfig
    vocabulary: Vocabulary | None
    step: int
    records: list[dict[str, Any]]
    license: str | None
    language: str | None

    @property
    def level(self) -> str | None:
        """The level of the vocabulary, such as "byte"; `None` without a vocabulary."""
        return self.vocabulary.level if self.vocabulary else None


def find_records(model_dir: str, step: int) -> list[dict[str, Any]]:
    """Returns the newest whole evaluation of a step of a run, of each split and each setting."""
    path = os.path.join(model_dir, EVALUATIONS_NAME)
    if not exists(path):
        return []
    found: dict[str, dict[str, Any]] = {}
    for record in read_json_lines(path):
        is_float32 = record.get("precision", "float32") == "float32"  # others are not shared
        if record.get("step") == step and record.get("is_whole") and is_float32:
            settings = ("split", "evaluation", "stride", "as_release", "dynamic")
            found[json.dumps([record.get(name) for name in settings])] = record
    return list(found.values())


def write_card(card: Card) -> str:
    """Returns the text of `README.md`: metadata for the Hub, and the card itself."""
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        library_name="txl_tf",
        pipeline_tag="text-generation",
        tags=["transformer-xl", "tensorflow", "keras"],
        license=card.license,
        language=card.language,
        model_name=card.name.rpartition("/")[2],
        eval_results=_list_results(card) or None,
    )
    return f"---\n{data.to_yaml()}\n---\n\n{_write_text(card)}"


def _list_results(card: Card) -> list[Any]:
    from huggingface_hub import EvalResult

    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=card.config.dataset,
            dataset_name=card.config.dataset,
            dataset_split=record["split"],
            metric_type=name,
            metric_name=_describe_counting(record),
            metric_value=figure,
        )
        for record in card.records
        for name, figure in [_get_figure(record, card.level)]
    ]


_TEXT = """# {name}

A Transformer-XL ([Dai et al. 2019](https://arxiv.org/abs/1901.02860)) with {n_parameters:,}
parameters: {model.n_layer} layers of {model.d_model}, {model.n_head} heads, a vocabulary of
{n_symbols:,} {symbols}s{cutoffs}. Trained with txl_tf {version} on `{dataset}`: {step:,} steps of
{training.train_batch_size} x {training.tgt_len} tokens, {n_tokens:,} in all, {training.optimizer}.

## Use

```python
import txl_tf  # in a clone of txl_tf: {install}

lm = txl_tf.load("hf://{name}")
print(lm.generate("The ", max_new_tokens=100, top_p=0.9))
print(lm.score(["a text", "another"]))
```

It reads with {span}.

## Figures

{figures}
## Files

`config.json` holds the settings of model, training and evaluation; `model.safetensors` the weights
in float32; `vocabulary.json` the symbols in the order of their ids, and how texts are split into
them. Nothing in them is executed.
"""


def _write_text(card: Card) -> str:
    model, training = card.config.model, card.config.training
    return _TEXT.format(
        name=card.name,
        install=name_install_command("hub"),
        n_parameters=model.count_parameters(),
        model=model,
        n_symbols=model.n_token,
        symbols=card.level or "id",
        cutoffs=", with an adaptive softmax" if model.cutoffs else "",
        version=__version__,
        dataset=card.config.dataset,
        step=card.step,
        training=training,
        n_tokens=card.step * training.train_batch_size * training.tgt_len,
        span=describe_span(card.config.evaluation),
        figures=_write_figures(card),
    )


def _write_figures(card: Card) -> str:
    if not card.records:
        return "None: no evaluation of these weights was recorded (`python -m txl_tf.evaluate`).\n"
    rows = [
        f"| {record['split']} | {name.replace('_', ' ')} {figure:.4f} | {record['tokens']:,} | "
        f"{_describe_counting(record)} |"
        for record in card.records
        for name, figure in [_get_figure(record, card.level)]
    ]
    head = "| split | result | tokens | how they were counted |\n|---|---|---|---|"
    return "\n".join([head, *rows, ""])


def _get_figure(record: dict[str, Any], level: str | None) -> tuple[str, float]:
    """Returns the result of an evaluation in the unit in which others publish it, and its name."""
    names = ["perplexity"] if name_measure(level) == "perplexity" else ["bpc", "bits_per_token"]
    name = next(name for name in names if record.get(name) is not None)
    return name, float(record[name])


def _describe_counting(record: dict[str, Any]) -> str:
    """Returns as text which tokens count, and with what context."""
    parts = [describe_span(EvalConfig.from_json(record["evaluation"]))]
    parts.append(f"{record['lanes']} lane{'s' * (record['lanes'] > 1)}")
    if record.get("stride"):
        parts.append(f"windows that move by {record['stride']}")
    if record["warm_len"]:
        parts.append(f"each lane first reads the {record['warm_len']:,} tokens before it")
    if record["as_release"]:
        parts.append("counted as the release of 2019 does")
    if record.get("dynamic"):
        parts.append("dynamic evaluation")
    if record["unknown_tokens"]:
        parts.append(f"{record['unknown_share']:.2%} unknown")
    return ", ".join(parts)
