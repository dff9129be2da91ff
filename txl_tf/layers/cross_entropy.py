"""The loss of logits, with a hand-written gradient that computes the probabilities again."""

from keras import ops

from txl_tf.layers.custom_gradient import custom_gradient
from txl_tf.layers.fused.fusion import chain


@custom_gradient
def compute_nll(logits, targets):
    """Returns -log p(target) in nats, (n,) float32.

    Args:
        logits: (n, V) float32.
        targets: (n,) int32 in [0, V).
    """
    nll, log_sums = score_targets(logits, targets)

    def compute_gradients(upstream):
        return differentiate_logits(logits, targets, log_sums, upstream), None

    return nll, compute_gradients


@chain
def score_targets(logits, targets):
    """Returns -log p(target) and the logarithm of the sum of all exponentials, (n,) each."""
    n_rows, n_columns = ops.shape(logits)
    indices = ops.arange(n_rows, dtype="int32") * n_columns + targets
    log_sums = ops.logsumexp(logits, axis=-1)
    return log_sums - ops.take(ops.reshape(logits, (-1,)), indices), log_sums


@chain
def differentiate_logits(logits, targets, log_sums, scale):
    """Returns the gradient of the logits, (n, V), of losses that are multiplied by (n,) scale."""
    one_hot = ops.one_hot(targets, logits.shape[-1], dtype=logits.dtype)
    return (ops.exp(logits - log_sums[:, None]) - one_hot) * scale[:, None]
