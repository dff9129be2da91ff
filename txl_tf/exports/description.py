"""The description of a model that every export stores."""

import contextlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from txl_tf.models.cached_model import CachedModel
from txl_tf.models.quantization import get_kernel_dtype
from txl_tf.version import __version__

FORMAT_VERSION = 1  # in `txl_tf.json` and `model.json`

LanguageModel = Any  # `txl_tf.LanguageModel`, which imports this folder


def describe_model(lm: LanguageModel, cached: CachedModel) -> dict[str, Any]:
    """Returns a description of a model and of how it reads, for JSON."""
    model, vocabulary = cached.model, lm.vocabulary
    packages = {}
    for name in ("tensorflow", "tensorflow-tpu", "keras", "tensorflow-text"):
        with contextlib.suppress(PackageNotFoundError):  # of the first two there is one
            packages[name] = version(name)
    return {
        "format_version": FORMAT_VERSION,
        "versions": {"txl_tf": __version__, **packages},
        "dataset": lm.dataset,
        "step": lm.step,
        "model": model.config.to_json(),
        "parameters": model.config.count_parameters(),
        "dtype_policy": model.dtype_policy.name,
        "kernel_dtype": get_kernel_dtype(model),
        "vocabulary": vocabulary and {"level": vocabulary.level, "symbols": len(vocabulary)},
        "span": cached.span.to_json(),
        "tgt_len": cached.tgt_len,
        "temperature": cached.temperature,
        "mask_empty_memory": cached.mask_empty_memory,
    }
