"""Transformer-XL as Hugging Face transformers computes it, in plain NumPy and float64.

Written from the names of its tensors and its settings alone, one query at a time.
"""

import itertools

import numpy as np

SMALL = {
    "model_type": "transfo-xl",
    "vocab_size": 23,
    "n_layer": 2,
    "d_model": 6,
    "d_embed": 6,
    "n_head": 3,
    "d_head": 5,
    "d_inner": 7,
    "cutoffs": [5, 11],
    "div_val": 2,
    "untie_r": True,
    "tie_projs": [False, True, True],
    "mem_len": 7,
    "same_length": True,
    "clamp_len": 4,
    "dropout": 0.0,
    "dropatt": 0.0,
    "layer_norm_epsilon": 1e-5,
}


def list_bins(settings):
    bounds = [0, *settings["cutoffs"], settings["vocab_size"]]
    return list(itertools.pairwise(bounds))


def list_shapes(settings):
    """Returns the shapes of the tensors that a folder with these settings holds, each once."""
    d_model, d_embed, d_inner = (settings[name] for name in ("d_model", "d_embed", "d_inner"))
    n_head, d_head = settings["n_head"], settings["d_head"]
    shapes, bins = {}, list_bins(settings)
    for index in range(settings["n_layer"]):
        attention, forward = (
            f"transformer.layers.{index}.{part}" for part in ("dec_attn", "pos_ff")
        )
        shapes |= {
            f"{attention}.qkv_net.weight": (3 * n_head * d_head, d_model),
            f"{attention}.r_net.weight": (n_head * d_head, d_model),
            f"{attention}.o_net.weight": (d_model, n_head * d_head),
            f"{forward}.CoreNet.0.weight": (d_inner, d_model),
            f"{forward}.CoreNet.0.bias": (d_inner,),
            f"{forward}.CoreNet.3.weight": (d_model, d_inner),
            f"{forward}.CoreNet.3.bias": (d_model,),
        }
        for part in (attention, forward):
            shapes |= {f"{part}.layer_norm.{name}": (d_model,) for name in ("weight", "bias")}
    scopes = [f"transformer.layers.{index}.dec_attn" for index in range(settings["n_layer"])]
    for scope in scopes if settings["untie_r"] else ["transformer"]:
        shapes |= {f"{scope}.{name}": (n_head, d_head) for name in ("r_w_bias", "r_r_bias")}
    if len(bins) > 1:
        shapes["crit.cluster_weight"] = (len(bins) - 1, d_embed)
        shapes["crit.cluster_bias"] = (len(bins) - 1,)
    is_divided = settings["div_val"] > 1
    for index, (low, high) in enumerate(bins if is_divided else [(0, settings["vocab_size"])]):
        width = d_embed // settings["div_val"] ** index
        shapes[f"transformer.word_emb.emb_layers.{index}.weight"] = (high - low, width)
        shapes[f"crit.out_layers.{index}.bias"] = (high - low,)
        if is_divided or d_embed != d_model:
            shapes[f"transformer.word_emb.emb_projs.{index}"] = (d_model, width)
    for index, is_tied in enumerate(settings["tie_projs"]):
        if not is_tied and (is_divided or d_embed != d_model):
            width = d_embed // settings["div_val"] ** index
            shapes[f"crit.out_projs.{index}"] = (d_model, width)
    return shapes


def make_tensors(settings):
    """Returns random tensors, large enough to matter."""
    rng = np.random.default_rng(13)
    return {
        name: rng.normal(scale=0.5, size=shape).astype("float32")
        for name, shape in list_shapes(settings).items()
    }


def compute_losses(settings, tensors, tokens, tgt_len):
    """Returns the losses of each segment, (B, T) each, memory from zeros."""
    tensors = {name: array.astype("float64") for name, array in tensors.items()}
    shape = (len(tokens), settings["mem_len"], settings["d_model"])
    memory = [np.zeros(shape) for _ in range(settings["n_layer"])]
    losses = []
    for start in range(0, tokens.shape[1] - 1, tgt_len):
        hidden = _embed(settings, tensors, tokens[:, start : start + tgt_len])
        for index in range(settings["n_layer"]):
            context = np.concatenate([memory[index], hidden], axis=1)
            memory[index] = context[:, context.shape[1] - settings["mem_len"] :]
            hidden = _run_layer(settings, tensors, index, hidden, context)
        log_probs = _compute_log_probs(settings, tensors, hidden)
        targets = tokens[:, start + 1 : start + 1 + tgt_len, None]
        losses.append(-np.take_along_axis(log_probs, targets, axis=-1)[..., 0])
    return losses


