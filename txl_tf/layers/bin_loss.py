"""The loss of the tokens of one bin, at the cost of these tokens alone, in fixed shapes.

The head is computed in the same way where its logits of all tokens would take too much memory.
"""

from keras import ops

from txl_tf.layers.chunks import choose_chunk
from txl_tf.layers.custom_gradient import custom_gradient

LARGE = 1e30


def compute_bin_nll(hidden, weight, bias, projection, *, targets, order, start, count):
    """Returns -log p(target | bin) of the tokens whose targets lie in a bin, 0 for the others.

    The number of tokens in a bin is known only at run time, while compiled steps need fixed
    shapes. So the tokens come ordered by bin, and a loop takes chunks of fixed size from the
    bin's first token on, as many as the bin needs: no token is lost however full a bin is, and
    only the last chunk holds other tokens, which count nothing. The backward pass computes the
    logits again, chunk by chunk, so at no time are more than one chunk's logits held.

    Args:
        hidden: (n, D) float32.
        weight: (n_i, E_i) rows of the bin's tokens.
        bias: (n_i,).
        projection: (E_i, D) or None.
        targets: (n,) int32, ids within the bin for the tokens in it, anything for the others.
        order: (n,) int32, the tokens ordered by bin.
        start: () int32, where in `order` the bin begins.
        count: () int32, how many tokens are in it.

    Returns:
        (n,) float32, in the order of `hidden`.
    """
    n_tokens = ops.shape(hidden)[0]
    chunk = choose_chunk(hidden.shape[0], weight.shape[0])
    n_chunks = (count + chunk - 1) // chunk

    def locate(index):
        """Returns the tokens of a chunk, (chunk,) int32, and which of them are in the bin."""
        places = index * chunk + ops.arange(chunk)
        # A gather: of a slice XLA would want the start, and so the targets, as constants, and
        # compile anew at every step.
        tokens = ops.take(order, ops.minimum(start + places, n_tokens - 1))
        return tokens, places < count

    def compute_logits(hidden, weight, bias, *projection):
        for kernel in projection:
            hidden = ops.matmul(hidden, ops.transpose(kernel))
        return hidden, ops.matmul(hidden, ops.transpose(weight)) + bias

    def pick_targets(tokens):
        return ops.clip(ops.take(targets, tokens), 0, weight.shape[0] - 1)

    @custom_gradient
    def compute(hidden, *weights):
        def add_chunk(index, nll, log_sums):
            tokens, valid = locate(index)
            _, logits = compute_logits(ops.take(hidden, tokens, axis=0), *weights)
            places = ops.arange(chunk) * weight.shape[0] + pick_targets(tokens)
            target = ops.take(ops.reshape(logits, (-1,)), places)
            log_sum = ops.logsumexp(logits, axis=-1)
            new = (ops.where(valid, log_sum - target, 0.0), ops.where(valid, log_sum, 0.0))
            return _add_rows(nll, tokens, new[0]), _add_rows(log_sums, tokens, new[1])

        zeros = ops.zeros((n_tokens,), hidden.dtype)
        nll, log_sums = _loop(n_chunks, add_chunk, zeros, zeros)

        def compute_gradients(upstream):
            def add_chunk_gradients(index, d_hidden, *d_weights):
                tokens, valid = locate(index)
                rows = ops.take(hidden, tokens, axis=0)
                projected, logits = compute_logits(rows, *weights)
                one_hot = ops.one_hot(pick_targets(tokens), weight.shape[0], dtype=logits.dtype)
                scale = ops.where(valid, ops.take(upstream, tokens), 0.0)
                # Tokens outside the bin have logits of any size, whose exponentials must be 0.
                log_sum = ops.where(valid, ops.take(log_sums, tokens), LARGE)
                probabilities = ops.exp(logits - log_sum[:, None])
                d_logits = (probabilities - one_hot) * scale[:, None]
                d_rows = ops.matmul(d_logits, weights[0])
                d_new = [ops.matmul(ops.transpose(d_logits), projected), ops.sum(d_logits, axis=0)]
                for kernel in weights[2:]:
                    d_new.append(ops.matmul(ops.transpose(d_rows), rows))
                    d_rows = ops.matmul(d_rows, kernel)
                d_weights = [old + new for old, new in zip(d_weights, d_new, strict=True)]
                return _add_rows(d_hidden, tokens, d_rows), *d_weights

            zeros = [ops.zeros_like(tensor) for tensor in (hidden, *weights)]
            return _loop(n_chunks, add_chunk_gradients, *zeros)

        return nll, compute_gradients

    tensors = [weight, bias] if projection is None else [weight, bias, projection]
    # Custom gradients take no variables, and `ops.convert_to_tensor` leaves one as it is.
    tensors = [ops.reshape(ops.cast(tensor, hidden.dtype), tensor.shape) for tensor in tensors]
    return compute(hidden, *tensors)


def _add_rows(rows, places, values):
    """Returns rows (n, ...) with values added at some places; one may stand among these twice."""
    return ops.scatter_update(rows, places[:, None], values, reduction="add")


def _loop(n_chunks, body, *state):
    """Runs `body(index, *state)`, which returns a tuple, for each chunk; returns the last state."""

    def take_chunk(index, *state):
        return index + 1, *body(index, *state)

    index = ops.zeros((), "int32")
    _, *state = ops.while_loop(lambda index, *_: index < n_chunks, take_chunk, (index, *state))
    return tuple(state)
