"""Models on the Hugging Face Hub: `hf://user/model`, or `hf://user/model@revision`.

A repository holds a run in four files:

config.json          as in a run folder
model.safetensors    the weights, float32 or float16
vocabulary.json      as in a run folder; absent if only ids are known
README.md            the model card
"""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from importlib import resources
from typing import Any, NamedTuple

from txl_tf.config import EvalConfig
from txl_tf.config.stages import find_stage, make_stages
from txl_tf.data.files import exists, read_json_lines, write_json, write_text
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError, explain, explain_errors, require_extra
from txl_tf.models.segment_model import SegmentModel
from txl_tf.runs.checkpoint_files import WEIGHTS_NAME
from txl_tf.runs.folder import CONFIG_NAME, EVALUATIONS_NAME, VOCABULARY_NAME, RunConfig
from txl_tf.runs.weights_file import write_weights_file
from txl_tf.scoring.metrics import name_unit
from txl_tf.version import __version__

PREFIX = "hf://"
_CARD_NAME = "README.md"
_FILES = (CONFIG_NAME, WEIGHTS_NAME, VOCABULARY_NAME, _CARD_NAME)
_CARD = resources.files("txl_tf.exports").joinpath("hub_card.md").read_text(encoding="utf-8")


class Card(NamedTuple):
    """What a model card is made of.

    `address` is what `txl_tf.load` takes: "hf://user/model", or a folder; `records` are evaluations
    of the weights, which are stored in the NumPy dtype `dtype`.
    """

    address: str
    config: RunConfig
    vocabulary: Vocabulary | None
    step: int
    records: list[dict[str, Any]]
    license: str | None
    language: str | None
    dtype: str = "float32"
    is_imported: bool = False  # trained by other code

    @property
    def name(self) -> str:
        """The name of the model: of the repository, "user/model", or of the folder."""
        repository = self.address.removeprefix(PREFIX)
        return repository if repository != self.address else os.path.basename(self.address)

    @property
    def level(self) -> str | None:
        """The level of the vocabulary, such as "byte"; `None` without a vocabulary."""
        return self.vocabulary.level if self.vocabulary else None


def find_records(model_dir: str, checkpoint: str, *, is_averaged: bool) -> list[dict[str, Any]]:
    """Returns the newest complete evaluation of weights for each split and each setting.

    Args:
        model_dir: The run folder, which may have another name than at the evaluation.
        checkpoint: The path of the checkpoint in it.
        is_averaged: Whether the weights are the averaged ones of the checkpoint.
    """
    name = os.path.relpath(checkpoint, model_dir)
    path = os.path.join(model_dir, EVALUATIONS_NAME)
    if not exists(path):
        return []
    found: dict[str, dict[str, Any]] = {}
    with explain_errors(f"`{path}` does not hold evaluations of a run", KeyError, TypeError):
        for record in read_json_lines(path):
            is_float32 = record["precision"] == "float32"  # others are not shared
            is_of_weights = f"/{record['checkpoint']}".endswith(f"/{name}") and (
                record["is_averaged"] == is_averaged
            )
            if is_of_weights and record["is_whole"] and is_float32:
                settings = ("split", "evaluation", "stride", "as_release", "dynamic")
                found[json.dumps([record[name] for name in settings])] = record
    return list(found.values())


def is_hub_address(path: str) -> bool:
    """Returns whether a path is an address on the Hub, such as "hf://user/model"."""
    return path.startswith(PREFIX)


def fetch_model(address: str) -> str:
    """Downloads a model, unless the cache of the Hub's library holds it, and returns its folder."""
    match = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@(.+))?", address)
    if not match:
        raise UserError(f"`path` must be hf://user/model or hf://user/model@REVISION: {address}")
    hub = _import_hub()
    with _explain_hub(address):
        folder = hub.snapshot_download(
            match[1],
            revision=match[2],
            allow_patterns=list(_FILES),
            library_name="txl_tf",
            library_version=__version__,
        )
    needed = (CONFIG_NAME, WEIGHTS_NAME)
    missing = [name for name in needed if not os.path.isfile(os.path.join(folder, name))]
    if missing:
        raise UserError(f"`{address}` is no model of txl_tf: it has no {' and no '.join(missing)}")
    return str(folder)


