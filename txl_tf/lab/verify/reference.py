"""Transformer-XL as the paper describes it, in plain NumPy and float64; slow.

It reads the variables of a checkpoint of the 2019 release and shares no code with the layers of
this package, so it can be used to check them, or any other implementation. It is meant to be read
alongside section 3.3 of the paper: it loops over distances where fast code shifts, computes the
mask for each pair of query and key, concatenates the memory and the segment, and looks up the bin
of each token. `trace_segment` returns every intermediate term.

Letters: B rows, T tokens of the segment, M states of the memory, S = M + T keys, N heads, H width
of a head, D `d_model`. Keys are counted from the oldest state of the memory, so query i comes after
M + i keys, and its distance to key j is i + M - j.

References:
    Dai et al. 2019, https://arxiv.org/abs/1901.02860.
    Grave et al. 2017, Efficient softmax approximation for GPUs, https://arxiv.org/abs/1609.04309.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from txl_tf.config import AttentionSpan, ModelConfig

PREFIX = "transformer/"
EPSILON = 1e-12  # of LayerNorm in the release
_N_ROWS = 2**14  # rows of a table that are converted to float64 at a time

Variables = Mapping[str, np.ndarray]


class LayerTrace(NamedTuple):
    """The intermediate results of a layer, in order."""

    memory: np.ndarray  # (B, M, D), the inputs of this layer before the segment
    hidden: np.ndarray  # (B, T, D), the input of the layer
    queries: np.ndarray  # (B, T, N, H)
    keys: np.ndarray  # (B, S, N, H)
    values: np.ndarray  # (B, S, N, H)
    content: np.ndarray  # (B, N, T, S), the terms (a) + (c) of the scores, divided by sqrt(H)
    position: np.ndarray  # (B, N, T, S), (b) + (d) over sqrt(H); 0 for keys after the query
    mask: np.ndarray  # (T, S) bool, true where a query sees a key
    weights: np.ndarray  # (B, N, T, S), the attention weights; they sum to 1 over the keys
    attended: np.ndarray  # (B, T, D), the weighted values after the output projection
    normed: np.ndarray  # (B, T, D), the sum of input and attention after LayerNorm
    changed: np.ndarray  # (B, T, D), the output of the feed-forward network
    output: np.ndarray  # (B, T, D), the sum of both after LayerNorm: the next layer's input


class SegmentTrace(NamedTuple):
    """The intermediate results of a segment."""

    embeddings: np.ndarray  # (B, T, D), the input of the first layer
    layers: tuple[LayerTrace, ...]
    new_memory: tuple[np.ndarray, ...]  # (B, M, D) for each layer, for the next segment
    head: np.ndarray  # (B, T, n_0 + k), log p of the ids of bin 0, then of the k other bins
    bins: tuple[np.ndarray, ...]  # (B, T, n_i) for each other bin, log p(id | bin i)
    nll: np.ndarray  # (B, T), -log p of each target, in nats


def trace_segment(
    variables: Variables,
    config: ModelConfig,
    ids: np.ndarray,
    targets: np.ndarray,
    memory: tuple[np.ndarray, ...],
    span: AttentionSpan,
) -> SegmentTrace:
    """Runs the model on a segment, and returns all intermediate results, in float64.

    `variables` are those of a checkpoint of the release, by name. `ids` and `targets`, the ids one
    position to the right, are (B, T). `memory` comes from `make_empty_memory`, or is the
    `new_memory` of the last segment.
    """
    embeddings = hidden = embed(variables, config, ids)
    layers, new_memory = [], []
    for index, states in enumerate(memory):
        layers.append(trace_layer(variables, config, index, hidden, states, span))
        # The memory holds the *inputs* of a layer, the last M of them.
        new_memory.append(np.concatenate([states, hidden], axis=1)[:, ids.shape[1] :])
        hidden = layers[-1].output
    head, bins = compute_log_probs(variables, config, hidden)
    nll = np.zeros(targets.shape)
    for place, token in np.ndenumerate(targets):
        index, low = find_bin(config, token)
        if index == 0:
            nll[place] = -head[place][token]
        else:
            cluster = config.bins[0][1] + index - 1  # clusters are in order, after bin 0
            nll[place] = -(head[place][cluster] + bins[index - 1][place][token - low])
    return SegmentTrace(embeddings, tuple(layers), tuple(new_memory), head, bins, nll)


def make_empty_memory(config: ModelConfig, batch_size: int, mem_len: int) -> tuple[np.ndarray, ...]:
    """Returns the memory before the first segment: zeros (B, M, D), which are attended to."""
    return tuple(np.zeros((batch_size, mem_len, config.d_model)) for _ in range(config.n_layer))


def find_bin(config: ModelConfig, token: int) -> tuple[int, int]:
    """Returns the index of the bin of an id, and the first id of the bin."""
    for index, (low, high) in enumerate(config.bins):
        if low <= token < high:
            return index, low
    raise IndexError(f"id {token} is not in [0, {config.n_token})")


def embed(variables: Variables, config: ModelConfig, ids: np.ndarray) -> np.ndarray:
    """Returns the embeddings (B, T, D) of ids (B, T), times sqrt(D)."""
    embedded = np.zeros((*ids.shape, config.d_model))
    for index, (low, high) in enumerate(config.bins):
        scope = _name_embedding(config, index)
        first = low if config.div_val > 1 else 0  # one table for all bins, or one for each bin
        table, projection = variables[f"{scope}/lookup_table"], variables.get(f"{scope}/proj_W")
        for place, token in np.ndenumerate(ids):
            if low <= token < high:
                row = table[token - first].astype(np.float64)
                embedded[place] = row if projection is None else row @ projection
    return embedded * np.sqrt(config.d_model)


def make_sinusoids(distance: int, config: ModelConfig, clamp_len: int) -> np.ndarray:
    """Returns the encoding R (D,) of a distance: all sines, then all cosines."""
    if clamp_len > 0:
        distance = min(distance, clamp_len)
    angles = distance / 10000 ** (np.arange(0, config.d_model, 2) / config.d_model)
    return np.concatenate([np.sin(angles), np.cos(angles)])


def sees(query: int, key: int, span: AttentionSpan) -> bool:
    """Returns whether a query sees a key. With `same_length`, it sees its own and the M before it.

    With `counts_self`, which the release does not have, its own key is one of the M.
    """
    distance, largest = query + span.mem_len - key, span.mem_len - span.counts_self
    return 0 <= distance <= largest if span.same_length else distance >= 0


def trace_layer(
    variables: Variables,
    config: ModelConfig,
    index: int,
    hidden: np.ndarray,
    memory: np.ndarray,
    span: AttentionSpan,
) -> LayerTrace:
    """Runs layer `index` on its input (B, T, D) and memory (B, M, D)."""
    n_head, d_head, scope = config.n_head, config.d_head, f"{PREFIX}layer_{index}"
    n_queries, n_keys = hidden.shape[1], memory.shape[1] + hidden.shape[1]

    def split_heads(states: np.ndarray) -> np.ndarray:
        return states.reshape(*states.shape[:-1], n_head, d_head)

    def read(name: str) -> np.ndarray:
        return variables[f"{scope}/{name}"].astype(np.float64)

    w_q, w_k, w_v = np.split(read("rel_attn/qkv/kernel"), 3, axis=1)
    w_r, w_o = read("rel_attn/r/kernel"), read("rel_attn/o/kernel")
    u, v = (variables[PREFIX + name].astype(np.float64) for name in ("r_w_bias", "r_r_bias"))
    if config.untie_r:
        u, v = u[index], v[index]

    states = np.concatenate([memory, hidden], axis=1)
    queries, keys, values = split_heads(hidden @ w_q), split_heads(states @ w_k), states @ w_v
    values = split_heads(values)
    rows = [split_heads(make_sinusoids(k, config, span.clamp_len) @ w_r) for k in range(n_keys)]
    content, position = np.zeros((2, len(hidden), n_head, n_queries, n_keys))
    mask = np.zeros((n_queries, n_keys), bool)
    for i in range(n_queries):
        for j in range(n_keys):
            distance = i + span.mem_len - j
            content[:, :, i, j] = np.sum((queries[:, i] + u) * keys[:, j], axis=-1)
            if distance >= 0:
                position[:, :, i, j] = np.sum((queries[:, i] + v) * rows[distance], axis=-1)
            mask[i, j] = sees(i, j, span)
    content, position = content / np.sqrt(d_head), position / np.sqrt(d_head)
    weights = np.exp(log_softmax(np.where(mask, content + position, -np.inf)))
    attended = np.einsum("bnts,bsnh->btnh", weights, values).reshape(*hidden.shape[:2], -1) @ w_o
    normed = normalize(variables, f"{scope}/rel_attn", hidden + attended)
    inner = np.maximum(normed @ read("ff/layer_1/kernel") + read("ff/layer_1/bias"), 0)
    changed = inner @ read("ff/layer_2/kernel") + read("ff/layer_2/bias")
    output = normalize(variables, f"{scope}/ff", normed + changed)
    scores = (content, position, mask, weights)
    return LayerTrace(
        memory, hidden, queries, keys, values, *scores, attended, normed, changed, output
    )


def normalize(variables: Variables, scope: str, states: np.ndarray) -> np.ndarray:
    """Returns the LayerNorm of states (..., D) with the gamma and beta of a scope."""
    centered = states - states.mean(axis=-1, keepdims=True)
    variance = np.mean(centered**2, axis=-1, keepdims=True)
    gamma, beta = (variables[f"{scope}/LayerNorm/{name}"] for name in ("gamma", "beta"))
    return centered / np.sqrt(variance + EPSILON) * gamma + beta


def compute_log_probs(
    variables: Variables, config: ModelConfig, hidden: np.ndarray
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Returns `head` and `bins` of a `SegmentTrace` for hidden states (B, T, D)."""
    scope, logits = f"{PREFIX}adaptive_softmax", []
    for index, (low, high) in enumerate(config.bins):
        embedding = _name_embedding(config, index)
        table = variables[f"{embedding}/lookup_table"]  # the weights are tied to the embedding's
        if config.div_val == 1:
            table = table[low:high]
        if not config.cutoffs or (config.proj_share_all_but_first and index > 0):
            projection = variables.get(f"{embedding}/proj_W")
        else:
            projection = variables.get(f"{scope}/cutoff_{index}/proj")
        states = hidden if projection is None else hidden @ projection.astype(np.float64).T
        bias = "bias" if not config.cutoffs else f"cutoff_{index}/b"
        logits.append(_multiply_rows(states, table) + variables[f"{scope}/{bias}"])
        if index == 0 and config.cutoffs:  # the clusters, seen through bin 0's projection
            clusters = _multiply_rows(states, variables[f"{scope}/cutoff_0/cluster_W"])
            clusters = clusters + variables[f"{scope}/cutoff_0/cluster_b"]
            logits[0] = np.concatenate([logits[0], clusters], axis=-1)
    head, *bins = map(log_softmax, logits)
    return head, tuple(bins)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Returns the logarithm of the softmax over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))


def _multiply_rows(states: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Returns the product (..., n) of states (..., E) with each row of a table (n, E)."""
    parts = [table[start : start + _N_ROWS] for start in range(0, len(table), _N_ROWS)]
    return np.concatenate([states @ part.astype(np.float64).T for part in parts], axis=-1)


def _name_embedding(config: ModelConfig, index: int) -> str:
    return f"{PREFIX}adaptive_embed" + (f"/cutoff_{index}" if config.div_val > 1 else "")
