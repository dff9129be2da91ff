"""The matrix products of attention, with gradients in a layout that XLA for CPU computes fast.

The gradients of keys and values are products of (B, N, T, S), transposed, and (B, T, N, H). XLA
for CPU takes three times as long for them as for their transposes, (B, N, H, S), and copies these
to (B, S, N, H) quickly. Automatic differentiation would choose the slow form.
"""

from keras import ops

from txl_tf.layers.custom_gradient import custom_gradient


@custom_gradient
def score_keys(query, keys):
    """Returns the product of each query and each key.

    Args:
        query: (B, T, N, H).
        keys: (B, S, N, H).

    Returns:
        (B, N, T, S).
    """

    def compute_gradients(upstream):
        d_query = ops.einsum("bnts,bsnh->btnh", upstream, keys)
        return d_query, sum_over_queries(query, upstream)

    return ops.einsum("btnh,bsnh->bnts", query, keys), compute_gradients


@custom_gradient
def score_distances(query, distance_keys):
    """Returns the product of each query and the key of each distance.

    Args:
        query: (B, T, N, H).
        distance_keys: (S, N, H).

    Returns:
        (B, N, T, S).
    """

    def compute_gradients(upstream):
        d_query = ops.einsum("bnts,snh->btnh", upstream, distance_keys)
        d_keys = ops.sum(ops.einsum("btnh,bnts->bnhs", query, upstream), axis=0)
        return d_query, ops.transpose(d_keys, (2, 0, 1))

    return ops.einsum("btnh,snh->bnts", query, distance_keys), compute_gradients


@custom_gradient
def sum_values(weights, values):
    """Returns the sum of the values for each query, weighted.

    Args:
        weights: (B, N, T, S).
        values: (B, S, N, H).

    Returns:
        (B, T, N, H).
    """

    def compute_gradients(upstream):
        d_weights = ops.einsum("btnh,bsnh->bnts", upstream, values)
        return d_weights, sum_over_queries(upstream, weights)

    return ops.einsum("bnts,bsnh->btnh", weights, values), compute_gradients


def sum_over_queries(states, weights):
    """Returns the weighted sum of the states of all queries for each key.

    Args:
        states: (B, T, N, H).
        weights: (B, N, T, S).

    Returns:
        (B, S, N, H).
    """
    return ops.transpose(ops.einsum("btnh,bnts->bnhs", states, weights), (0, 3, 1, 2))