def _embed(settings, tensors, ids):
    vectors = np.zeros((*ids.shape, settings["d_model"]))
    for place in np.ndindex(ids.shape):
        index, local = 0, ids[place]
        if settings["div_val"] > 1:
            (index, low), *_ = [
                (index, low)
                for index, (low, high) in enumerate(list_bins(settings))
                if low <= ids[place] < high
            ]
            local = ids[place] - low
        vector = tensors[f"transformer.word_emb.emb_layers.{index}.weight"][local]
        projection = tensors.get(f"transformer.word_emb.emb_projs.{index}")
        vectors[place] = vector if projection is None else projection @ vector
    return vectors * settings["d_model"] ** 0.5


def _run_layer(settings, tensors, index, hidden, context):
    scope = f"transformer.layers.{index}"
    attended = _attend(settings, tensors, f"{scope}.dec_attn", hidden, context)
    hidden = _normalize(settings, tensors, f"{scope}.dec_attn", hidden + attended)
    inner = hidden @ tensors[f"{scope}.pos_ff.CoreNet.0.weight"].T
    inner = np.maximum(inner + tensors[f"{scope}.pos_ff.CoreNet.0.bias"], 0)
    outer = inner @ tensors[f"{scope}.pos_ff.CoreNet.3.weight"].T
    outer += tensors[f"{scope}.pos_ff.CoreNet.3.bias"]
    return _normalize(settings, tensors, f"{scope}.pos_ff", hidden + outer)


def _attend(settings, tensors, scope, hidden, context):
    n_head, d_head, mem_len = (settings[name] for name in ("n_head", "d_head", "mem_len"))
    kernels = np.split(tensors[f"{scope}.qkv_net.weight"], 3)
    queries, keys, values = (
        (states @ kernel.T).reshape(*states.shape[:2], n_head, d_head)
        for states, kernel in zip((hidden, context, context), kernels, strict=True)
    )
    owner = scope if settings["untie_r"] else "transformer"
    content_bias, position_bias = (tensors[f"{owner}.{name}"] for name in ("r_w_bias", "r_r_bias"))
    frequencies = 10000.0 ** -(np.arange(0, settings["d_model"], 2) / settings["d_model"])
    attended = np.zeros((*hidden.shape[:2], n_head * d_head))
    for row, i in np.ndindex(hidden.shape[:2]):
        last = i + mem_len  # its own place
        seen = np.arange(i + 1 if settings["same_length"] else 0, last + 1)
        distances = last - seen
        if settings["clamp_len"] > 0:
            distances = np.minimum(distances, settings["clamp_len"])
        angles = distances[:, None] * frequencies
        positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
        positions = (positions @ tensors[f"{scope}.r_net.weight"].T).reshape(-1, n_head, d_head)
        for head in range(n_head):
            query = queries[row, i, head]
            scores = keys[row, seen, head] @ (query + content_bias[head])
            scores += positions[:, head] @ (query + position_bias[head])
            weights = np.exp(_log_softmax(scores / d_head**0.5))
            part = slice(head * d_head, (head + 1) * d_head)
            attended[row, i, part] = weights @ values[row, seen, head]
    return attended @ tensors[f"{scope}.o_net.weight"].T


def _normalize(settings, tensors, scope, states):
    centered = states - states.mean(axis=-1, keepdims=True)
    variance = (centered**2).mean(axis=-1, keepdims=True)
    scaled = centered / np.sqrt(variance + settings["layer_norm_epsilon"])
    gain, bias = (tensors[f"{scope}.layer_norm.{name}"] for name in ("weight", "bias"))
    return scaled * gain + bias


def _compute_log_probs(settings, tensors, hidden):
    bins, is_divided = list_bins(settings), settings["div_val"] > 1
    parts = []
    for index, (low, high) in enumerate(bins):
        source = index if is_divided else 0
        place = slice(None) if is_divided else slice(low, high)
        table = tensors[f"transformer.word_emb.emb_layers.{source}.weight"][place]
        bias = tensors[f"crit.out_layers.{source}.bias"][place]
        owner = f"crit.out_projs.{index}"
        if settings["tie_projs"][index]:
            owner = f"transformer.word_emb.emb_projs.{source}"
        if index == 0 and len(bins) > 1:
            table = np.concatenate([table, tensors["crit.cluster_weight"]])
            bias = np.concatenate([bias, tensors["crit.cluster_bias"]])
        states = hidden @ tensors[owner] if owner in tensors else hidden
        parts.append(_log_softmax(states @ table.T + bias))
    head, size = parts[0], bins[0][1]
    tails = [head[..., size + i, None] + tail for i, tail in enumerate(parts[1:])]
    return np.concatenate([head[..., :size], *tails], axis=-1)


def _log_softmax(scores):
    scores = scores - scores.max(axis=-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
