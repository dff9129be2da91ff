"""The models in NumPy and float64, by the equations of the papers: what tests compare with.

Scores are computed for one query and one key at a time, and every term is kept. Weights are given
by their paths, so that a test can change them. No code is shared with the layers.
"""

from typing import NamedTuple

import numpy as np


class Reading(NamedTuple):
    """What L layers with N heads compute for n tokens, which see M keys before them."""

    hidden: np.ndarray  # (n, D)
    inputs: list[np.ndarray]  # (n, D) for each layer
    # (4, L, N, n, M + n): the terms (a) to (d) over sqrt(H), 0 for keys after the query
    terms: np.ndarray
    weights: np.ndarray  # (L, N, n, M + n)


class TextTrace(NamedTuple):
    """A text that was read in segments; the M keys before its n tokens are the empty memory."""

    mask: np.ndarray  # (n, M + n), true where a query sees the key
    is_token: np.ndarray  # (n, M + n), true where the key is a token
    terms: np.ndarray
    weights: np.ndarray
    hidden: np.ndarray
    nats: np.ndarray  # (n - 1,)


def trace_text(
    model, ids, span, tgt_len, *, masks_empty=False, document_starts=None, use_weights=None
):
    """Reads a text; `use_weights` (L, N, n, M + n) take the place of its own weights.

    The memory holds the states of the tokens before a segment, so the text can be read at once: a
    query sees the keys that would be in its memory or in its segment.
    """
    config, weights = model.config, list_weights(model)
    query, key = np.arange(len(ids))[:, None], np.arange(-span.mem_len, len(ids))[None, :]
    mask = (key <= query) & (key >= query // tgt_len * tgt_len - span.mem_len)
    if span.same_length:
        mask &= key >= query - span.mem_len + span.counts_self
    is_token = np.broadcast_to(key >= 0, mask.shape)
    if document_starts is not None:  # a document sees neither another one nor empty entries
        documents = np.cumsum(document_starts)
        mask &= documents[:, None] == documents[np.maximum(key[0], 0)]
    if masks_empty or document_starts is not None:
        mask &= is_token
    memory = [np.zeros((span.mem_len, config.d_model))] * config.n_layer
    options = {"clamp_len": span.clamp_len, "tgt_len": tgt_len, "use_weights": use_weights}
    found = read(weights, config, ids, memory, mask, **options)
    nats = compute_nats(weights, config, found.hidden[:-1], ids[1:])
    return TextTrace(mask, is_token, found.terms, found.weights, found.hidden, nats)


def list_weights(model):
    """Returns the trainable weights in float64 by name."""
    return {
        variable.path.removeprefix(f"{model.name}/"): np.asarray(variable, np.float64)
        for variable in model.trainable_variables
    }


def read(weights, config, ids, memory, mask, *, clamp_len=-1, tgt_len=None, use_weights=None):
    """Returns the `Reading` of ids (n,), after a memory (M, D) for each layer.

    Args:
        weights: The weights by name.
        config: The config of the model.
        ids: The tokens.
        memory: The inputs of each layer before the tokens.
        mask: What each query sees, (n, M + n).
        clamp_len: The largest distance, if positive.
        tgt_len: The length of the segments in which places are counted. By default there is one.
        use_weights: Weights that take the place of those of the scores, (L, N, n, M + n).
    """
    places = np.arange(len(ids)) % (tgt_len or len(ids))
    hidden = embed(weights, config, ids)
    if config.encoding == "sinusoid":
        hidden = hidden + [make_sinusoids(place, config.d_model) for place in places]
    inputs, terms, shares = [], [], []
    for index in range(config.n_layer):
        if config.encoding == "learned":
            hidden = hidden + weights["place_table"][index, places]
        inputs.append(hidden)
        states = np.concatenate([memory[index], hidden])
        terms.append(compute_terms(weights, config, index, hidden, states, clamp_len))
        shares.append(soften(terms[-1].sum(axis=0), mask))
        used = shares[-1] if use_weights is None else use_weights[index]
        hidden = finish_layer(weights, config, index, hidden, states, used)
    return Reading(hidden, inputs, np.stack(terms, axis=1), np.stack(shares))


def compute_terms(weights, config, index, hidden, states, clamp_len=-1):
    """Returns the terms of the scores of a layer, (4, N, n, S)."""
    queries, keys, _ = project(weights, config, index, hidden, states)
    content_bias = pick_bias(weights, config, "content_bias", index)
    terms = np.zeros((4, config.n_head, len(hidden), len(states)))
    distances = range(len(states)) if clamp_len <= 0 else np.minimum(range(len(states)), clamp_len)
    encoded = [encode_distance(weights, config, index, distance) for distance in distances]
    for i in range(len(hidden)):
        for j in range(i + len(states) - len(hidden) + 1):
            row, bias = encoded[i + len(states) - len(hidden) - j]
            terms[0, :, i, j] = np.sum(queries[i] * keys[j], axis=-1)
            terms[1, :, i, j] = np.sum(queries[i] * row, axis=-1)
            terms[2, :, i, j] = np.sum(content_bias * keys[j], axis=-1)
            terms[3, :, i, j] = bias
    return terms / np.sqrt(config.d_head)


def project(weights, config, index, hidden, states):
    """Returns queries (n, N, H), keys and values (S, N, H)."""
    kernels = np.split(weights[f"layer_{index}/attention/qkv_kernel"], 3, axis=1)
    products = hidden @ kernels[0], states @ kernels[1], states @ kernels[2]
    return [product.reshape(-1, config.n_head, config.d_head) for product in products]


def pick_bias(weights, config, name, index):
    """Returns a bias (N, H), of the layer or of all; 0 if the encoding has none."""
    biases = weights.get(name, np.zeros((1, 1)))
    return biases[index] if biases.ndim == 3 else biases


def encode_distance(weights, config, index, distance):
    """Returns the vector (N, H) of a distance, which a query multiplies, and its bias (N,)."""
    if config.encoding == "relative":
        row = (
            make_sinusoids(distance, config.d_model) @ weights[f"layer_{index}/attention/r_kernel"]
        )
        row = row.reshape(config.n_head, config.d_head)
        bias = pick_bias(weights, config, "position_bias", index)
        return row, np.sum(bias * row, axis=-1)
    if config.encoding in ("shaw", "shaw_biased"):
        place = (index, min(distance, config.n_positions - 1))  # farther distances share the last
        biases = weights.get("distance_bias")
        return weights["distance_table"][place], 0.0 if biases is None else biases[place]
    return 0.0, 0.0  # the places are in the inputs


def finish_layer(weights, config, index, hidden, states, shares):
    """Returns the output (n, D) of a layer whose attention has the weights (N, n, S)."""

    def read(name):
        return weights[f"layer_{index}/{name}"]

    _, _, values = project(weights, config, index, hidden, states)
    attended = np.einsum("nij,jnh->inh", shares, values).reshape(len(hidden), -1)
    hidden = normalize(
        read, config, "attention_norm", hidden + attended @ read("attention/o_kernel")
    )
    inner = np.maximum(
        hidden @ read("feed_forward/inner/kernel") + read("feed_forward/inner/bias"), 0
    )
    changed = inner @ read("feed_forward/outer/kernel") + read("feed_forward/outer/bias")
    return normalize(read, config, "feed_forward_norm", hidden + changed)


def make_sinusoids(position, width):
    frequencies = 10000.0 ** (-np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(position * frequencies), np.cos(position * frequencies)])


