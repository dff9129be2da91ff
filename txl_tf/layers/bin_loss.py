"""Losses with hand-written gradients: of given logits, and of the tokens of one bin.

The backward pass recomputes the probabilities. The head is computed as one bin if its logits for
all tokens would take too much memory.
"""

from keras import ops

from txl_tf.layers.custom_gradient import as_tensor, custom_gradient
from txl_tf.layers.fused.fusion import chain
from txl_tf.layers.fused.matrix_products import multiply_rounded

LOGITS_PER_CHUNK = 2**24  # 64 MiB of float32
# In tokens. Smaller chunks would read the table of a bin more often, and save hardly any time.
SMALLEST_CHUNK = 32
_N_CHUNKS = 8  # for all tokens; a tail bin needs a few of them, and does not fill its last one
_LARGE = 1e30


def choose_chunk(n_tokens: int | None, n_rows: int) -> int:
    """Returns the number of tokens in a chunk.

    Args:
        n_tokens: Total number of tokens; `None` if unknown when a function is traced.
        n_rows: Number of logits per token.

    >>> choose_chunk(1024, 8000), choose_chunk(9600, 200_000), choose_chunk(100, 8000)
    (128, 83, 32)
    """
    if n_tokens is None:
        share = SMALLEST_CHUNK
    else:
        share = min(n_tokens, max(SMALLEST_CHUNK, -(-n_tokens // _N_CHUNKS)))
    return max(1, min(share, LOGITS_PER_CHUNK // n_rows))


def clip_chunk(n_tokens, n_rows):
    """Returns the chunk size for n tokens, a tensor: n if all their logits fit into one chunk."""
    return ops.clip(n_tokens, 1, max(LOGITS_PER_CHUNK // n_rows, 1))


def is_taken_at_once(n_tokens: int | None, n_rows: int) -> bool:
    """Returns whether the logits of all tokens are known to fit into one chunk."""
    return n_tokens is not None and n_tokens * n_rows <= LOGITS_PER_CHUNK


@custom_gradient
def compute_nll(logits, targets):
    """Returns -log p(target) in nats, (n,) float32.

    In the 2019 code: `_gather_logprob` of a log-softmax.

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
    """Returns the gradient of the logits, (n, V), for losses multiplied by `scale`, (n,)."""
    one_hot = ops.one_hot(targets, logits.shape[-1], dtype=logits.dtype)
    return (ops.exp(logits - log_sums[:, None]) - one_hot) * scale[:, None]


def compute_bin_nll(hidden, weight, bias, projection, *, targets, order, start, count, chunk=None):
    """Returns -log p(target | bin) of the tokens whose targets lie in a bin, 0 for the others.

    The number of tokens in a bin is known only at run time, but compiled steps need fixed shapes.
    The tokens are therefore sorted by bin, and a loop processes as many chunks of a fixed size as
    the bin needs: no token is dropped however full a bin is, and only the last chunk contains
    tokens of other bins, which are ignored. The backward pass recomputes the logits chunk by chunk,
    so the logits of only one chunk are in memory at a time.

    In the 2019 code: on TPUs, each bin has room for a fixed number of tokens, `get_bin_sizes`.

    Args:
        hidden: (n, D). Products are computed in its dtype, everything else in float32.
        weight: (n_i, E_i), the rows of the bin's tokens.
        bias: (n_i,).
        projection: (E_i, D) or `None`.
        targets: (n,) int32, ids within the bin; arbitrary for tokens outside it.
        order: (n,) int32, the indices of the tokens, sorted by bin.
        start: () int32, index in `order` of the first token of the bin.
        count: () int32, number of tokens in the bin.
        chunk: Number of tokens in a chunk, which may be a tensor; `None` for `choose_chunk`.

    Returns:
        (n,) float32, in the order of `hidden`.
    """
    n_tokens, dtype = ops.shape(hidden)[0], hidden.dtype
    if chunk is None:
        chunk = choose_chunk(hidden.shape[0], weight.shape[0])
    n_chunks = (count + chunk - 1) // chunk

    def locate(index):
        """Returns the tokens of a chunk, (chunk,) int32, and a mask of those in the bin."""
        indices = index * chunk + ops.arange(chunk, dtype="int32")
        # A gather: for a slice, XLA would need its start, and thus the targets, as constants, and
        # would recompile at every step.
        tokens = ops.take(order, ops.minimum(start + indices, n_tokens - 1))
        return tokens, indices < count

    def compute_logits(hidden, weight, bias, *projection):
        for kernel in projection:
            hidden = multiply_rounded(hidden, kernel, dtype, transpose_right=True)
        return hidden, multiply_rounded(hidden, weight, dtype, transpose_right=True) + bias

    def pick_targets(tokens):
        return ops.clip(ops.take(targets, tokens), 0, weight.shape[0] - 1)

    @custom_gradient
    def compute(hidden, weight, bias, *projection):
        # Rounded once, not in each chunk.
        weights = [ops.cast(weight, dtype), bias, *(ops.cast(part, dtype) for part in projection)]

        def add_chunk(index, nll, log_sums):
            tokens, valid = locate(index)
            _, logits = compute_logits(ops.take(hidden, tokens, axis=0), *weights)
            new = score_targets(logits, pick_targets(tokens))
            new_nll, new_log_sums = (ops.where(valid, values, 0.0) for values in new)
            return _add_rows(nll, tokens, new_nll), _add_rows(log_sums, tokens, new_log_sums)

        zeros = ops.zeros((n_tokens,), "float32")
        nll, log_sums = _loop(n_chunks, add_chunk, zeros, zeros)

        def compute_gradients(upstream):
            def add_chunk_gradients(index, d_hidden, *d_weights):
                tokens, valid = locate(index)
                rows = ops.take(hidden, tokens, axis=0)
                projected, logits = compute_logits(rows, *weights)
                scale = ops.where(valid, ops.take(upstream, tokens), 0.0)
                # Tokens outside the bin have arbitrary logits; their probabilities must be 0.
                log_sum = ops.where(valid, ops.take(log_sums, tokens), _LARGE)
                d_logits = differentiate_logits(logits, pick_targets(tokens), log_sum, scale)
                d_rows = multiply_rounded(d_logits, weights[0], dtype)
                d_weight = multiply_rounded(d_logits, projected, dtype, transpose_left=True)
                d_new = [d_weight, ops.sum(d_logits, axis=0)]
                for kernel in weights[2:]:
                    d_new.append(multiply_rounded(d_rows, rows, dtype, transpose_left=True))
                    d_rows = multiply_rounded(d_rows, kernel, dtype)
                d_weights = [old + new for old, new in zip(d_weights, d_new, strict=True)]
                return _add_rows(d_hidden, tokens, d_rows), *d_weights

            zeros = [ops.zeros_like(tensor, "float32") for tensor in (hidden, *weights)]
            d_hidden, *d_weights = _loop(n_chunks, add_chunk_gradients, *zeros)
            return ops.cast(d_hidden, dtype), *d_weights

        return nll, compute_gradients

    tensors = [weight, bias] if projection is None else [weight, bias, projection]
    return compute(hidden, *(as_tensor(tensor, tensor.dtype) for tensor in tensors))


def _add_rows(rows, indices, values):
    """Returns rows (n, ...) with values added at some indices, which may repeat."""
    return ops.scatter_update(rows, indices[:, None], values, reduction="add")


def _loop(n_chunks, body, *state):
    """Runs `state = body(index, *state)` for each chunk and returns the last state, a tuple."""

    def take_chunk(index, *state):
        return index + 1, *body(index, *state)

    index = ops.zeros((), "int32")
    _, *state = ops.while_loop(lambda index, *_: index < n_chunks, take_chunk, (index, *state))
    return tuple(state)
