"""A text read with any position encoding in NumPy and float64, one score at a time.

It follows table 6 of the paper and the definitions of the encodings, and shares no code with them.
"""

import numpy as np


def read_text(model, ids, tgt_len, span):
    """Returns the hidden states (n, D) of a text that is read in segments from an empty memory."""
    config, weights = model.config, list_weights(model)
    memory = [np.zeros((span.mem_len, config.d_model))] * config.n_layer
    parts = []
    for start in range(0, len(ids), tgt_len):
        segment = ids[start : start + tgt_len]
        hidden, memory = read_segment(weights, config, segment, memory, span)
        parts.append(hidden)
    return np.concatenate(parts)


def list_weights(model):
    """Returns the trainable weights in float64 by name."""
    return {
        variable.path.removeprefix(f"{model.name}/"): np.asarray(variable, np.float64)
        for variable in model.trainable_variables
    }


def read_segment(weights, config, segment, memory, span):
    """Returns the hidden states (t, D) of a segment (t,), and the new memory."""
    hidden = weights["embedding/table_0"][segment] * np.sqrt(config.d_model)
    if config.encoding == "sinusoid":
        hidden = hidden + [make_sinusoids(place, config) for place in range(len(segment))]
    new_memory = []
    for index in range(config.n_layer):
        if config.encoding == "learned":
            hidden = hidden + weights["place_table"][index, : len(segment)]
        states = np.concatenate([memory[index], hidden])
        new_memory.append(states[len(states) - span.mem_len :])
        hidden = run_layer(weights, config, index, hidden, states, span)
    return hidden, new_memory


def compute_nats(weights, hidden, targets):
    """Returns -log p of the targets (n,) after hidden states (n, D), for a single bin."""
    logits = hidden @ weights["embedding/table_0"].T + weights["softmax/bias_0"]
    totals = np.log(np.exp(logits).sum(axis=1))
    return totals - logits[np.arange(len(targets)), targets]


def run_layer(weights, config, index, hidden, states, span):
    n_head, d_head, mem_len = config.n_head, config.d_head, len(states) - len(hidden)

    def read(name):
        return weights[f"layer_{index}/{name}"]

    kernels = np.split(read("attention/qkv_kernel"), 3, axis=1)
    query = (hidden @ kernels[0]).reshape(-1, n_head, d_head)
    keys, values = ((states @ kernel).reshape(-1, n_head, d_head) for kernel in kernels[1:])
    attended = np.zeros_like(query)
    for i in range(len(hidden)):
        seen = range(i if span.same_length else 0, i + mem_len + 1)
        for head in range(n_head):
            scores = []
            for j in seen:
                distance = i + mem_len - j
                if span.clamp_len > 0:
                    distance = min(distance, span.clamp_len)
                pair = query[i, head], keys[j, head]
                scores.append(score(weights, config, index, head, *pair, distance))
            shares = np.exp(scores) / np.exp(scores).sum()
            attended[i, head] = sum(
                share * values[j, head] for share, j in zip(shares, seen, strict=True)
            )
    attended = attended.reshape(len(hidden), -1) @ read("attention/o_kernel")
    normed = normalize(read, "attention_norm", hidden + attended)
    inner = np.maximum(
        normed @ read("feed_forward/inner/kernel") + read("feed_forward/inner/bias"), 0
    )
    changed = inner @ read("feed_forward/outer/kernel") + read("feed_forward/outer/bias")
    return normalize(read, "feed_forward_norm", normed + changed)


def score(weights, config, layer, head, query, key, distance):
    """Returns the score of a query and a key, (H,) each, by the table of the encodings."""
    total = query @ key
    row = (layer, min(distance, config.n_positions - 1), head)  # farther distances share the last
    if config.encoding == "shaw":
        total += query @ weights["distance_table"][row]
    if config.encoding == "shaw_biased":
        total += weights["content_bias"][layer, head] @ key
        total += query @ weights["distance_table"][row] + weights["distance_bias"][row]
    if config.encoding == "relative":
        part = (layer, head) if config.untie_r else (head,)
        kernel = weights[f"layer_{layer}/attention/r_kernel"]
        kernel = kernel.reshape(config.d_model, config.n_head, config.d_head)[:, head]
        position = make_sinusoids(distance, config) @ kernel
        total += weights["content_bias"][part] @ key
        total += (query + weights["position_bias"][part]) @ position
    return total / np.sqrt(config.d_head)


def make_sinusoids(position, config):
    frequencies = 10000.0 ** (-np.arange(0, config.d_model, 2) / config.d_model)
    return np.concatenate([np.sin(position * frequencies), np.cos(position * frequencies)])


def normalize(read, name, states):
    centered = states - states.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(states.var(axis=-1, keepdims=True) + 1e-12)
    return centered / deviation * read(f"{name}/gamma") + read(f"{name}/beta")