def normalize(read, config, name, states):
    centered = states - states.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(states.var(axis=-1, keepdims=True) + config.layer_norm_epsilon)
    return centered / deviation * read(f"{name}/gamma") + read(f"{name}/beta")


def soften(scores, mask):
    """Returns the softmax of scores (..., n, S) over the visible keys (n, S)."""
    return np.exp(log_softmax(np.where(mask, scores, -np.inf)))


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def embed(weights, config, ids):
    """Returns the embeddings (n, D) of ids (n,), times sqrt(D)."""
    rows = []
    for token in ids:
        index = next(index for index, (_, high) in enumerate(config.bins) if token < high)
        row = weights[f"embedding/table_{index}"][token - config.bins[index][0]]
        projection = weights.get(f"embedding/projection_{index}")
        rows.append(row if projection is None else row @ projection)
    return np.array(rows) * np.sqrt(config.d_model)


def compute_nats(weights, config, hidden, targets):
    """Returns -log p of the targets (n,) after hidden states (n, D)."""
    return -compute_log_probs(weights, config, hidden)[np.arange(len(targets)), targets]


def compute_log_probs(weights, config, hidden):
    """Returns log p of every token after hidden states (n, D): (n, V)."""
    logits = []
    for index in range(len(config.bins)):
        projection = weights.get(f"softmax/projection_{index}")
        states = hidden if projection is None else hidden @ projection.T
        table = weights[f"embedding/table_{index}"]
        logits.append(states @ table.T + weights[f"softmax/bias_{index}"])
        if index == 0 and config.cutoffs:
            clusters = states @ weights["softmax/cluster_weight"].T
            logits[0] = np.append(logits[0], clusters + weights["softmax/cluster_bias"], axis=-1)
    head, *tails = map(log_softmax, logits)
    first = config.bins[0][1]
    parts = [head[:, first + index, None] + tail for index, tail in enumerate(tails)]
    return np.concatenate([head[:, :first], *parts], axis=-1)


def compute_recurrent_nats(weights, config, ids, document_starts=None):
    """Returns -log p of the tokens of a text (n,) but the first, by an LSTM or a QRNN: (n - 1,)."""
    step = {"lstm": step_lstm, "qrnn": step_qrnn}[config.model_type]
    state = [(np.zeros(config.d_model),) * 2 for _ in range(config.n_layer)]
    outputs = []
    for place, hidden in enumerate(embed(weights, config, ids[:-1])):
        if document_starts is not None and document_starts[place]:
            state = [tuple(map(np.zeros_like, pair)) for pair in state]
        for index in range(config.n_layer):
            hidden, state[index] = step(weights, index, hidden, *state[index])
        outputs.append(hidden)
    return compute_nats(weights, config, np.array(outputs), ids[1:])


def step_lstm(weights, index, inputs, hidden, cells):
    def read(name):
        return weights[f"layer_{index}/{name}"]

    gates = inputs @ read("kernel") + hidden @ read("recurrent_kernel") + read("bias")
    i, f, g, o = np.split(gates, 4)
    cells = sigmoid(f) * cells + sigmoid(i) * np.tanh(g)
    hidden = sigmoid(o) * np.tanh(cells)
    return hidden, (hidden, cells)


def step_qrnn(weights, index, inputs, before, cells):
    window = inputs if index else np.concatenate([before, inputs])
    gates = window @ weights[f"layer_{index}/kernel"] + weights[f"layer_{index}/bias"]
    z, f, o = np.split(gates, 3)
    cells = sigmoid(f) * cells + (1 - sigmoid(f)) * np.tanh(z)
    return sigmoid(o) * cells, (inputs, cells)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))
