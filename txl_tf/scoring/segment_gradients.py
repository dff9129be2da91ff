"""The losses of a segment, with the gradients of the mean of those that count."""

from typing import Any

import tensorflow as tf

from txl_tf.architecture import make_model
from txl_tf.config import AttentionSpan
from txl_tf.gradients import take_gradients
from txl_tf.model import SegmentModel


def copy_without_dropout(model: SegmentModel) -> SegmentModel:
    """Returns a model with the same weights that drops nothing."""
    copied = make_model(model.config.without_dropout(), dtype=model.dtype_policy)
    for weight, source in zip(copied.weights, model.weights, strict=True):
        weight.assign(source)
    return copied


def score_with_gradients(
    model: SegmentModel,
    ids: tf.Tensor,
    targets: tf.Tensor,
    mask: tf.Tensor,
    memory: Any,
    *,
    span: AttentionSpan,
    document_starts: tf.Tensor | None = None,
    filled: tf.Tensor | None = None,
) -> tuple[tf.Tensor, list[tf.Tensor], Any]:
    """Scores each target of a segment, and differentiates the mean of those that count.

    A training step sums the losses of all of its targets instead; see `txl_tf.training.step`.

    Args:
        model: The model, without dropout.
        ids: (B, T) int32, the inputs.
        targets: (B, T) int32, the tokens that follow them.
        mask: (B, T) bool, the targets that count.
        memory: The memory from `model.initial_memory` or the previous segment. No gradient flows
            into it.
        span: The attention span.
        document_starts: (B, T) bool, where `ids` starts a document, or `None`.
        filled: As for `TransformerXL`.

    Returns:
        -log p of each target in nats, (B, T) float32, 0 where the mask is false; the gradients of
        the mean over the targets that count, in the order of `model.trainable_variables`, 0 if
        there are none; the new memory.
    """
    with tf.GradientTape() as tape:
        # In training mode the layers are differentiated by hand, which is fast; nothing is dropped.
        hidden, memory = model(
            ids, memory, span=span, training=True, document_starts=document_starts, filled=filled
        )
        nats = tf.where(mask, model.nll(hidden, targets), 0.0)
        count = tf.maximum(tf.reduce_sum(tf.cast(mask, tf.float32)), 1.0)
        loss = tf.reduce_sum(nats) / count
    return nats, take_gradients(tape, loss, model), memory
