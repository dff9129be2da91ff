"""Uploads models to the Hugging Face Hub; `txl_tf.runs.hub_download` describes their files."""

import json
import os
import tempfile
from collections.abc import Iterator
from importlib import resources
from typing import Any

from txl_tf import LanguageModel
from txl_tf.config import LSTM, QRNN, TRANSFORMER_XL, EvalConfig
from txl_tf.data.files import exists, read_json_lines, write_text
from txl_tf.errors import UserError, explain_errors
from txl_tf.models.quantization import get_kernel_dtype
from txl_tf.runs.folder import EVALUATIONS_NAME, IMPORT_NAME
from txl_tf.runs.hub_download import CARD_NAME, PREFIX, explain_hub, import_hub, is_hub_address
from txl_tf.scoring.metrics import name_unit
from txl_tf.version import __version__

_KINDS = {
    TRANSFORMER_XL: "A Transformer-XL ([Dai et al. 2019](https://arxiv.org/abs/1901.02860))",
    LSTM: "An LSTM",
    QRNN: "A QRNN",
}
_CARD = resources.files("txl_tf.apps").joinpath("hub_card.md").read_text(encoding="utf-8")


def push_to_hub(
    lm: LanguageModel,
    name: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    message: str | None = None,
    license: str | None = None,  # noqa: A002  the Hub's name
    language: str | None = None,
) -> str:
    """Uploads a model to the Hugging Face Hub, from which `txl_tf.load` can load it.

    The repository holds the weights as safetensors, the config, the vocabulary and a model card
    with the evaluations of these weights that the run folder records.

    Args:
        lm: The model.
        name: The name of the repository, "user/model"; it is created if it is missing.
        private: Whether a new repository is private; `None` for the user's default.
        token: The token of a user; `None` for that of `hf auth login`.
        revision: The branch, which must exist; `None` for the main one.
        message: The message of the commit.
        license: The license in the card, as an identifier of the Hub such as "apache-2.0".
        language: The language in the card, as a code such as "en".

    Returns:
        The address of the commit.

    Raises:
        UserError: If the model is quantized, or the Hub rejects it or cannot be reached.
    """
    if get_kernel_dtype(lm.model) != "float32":
        raise UserError("a quantized model cannot be uploaded: upload it before quantizing it")
    card = write_card(lm, f"{PREFIX}{name}", license=license, language=language)
    hub = import_hub()
    with tempfile.TemporaryDirectory() as folder, explain_hub(f"{PREFIX}{name}"):
        lm.save(folder, safetensors="float32")
        write_text(os.path.join(folder, CARD_NAME), card)
        api = hub.HfApi(token=token, library_name="txl_tf", library_version=__version__)
        api.create_repo(name, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=name,
            folder_path=folder,
            revision=revision,
            commit_message=message or f"Upload of step {lm.step:,} with txl_tf {__version__}",
        )
    return str(commit.commit_url)


def write_card(
    lm: LanguageModel,
    address: str,
    *,
    dtype: str = "float32",
    license: str | None = None,  # noqa: A002  the Hub's name
    language: str | None = None,
) -> str:
    """Returns the text of a model card, `README.md`: metadata for the Hub, and the card itself.

    Args:
        lm: The model.
        address: The address for `txl_tf.load` in the card: "hf://user/model", or a folder.
        dtype: The dtype of the stored weights.
        license: See `push_to_hub`.
        language: See `push_to_hub`.

    Raises:
        UserError: If the run folder holds evaluations in another format, or the extra `hub` is not
            installed.
    """
    hub = import_hub()
    config, level = lm.config, lm.vocabulary.level if lm.vocabulary else None
    is_shared = is_hub_address(address)
    name = address.removeprefix(PREFIX) if is_shared else os.path.basename(address.rstrip("/"))
    records = find_records(lm)
    results = [
        hub.EvalResult(
            task_type="text-generation",
            dataset_type=lm.dataset,
            dataset_name=lm.dataset,
            dataset_split=record["split"],
            metric_type=measure,
            metric_name=_describe_counting(record),
            metric_value=figure,
        )
        for record in records
        for measure, figure in [_get_figure(record, level)]
    ]
    metadata = hub.ModelCardData(
        library_name="txl_tf",
        pipeline_tag="text-generation",
        tags=[config.model_type.replace("_", "-"), "tensorflow", "keras"],
        license=license,
        language=language,
        model_name=name.rpartition("/")[2],
        eval_results=results or None,
    )
    return _CARD.format(
        metadata=metadata.to_yaml(),
        name=name,
        address=address,
        dtype=dtype,
        config=config,
        install="pip install -e '.[hub]'" if is_shared else "pip install -e .",
        kind=_KINDS[config.model_type],
        heads="" if config.is_recurrent else f", {config.n_head} heads",
        example="\n".join(_list_calls(lm)),
        n_parameters=config.count_parameters(),
        symbols=level or "id",
        cutoffs=", with an adaptive softmax" if config.cutoffs else "",
        training=_describe_training(lm),
        span=lm.evaluation.describe(),
        figures=_write_figures(records, level),
    )


