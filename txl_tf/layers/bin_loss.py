"""The loss of the tokens of one bin, at the cost of these tokens alone, in fixed shapes."""

from keras import ops

LOGITS_PER_CHUNK = 2**25  # 128 MiB of float32
UNKNOWN_CHUNK = 32  # tokens, where their number is not known when a function is traced


def compute_bin_nll(hidden, weight, bias, projection, *, targets, order, start, count):
    """Returns -log p(target | bin) of the tokens whose targets lie in a bin, 0 for the others.

    The number of tokens in a bin is known only at run time, while compiled steps need fixed
    shapes. So the tokens come ordered by bin, and a loop takes chunks of fixed size from the
    bin's first token on, as many as the bin needs: no token is lost however full a bin is, none
    is computed in vain but in the last chunk. The backward pass computes the logits anew, chunk
    by chunk, so that at no time more than one chunk's logits are held.

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
    chunk = _choose_chunk(hidden.shape[0], weight.shape[0])
    n_chunks = (count + chunk - 1) // chunk
    inverse = ops.argsort(order)
    # The last chunk may reach past the last token: the padding keeps its slice within bounds.
    padded_order = ops.concatenate([order, ops.zeros((chunk,), order.dtype)])

    def locate(index):
        first = start + index * chunk
        tokens = ops.slice(padded_order, [first], [chunk])
        valid = index * chunk + ops.arange(chunk) < count
        return first, tokens, valid

    def compute_logits(hidden, weight, bias, *projection):
        for kernel in projection:
            hidden = ops.matmul(hidden, ops.transpose(kernel))
        return hidden, ops.matmul(hidden, ops.transpose(weight)) + bias

    def pick_targets(tokens):
        return ops.clip(ops.take(targets, tokens), 0, weight.shape[0] - 1)

    def unsort(rows):
        return ops.take(rows[:n_tokens], inverse, axis=0)

    @ops.custom_gradient
    def compute(hidden, *weights):
        def add_chunk(index, nll):
            first, tokens, valid = locate(index)
            _, logits = compute_logits(ops.take(hidden, tokens, axis=0), *weights)
            target = ops.take_along_axis(logits, pick_targets(tokens)[:, None], axis=-1)[:, 0]
            value = ops.where(valid, ops.logsumexp(logits, axis=-1) - target, 0.0)
            return index + 1, ops.slice_update(nll, [first], value)

        nll = _loop(n_chunks, add_chunk, ops.zeros((n_tokens + chunk,), hidden.dtype))

        def compute_gradients(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream

            def add_chunk_gradients(index, d_hidden, *d_weights):
                first, tokens, valid = locate(index)
                rows = ops.take(hidden, tokens, axis=0)
                projected, logits = compute_logits(rows, *weights)
                one_hot = ops.one_hot(pick_targets(tokens), weight.shape[0], dtype=logits.dtype)
                scale = ops.where(valid, ops.take(upstream, tokens), 0.0)
                d_logits = (ops.softmax(logits) - one_hot) * scale[:, None]
                d_rows = ops.matmul(d_logits, weights[0])
                d_new = [ops.matmul(ops.transpose(d_logits), projected), ops.sum(d_logits, axis=0)]
                for kernel in weights[2:]:
                    d_new.append(ops.matmul(ops.transpose(d_rows), rows))
                    d_rows = ops.matmul(d_rows, kernel)
                d_weights = [old + new for old, new in zip(d_weights, d_new, strict=True)]
                return index + 1, ops.slice_update(d_hidden, [first, 0], d_rows), *d_weights

            zeros = [ops.zeros((n_tokens + chunk, hidden.shape[1]), hidden.dtype)]
            zeros += [ops.zeros_like(tensor) for tensor in weights]
            d_hidden, *d_weights = _loop(n_chunks, add_chunk_gradients, *zeros)
            return unsort(d_hidden), *d_weights

        return unsort(nll), compute_gradients

    tensors = [weight, bias] if projection is None else [weight, bias, projection]
    # Custom gradients take no variables, and `ops.convert_to_tensor` leaves one as it is.
    tensors = [ops.reshape(ops.cast(tensor, hidden.dtype), tensor.shape) for tensor in tensors]
    return compute(hidden, *tensors)


def _choose_chunk(n_tokens, n_rows):
    """Returns how many tokens to take at once; `n_tokens` is `None` where a graph takes any."""
    share = UNKNOWN_CHUNK if n_tokens is None else -(-n_tokens // 8)
    return max(1, min(share, LOGITS_PER_CHUNK // n_rows))


def _loop(n_chunks, body, *state):
    """Runs `body(index, *state)` for each chunk; returns the last state."""
    index = ops.zeros((), "int32")
    _, *state = ops.while_loop(lambda index, *_: index < n_chunks, body, (index, *state))
    return state[0] if len(state) == 1 else state
