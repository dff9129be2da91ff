"""Steps of dynamic evaluation beside a NumPy model whose gradients are finite differences."""

import functools

import numpy as np
import pytest
from numpy_models import compute_nats, list_weights, read
from small_encodings import make_model
from tables import slow_after

from txl_tf.config import AttentionSpan
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.data import Segment
from txl_tf.scoring.dynamic_evaluation import AdaptingReader

TINY = {"n_token": 7, "n_layer": 1, "d_model": 4, "d_embed": 4, "n_head": 2, "d_head": 3}
TINY |= {"d_inner": 5}
TGT_LEN, SPAN = 5, AttentionSpan(3)
IDS = np.random.default_rng(3).integers(7, size=3 * TGT_LEN + 1).astype(np.int32)
N_COUNTED = 3  # targets of the last segment; the others are masked
RULES = [
    DynamicConfig("rms", 0.01, 0.3, 0.02, 7),
    DynamicConfig("sgd", 0.05, 0.3),
]


def draw_roots(model):
    """Returns roots that grow with the rank: mean(S) is then not the mean of all their values."""
    rng = np.random.default_rng(5)
    weights = model.trainable_variables
    return [len(weight.shape) * rng.random(weight.shape, np.float32) for weight in weights]


def differentiate(function, weights, step=1e-5):
    """Returns the gradient of a function of weights, by central differences."""
    gradients = {}
    for name, weight in weights.items():
        gradients[name] = np.zeros_like(weight)
        for place in np.ndindex(weight.shape):
            ends = []
            for change in (step, -step):
                changed = weight.copy()
                changed[place] += change
                ends.append(function(weights | {name: changed}))
            gradients[name][place] = (ends[0] - ends[1]) / (2 * step)
    return gradients


def change(config, weight, start, gradient, root, mean):
    """Returns a weight after a step, by the formulas of the papers."""
    eta, decay, epsilon = config.learning_rate, config.decay, config.epsilon
    if config.rule == "sgd":
        return weight + decay * (start - weight) - eta * gradient
    rate = np.minimum(root / mean, 1 / decay)
    return weight + decay * rate * (start - weight) - eta * gradient / (root + epsilon)


def cut_segment(start, count):
    """Returns a segment of the text whose first targets count."""
    inputs, targets = (IDS[None, start + shift : start + shift + TGT_LEN] for shift in (0, 1))
    mask = np.arange(TGT_LEN)[None] < count
    return Segment(inputs, targets, mask, document_starts=None, begins=np.array([start == 0]))


@functools.cache
def follow_text(config):
    """Returns the losses of three segments, and the weights after them."""
    model = make_model("relative", **TINY)
    weights = starts = list_weights(model)
    roots = dict(zip(weights, map(np.float64, draw_roots(model)), strict=True))
    mean = np.mean([root.mean() for root in roots.values()])
    memory, losses = [np.zeros((SPAN.mem_len, 4))], []
    for start in range(0, 3 * TGT_LEN, TGT_LEN):
        inputs, targets = (IDS[start + shift : start + shift + TGT_LEN] for shift in (0, 1))
        count = N_COUNTED if start == 2 * TGT_LEN else TGT_LEN

        def score(weights, inputs=inputs, targets=targets, memory=memory):
            mask = np.tri(TGT_LEN, SPAN.mem_len + TGT_LEN, SPAN.mem_len, dtype=bool)
            found = read(weights, model.config, inputs, memory, mask)
            return compute_nats(weights, model.config, found.hidden, targets), found.inputs

        nats, inputs_of_layers = score(weights)
        gradients = differentiate(
            lambda changed, count=count: score(changed)[0][:count].mean(), weights
        )
        weights = {
            name: change(config, weights[name], starts[name], gradients[name], roots[name], mean)
            for name in weights
        }
        losses.append(nats[:count])
        memory = [states[-SPAN.mem_len :] for states in inputs_of_layers]
    return np.concatenate(losses), weights


@pytest.mark.parametrize(
    ("config", "jit"),
    slow_after(1, [*((config, "none") for config in RULES), (RULES[0], "whole")]),
    ids=lambda value: getattr(value, "rule", value),
)
def test_losses_and_weights_are_those_of_numpy(config, jit):
    model = make_model("relative", **TINY)
    roots = draw_roots(model) if config.has_statistics else None
    losses, weights = follow_text(config)
    adapting = AdaptingReader(model, SPAN, config, roots, jit=jit)
    state, found = None, []
    for start in range(0, 3 * TGT_LEN, TGT_LEN):
        count = N_COUNTED if start == 2 * TGT_LEN else TGT_LEN
        nats, state = adapting.read(cut_segment(start, count), state)
        assert not nats[0, count:].any()
        found.extend(nats[0, :count])
    np.testing.assert_allclose(found, losses, rtol=0, atol=2e-5)
    for name, weight in list_weights(adapting.model).items():
        np.testing.assert_allclose(weight, weights[name], rtol=0, atol=2e-5, err_msg=name)


def test_a_masked_segment_only_returns_the_weights():
    model = make_model("relative", **TINY)
    adapting = AdaptingReader(model, SPAN, RULES[1], jit="none")
    weight, source = adapting.model.trainable_variables[3], model.trainable_variables[3]
    weight.assign_add(0.1 * np.ones(weight.shape))
    adapting.read(cut_segment(0, 0), None)
    np.testing.assert_allclose(weight, source + 0.7 * 0.1, rtol=0, atol=1e-6)