def push_model(
    model: SegmentModel,
    card: Card,
    *,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    message: str | None = None,
) -> str:
    """Uploads a model, and returns the address of the commit; see `LanguageModel.push_to_hub`."""
    hub = _import_hub()
    with tempfile.TemporaryDirectory() as folder, _explain_hub(card.address):
        write_files(folder, model, card)
        api = hub.HfApi(token=token, library_name="txl_tf", library_version=__version__)
        api.create_repo(card.name, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=card.name,
            folder_path=folder,
            revision=revision,
            commit_message=message or f"Upload of step {card.step:,} with txl_tf {__version__}",
        )
    return str(commit.commit_url)


def write_files(folder: str, model: SegmentModel, card: Card) -> None:
    """Writes the files of a model: weights, config, vocabulary and card."""
    path = os.path.join(folder, WEIGHTS_NAME)
    write_weights_file(model, path, step=card.step, dtype=card.dtype)
    write_json(os.path.join(folder, CONFIG_NAME), card.config.to_json())
    if card.vocabulary is not None:
        write_json(os.path.join(folder, VOCABULARY_NAME), card.vocabulary.to_json())
    write_text(os.path.join(folder, _CARD_NAME), write_card(card))


def _import_hub() -> Any:
    with require_extra("hub", "a model on the Hub"):
        import huggingface_hub
    return huggingface_hub


@contextlib.contextmanager
def _explain_hub(address: str) -> Iterator[None]:
    """Re-raises the errors of the Hub's library as a `UserError` of one line."""
    from huggingface_hub import errors

    try:
        yield
    except UserError:
        raise
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"`{address}`: there is no such model, or it is private: `hf auth login` signs in"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"`{address}`: there is no such revision") from error
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError, ValueError) as error:
        raise UserError(f"`{address}`: {explain(error)}") from error


def write_card(card: Card) -> str:
    """Returns the text of `README.md`: metadata for the Hub, and the card itself."""
    hub = _import_hub()
    config = card.config
    results = [
        hub.EvalResult(
            task_type="text-generation",
            dataset_type=config.dataset,
            dataset_name=config.dataset,
            dataset_split=record["split"],
            metric_type=name,
            metric_name=_describe_counting(record),
            metric_value=figure,
        )
        for record in card.records
        for name, figure in [_get_figure(record, card.level)]
    ]
    metadata = hub.ModelCardData(
        library_name="txl_tf",
        pipeline_tag="text-generation",
        tags=["transformer-xl", "tensorflow", "keras"],
        license=card.license,
        language=card.language,
        model_name=card.name.rpartition("/")[2],
        eval_results=results or None,
    )
    return _CARD.format(
        metadata=metadata.to_yaml(),
        card=card,
        config=config,
        install="pip install -e '.[hub]'" if is_hub_address(card.address) else "pip install -e .",
        n_parameters=config.model.count_parameters(),
        symbols=card.level or "id",
        cutoffs=", with an adaptive softmax" if config.model.cutoffs else "",
        training=_describe_training(card),
        span=config.evaluation.describe(),
        figures=_write_figures(card),
    )


def _describe_training(card: Card) -> str:
    training, dataset = card.config.training, card.config.dataset
    if card.is_imported:
        return f"The weights were imported; their data set is `{dataset}`."
    stages = make_stages(training.tgt_len_schedule, training.tgt_len)
    n_tokens = find_stage(stages, card.step).count_tokens(card.step) * training.train_batch_size
    n_tokens = round(n_tokens * training.mean_length_share)
    return (
        f"Trained on `{dataset}`: {card.step:,} steps of {training.train_batch_size} texts, "
        f"{n_tokens:,} tokens in all, {training.optimizer}."
    )


def _write_figures(card: Card) -> str:
    if not card.records:
        return "None: no evaluation of these weights was recorded (`txl evaluate`).\n"
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
    names = ["perplexity"] if name_unit(level) == "perplexity" else ["bpc", "bits_per_token"]
    name = next(name for name in names if record.get(name) is not None)
    return name, float(record[name])


def _describe_counting(record: dict[str, Any]) -> str:
    """Returns as text which tokens count, and with what context."""
    parts = [EvalConfig.from_json(record["evaluation"]).describe()]
    parts.append(f"{record['lanes']} lane{'s' * (record['lanes'] > 1)}")
    if record["stride"]:
        parts.append(f"windows that move by {record['stride']}")
    if record["warm_len"]:
        parts.append(f"each lane first reads the {record['warm_len']:,} tokens before it")
    if record["as_release"]:
        parts.append("counted as the release of 2019 does")
    if record["dynamic"]:
        parts.append("dynamic evaluation")
    if record["unknown_tokens"]:
        parts.append(f"{record['unknown_share']:.2%} unknown")
    return ", ".join(parts)
