"""A text read at once in NumPy and float64, with every term of the scores by itself.

The memory holds the states of the tokens before a segment, so a mask over the whole text replaces
it: a query sees the keys that would be in its memory or in its segment.
"""

from typing import NamedTuple

import numpy as np

from txl_tf.lab.verify import reference
from txl_tf.release.names import SCOPE, list_entries


class TextTrace(NamedTuple):
    """L layers, N heads, n tokens; the M keys before them are the empty memory."""

    mask: np.ndarray  # (n, M + n), true where a query sees the key
    is_token: np.ndarray  # (n, M + n), true where the key is a token
    terms: np.ndarray  # (4, L, N, n, M + n), also where a query does not see the key
    weights: np.ndarray  # (L, N, n, M + n)
    nats: np.ndarray  # (n - 1,)


def trace_text(model, ids, span, tgt_len, *, masks_empty, document_starts=None, use_weights=None):
    """Reads a text; `use_weights` (L, N, n, M + n) take the place of its own weights."""
    config = model.config
    variables = {SCOPE + entry.source: entry.target.numpy() for entry in list_entries(model)}
    query = np.arange(len(ids))[:, None]
    key = np.arange(-span.mem_len, len(ids))[None, :]
    mask = (key <= query) & (key >= query // tgt_len * tgt_len - span.mem_len)
    if span.same_length:
        mask &= key >= query - span.mem_len + span.counts_self
    is_token = np.broadcast_to(key >= 0, mask.shape)
    if document_starts is not None:  # a document sees neither another one nor empty entries
        documents = np.cumsum(document_starts)
        mask &= documents[:, None] == documents[np.maximum(key[0], 0)]
    if masks_empty or document_starts is not None:
        mask &= is_token
    hidden = reference.embed(variables, config, ids[None])[0]
    terms, weights = [], []
    for index in range(config.n_layer):
        scope = f"{SCOPE}layer_{index}"
        states = np.concatenate([np.zeros((span.mem_len, config.d_model)), hidden])

        def read(name, scope=scope):
            return variables[f"{scope}/{name}"].astype(np.float64)

        kernels = np.split(read("rel_attn/qkv/kernel"), 3, axis=1)
        kernels.append(read("rel_attn/r/kernel"))
        w_q, w_k, w_v, w_r = (
            kernel.reshape(-1, config.n_head, config.d_head) for kernel in kernels
        )
        u, v = (variables[SCOPE + name].astype(np.float64) for name in ("r_w_bias", "r_r_bias"))
        if config.untie_r:
            u, v = u[index], v[index]
        q = np.einsum("id,dnh->nih", hidden, w_q)
        k, values = (np.einsum("jd,dnh->njh", states, kernel) for kernel in (w_k, w_v))
        found = np.zeros((4, config.n_head, *mask.shape))
        for i in range(len(ids)):
            for j in range(mask.shape[1]):
                distance = i + span.mem_len - j
                if distance < 0:
                    continue
                sinusoids = reference.make_sinusoids(distance, config, span.clamp_len)
                row = np.einsum("d,dnh->nh", sinusoids, w_r)
                found[1, :, i, j] = (q[:, i] * row).sum(axis=-1)
                found[3, :, i, j] = (v * row).sum(axis=-1)
                if is_token[i, j]:
                    found[0, :, i, j] = (q[:, i] * k[:, j]).sum(axis=-1)
                    found[2, :, i, j] = (u * k[:, j]).sum(axis=-1)
        terms.append(found / np.sqrt(config.d_head))
        weights.append(soften(terms[-1].sum(axis=0), mask))
        used = weights[-1] if use_weights is None else use_weights[index]
        attended = np.einsum("nij,njh->inh", used * is_token, values)
        attended = attended.reshape(len(ids), -1) @ read("rel_attn/o/kernel")
        normed = reference.normalize(variables, f"{scope}/rel_attn", hidden + attended)
        inner = np.maximum(normed @ read("ff/layer_1/kernel") + read("ff/layer_1/bias"), 0)
        changed = inner @ read("ff/layer_2/kernel") + read("ff/layer_2/bias")
        hidden = reference.normalize(variables, f"{scope}/ff", normed + changed)
    nats = compute_nats(variables, config, hidden, ids)
    return TextTrace(mask, is_token, np.stack(terms, axis=1), np.stack(weights), nats)


def soften(scores, mask):
    """Returns the softmax of scores (..., n, S) over the visible keys (n, S)."""
    return np.exp(reference.log_softmax(np.where(mask, scores, -np.inf)))


def compute_nats(variables, config, hidden, ids):
    head, bins = reference.compute_log_probs(variables, config, hidden[None])
    nats = []
    for place, token in enumerate(ids[1:]):
        index, low = reference.find_bin(config, token)
        if index == 0:
            nats.append(-head[0, place, token])
        else:
            cluster = config.bins[0][1] + index - 1
            nats.append(-(head[0, place, cluster] + bins[index - 1][0, place, token - low]))
    return np.array(nats)
