"""Whether evaluation, scoring, generation and SavedModels agree with the layers."""

import dataclasses
import os
import tempfile
from typing import Any

import numpy as np

from txl_tf.config import AttentionSpan
from txl_tf.programs.checks.backend import Figures, full_float32, require
from txl_tf.programs.checks.numbers import MOST_NATS


def check_use() -> Figures:
    """With the package's model, evaluation, scoring, generation and a SavedModel equal the layers.

    They use a cache of keys and values; the layers read everything at once, as in training.
    """
    from txl_tf import load

    with full_float32():
        return _compare_uses(load("pydoc"))


def _compare_uses(lm: Any) -> Figures:
    """Compares the uses of a language model with its layers."""
    import keras
    import tensorflow as tf

    import txl_tf
    from txl_tf.data import write_records

    text = "Return the first item of the list, or None if the list is empty.\n" * 3
    ids = lm.vocabulary.encode(text)
    session = lm.start([text], top_k=1)
    (continuation,) = session.draw(32)
    ids_with_drawn = session.ids[0]
    figures: Figures = {}

    def read(ids: np.ndarray, span: AttentionSpan) -> Any:
        return lm.model(ids[None], lm.model.initial_memory(1, span.mem_len), span=span)[0]

    def compare(name: str, found: float, span: AttentionSpan) -> None:
        """Compares a mean loss of the text with that of the layers."""
        hidden = read(ids[:-1], span)
        expected = float(keras.ops.mean(lm.model.nll(hidden, ids[None, 1:])))
        figures[name] = abs(found - expected)
        require(figures[name] < MOST_NATS, f"{name} has {found:.6f}, not {expected:.6f}", figures)

    with tempfile.TemporaryDirectory() as folder:
        data, exported = (os.path.join(folder, name) for name in ("data", "exported"))
        write_records(data, dataset="text", vocabulary=lm.vocabulary, splits={"test": [ids]})
        evaluation = dataclasses.replace(lm.evaluation, eval_batch_size=1)
        one_lane = txl_tf.LanguageModel(lm.model, lm.vocabulary, evaluation)
        score = one_lane.evaluate("test", data_dir=data)
        compare("evaluation", score.nats_per_token, lm.span)
        lm.export(exported)
        signature = tf.saved_model.load(exported).signatures["score_text"]
        nats = float(signature(texts=tf.constant([text]))["nats"][0])
        compare("SavedModel", nats / (len(ids) - 1), AttentionSpan(0))
    (of_text,) = lm.score([text])
    compare("scoring", of_text.nats_per_token, AttentionSpan(0))
    log_probs = lm.model.log_probs(read(ids_with_drawn, AttentionSpan(0)))
    best = np.argmax(log_probs[0, len(ids) - 1 : -1], axis=-1)
    n_equal = int(np.sum(best == ids_with_drawn[len(ids) :]))
    figures["drawn"] = repr(continuation)
    message = f"only {n_equal} of {len(best)} drawn tokens are the most likely ones"
    require(n_equal == len(best), message, figures)
    return figures
