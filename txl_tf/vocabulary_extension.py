"""Extends the vocabulary of a trained model."""

import dataclasses
import math
import os
from collections.abc import Sequence

import numpy as np

from txl_tf.errors import UserError
from txl_tf.language_model import LanguageModel
from txl_tf.models.architecture import make_model
from txl_tf.models.quantization import get_kernel_dtype
from txl_tf.runs.checkpoint import name_variables


def extend_vocabulary(
    run: str | os.PathLike[str] | LanguageModel,
    symbols: Sequence[str],
    *,
    bias_gap: float = 30.0,
) -> LanguageModel:
    """Adds symbols to the vocabulary of a trained model, which can then be fine-tuned on them.

    The new symbols get the last ids, so no other id changes; with an adaptive softmax they join the
    last bin, and the cutoffs stay the same. Their table rows are the mean of the rows of that bin,
    and their biases are the mean of its biases minus `bias_gap`. By Jensen's inequality, the
    probability of a new symbol within a bin of n symbols is then at most exp(-bias_gap) / n: with
    the default, the losses of old symbols change only by float32 rounding.

    >>> lm = extend_vocabulary("runs/books", ["Grüffelo", "Hildegunst"])  # doctest: +SKIP
    >>> lm.save("runs/books-and-more")  # doctest: +SKIP

    Args:
        run: A run folder, an address on the Hugging Face Hub, or a model.
        symbols: The new symbols: words or characters, as the level of the vocabulary requires.
            With a lower-case vocabulary, a symbol with capitals never occurs in a text.
        bias_gap: How far the biases of the new symbols lie below the mean.

    Returns:
        A new model without records. To fine-tune it, write it as a run with `save`, prepare records
        with its vocabulary (`--vocab_file`), and train from its checkpoint (`--warm_start_path`).

    Raises:
        UserError: If `symbols` is empty, a symbol is already known or not allowed by the
            vocabulary, its level is "subword", the model has no vocabulary, or it is quantized.
    """
    lm = run if isinstance(run, LanguageModel) else LanguageModel.load(run)
    vocabulary, n_old = lm.vocabulary, lm.config.n_token
    if vocabulary is None:
        raise UserError("the model has no vocabulary that could be extended")
    if vocabulary.level == "subword":
        raise UserError(
            "a subword vocabulary cannot be extended: its SentencePiece model splits every text "
            "into the pieces that it knows"
        )
    if get_kernel_dtype(lm.model) != "float32":
        raise UserError("a quantized model cannot be extended: load it without `precision`")
    if not math.isfinite(bias_gap):
        raise UserError(f"`bias_gap` must be finite. Received: {bias_gap}")
    if not isinstance(symbols, list | tuple) or not symbols:
        raise UserError(f"`symbols` must be a list of at least one symbol. Received: {symbols!r}")
    if known := [symbol for symbol in symbols if vocabulary.find_id(symbol) is not None]:
        raise UserError(f"`symbols` must be new. The vocabulary has: {', '.join(known[:5])}")
    extended = dataclasses.replace(vocabulary, symbols=(*vocabulary.symbols, *symbols))
    config = dataclasses.replace(lm.config, n_token=n_old + len(symbols))
    model = make_model(config)
    old = name_variables(lm.model)
    low = config.bins[-1][0]  # of the ids in the last bin
    for name, variable in name_variables(model).items():
        value = old[name].numpy()
        if value.shape != variable.shape:  # the last table, or the last biases
            first = low if len(value) == n_old else 0
            gap = bias_gap if value.ndim == 1 else 0.0
            new = value[first:].mean(axis=0, dtype=np.float64) - gap
            value = np.concatenate([value, np.broadcast_to(new, (len(symbols), *new.shape))])
        variable.assign(value)
    return LanguageModel(
        model, extended, lm.evaluation, dataset=lm.dataset, training=lm.training, step=lm.step
    )