def _list_calls(lm: LanguageModel) -> Iterator[str]:
    """Yields the calls of the example, which the model can answer."""
    if lm.vocabulary is None:
        yield "print(lm.score([[0, 1, 2]]))  # ids, as it has no vocabulary"
        return
    if lm.config.can_have_memory:
        prompt = "the " if lm.vocabulary.codec.encode(b"The ").unknown else "The "
        yield f'print(lm.generate("{prompt}", max_new_tokens=100, top_p=0.9))'
    yield 'print(lm.score(["a text", "another"]))'


def find_records(lm: LanguageModel) -> list[dict[str, Any]]:
    """Returns the newest complete evaluation of the weights for each split and each setting.

    Evaluations of other records than those of the run do not count. They are recorded in the run
    folder, which may have been renamed since.
    """
    if not lm.run or not lm.checkpoint:
        return []
    name = os.path.relpath(lm.checkpoint, lm.run)
    path = os.path.join(lm.run, EVALUATIONS_NAME)
    found: dict[str, dict[str, Any]] = {}
    with explain_errors(f"`{path}` does not hold evaluations of a run", KeyError, TypeError):
        for record in read_json_lines(path):
            is_float32 = record["precision"] == "float32"  # others are not shared
            is_of_weights = f"/{record['checkpoint']}".endswith(f"/{name}") and (
                record["is_averaged"] == lm.is_averaged
            )
            is_own = record.get("is_own", True)  # older records do not say it
            if is_of_weights and is_own and record["is_whole"] and is_float32:
                settings = ("split", "evaluation", "stride", "as_release", "dynamic")
                found[json.dumps([record[name] for name in settings])] = record
    return list(found.values())


def _describe_training(lm: LanguageModel) -> str:
    is_imported = bool(lm.run) and exists(os.path.join(str(lm.run), IMPORT_NAME))
    if is_imported or not lm.step:
        return f"The weights were imported; their data set is `{lm.dataset}`."
    return (
        f"Trained on `{lm.dataset}`: {lm.step:,} steps of {lm.training.train_batch_size} texts, "
        f"{lm.training.count_tokens(lm.step):,} tokens in all, {lm.training.optimizer}."
    )


def _write_figures(records: list[dict[str, Any]], level: str | None) -> str:
    if not records:
        return "None: no evaluation of these weights was recorded (`txl evaluate`).\n"
    rows = [
        f"| {record['split']} | {name.replace('_', ' ')} {figure:.4f} | {record['tokens']:,} | "
        f"{_describe_counting(record)} |"
        for record in records
        for name, figure in [_get_figure(record, level)]
    ]
    head = "| split | result | tokens | how they were counted |\n|---|---|---|---|"
    return "\n".join([head, *rows, ""])


def _get_figure(record: dict[str, Any], level: str | None) -> tuple[str, float]:
    """Returns the name and value of a result, in the unit in which others publish it."""
    names = ["perplexity"] if name_unit(level) == "perplexity" else ["bpc", "bits_per_token"]
    name = next(name for name in names if record.get(name) is not None)
    return name, float(record[name])


def _describe_counting(record: dict[str, Any]) -> str:
    """Describes which tokens an evaluation counts, and with what context."""
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
