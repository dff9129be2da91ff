"""The recurrent language models in NumPy and float64, token by token."""

import numpy as np


def read_weights(model):
    """Returns the weights by their paths without the name of the model."""
    return {
        weight.path.partition("/")[2]: weight.numpy().astype(np.float64)
        for weight in model.trainable_variables
    }


def compute_nats(config, weights, ids, document_starts=None):
    """Returns -log p of the tokens of a text (n,) but the first, (n - 1,)."""
    state = [(np.zeros(config.d_model),) * 2 for _ in range(config.n_layer)]
    nats = []
    for place, token in enumerate(ids[:-1]):
        if document_starts is not None and document_starts[place]:
            state = [tuple(map(np.zeros_like, pair)) for pair in state]
        hidden = embed(config, weights, token)
        step = {"lstm": step_lstm, "qrnn": step_qrnn}[config.model_type]
        for index in range(config.n_layer):
            hidden, state[index] = step(weights, index, hidden, *state[index])
        nats.append(-compute_log_probs(config, weights, hidden)[ids[place + 1]])
    return np.array(nats)


def embed(config, weights, token):
    index = find_bin(config, token)
    vector = weights[f"embedding/table_{index}"][token - config.bins[index][0]]
    return vector @ weights[f"embedding/projection_{index}"] * np.sqrt(config.d_model)


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


def compute_log_probs(config, weights, hidden):
    """Returns log p of every token, (V,)."""
    logits = []
    for index in range(len(config.bins)):
        projected = hidden @ weights[f"softmax/projection_{index}"].T
        table = weights[f"embedding/table_{index}"]
        logits.append(projected @ table.T + weights[f"softmax/bias_{index}"])
        if index == 0:
            clusters = projected @ weights["softmax/cluster_weight"].T
            logits[0] = np.concatenate([logits[0], clusters + weights["softmax/cluster_bias"]])
    head, *tails = map(log_softmax, logits)
    first = config.bins[0][1]
    return np.concatenate([head[:first], *(head[first + k] + x for k, x in enumerate(tails))])


def find_bin(config, token):
    return next(index for index, (_, high) in enumerate(config.bins) if token < high)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def log_softmax(x):
    return x - x.max() - np.log(np.exp(x - x.max()).sum())
