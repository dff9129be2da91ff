"""All optimizers against their formulas: decay, penalty, rates, skipped steps and averages."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_runs import MODEL

import txl_tf
from txl_tf.training.update_rules import make_optimizer

KINDS = pytest.mark.parametrize("kind", ["adam", "adamw", "lamb", "muon"])
DECAYING = pytest.mark.parametrize("kind", ["adamw", "lamb", "muon"])
SHAPES = {"kernel": (3, 5), "table_0": (7, 2), "bias": (11,), "gamma": (2,), "content_bias": (2, 3)}
GROUPS = {"kernel": "kernels", "table_0": "tables"}  # the others are vectors
DECAYED = set(GROUPS)
RATE, DECAY, CLIP, EMA = 0.1, 0.3, 13.0, 0.7
# The penalty, and rates of their own for the tables and for a step.
PENALTY, TABLE_RATIO, STEP_RATIO = 0.2, 2.0, 0.5


def make_config(kind, **changes):
    """A schedule with another rate at every step; Adam has no decay."""
    fields = {"optimizer": kind, "weight_decay": 0.0 if kind == "adam" else DECAY, "clip": CLIP}
    fields |= {"learning_rate": RATE, "train_steps": 17, "min_lr_ratio": 0.5}
    return txl_tf.TrainConfig(**fields | changes)


def make_values(scale=1.0):
    rng = np.random.default_rng(3)
    return {name: scale * rng.normal(size=shape) for name, shape in SHAPES.items()}


def make_gradients(n_steps):
    """Gradients whose norm is above the clipping in every other step; some are near epsilon."""
    rng, steps = np.random.default_rng(5), []
    for step in range(n_steps):
        scale = (0.1, 7.0)[step % 2]
        gradients = {name: scale * rng.normal(size=shape) for name, shape in SHAPES.items()}
        steps.append(gradients | {"gamma": [1e-6, 1e-8] * gradients["gamma"]})
    return steps


def make_start():
    """Weights with a norm of 0 (the bias), above 10 (the table) and between."""
    values = make_values()
    return values | {"bias": 0 * values["bias"], "table_0": 7 * values["table_0"]}


def make_weights(values):
    weights = [keras.Variable(x, name=name, dtype="float32") for name, x in values.items()]
    for weight in weights:
        weight.group = GROUPS.get(weight.name, "vectors")
    return weights


def clip(gradients):
    norm = np.sqrt(sum(np.sum(gradient**2) for gradient in gradients.values()))
    return {name: gradient * min(1, CLIP / norm) for name, gradient in gradients.items()}, norm


def compute_update(kind, name, weight, m, v, t, rate):
    """Returns what a step takes off a weight, by the papers."""
    decay = DECAY if name in DECAYED and kind != "adam" else 0.0
    if kind == "muon" and name == "kernel":
        factor = 0.2 * np.sqrt(max(weight.shape))
        return rate * (factor * move_singular_values(m) + decay * weight)
    if kind != "lamb":  # Adam of TensorFlow 1: epsilon beside the root that is not yet corrected
        adam = np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-8)
        return rate * (adam + decay * weight)
    update = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + decay * weight
    norm = np.linalg.norm(weight)
    ratio = min(norm, 10.0) / np.linalg.norm(update) if norm > 0 else 1.0
    return rate * ratio * update


def move_singular_values(matrix):
    """Returns what the iterations of Muon make of a matrix, by way of its singular values."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    s = s / np.linalg.norm(s)
    s = 8.1400 * s - 23.0368 * s**3 + 16.3967 * s**5
    s = 3.8518 * s - 2.7640 * s**3 + 0.5084 * s**5
    s = 3.1586 * s - 2.2837 * s**3 + 0.4577 * s**5
    s = 2.1981 * s - 1.5352 * s**3 + 0.3822 * s**5
    return u @ np.diag(s) @ v


def simulate(kind, values, all_gradients, schedule, *, is_penalized=False):
    """Returns weights, and their averages, after each of the steps, in float64."""
    m, v = ({name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in range(2))
    weights, averages, history = dict(values), dict(values), []
    for step, gradients in enumerate(all_gradients):
        for name, gradient in clip(gradients)[0].items():
            rate = float(schedule(step))
            if is_penalized:
                gradient = gradient + PENALTY * weights[name]
                rate *= STEP_RATIO * (TABLE_RATIO if name == "table_0" else 1.0)
            beta = 0.95 if kind == "muon" and name == "kernel" else 0.9
            m[name] = beta * m[name] + (1 - beta) * gradient
            v[name] = 0.999 * v[name] + 0.001 * gradient**2
            moment = 0.95 * m[name] + 0.05 * gradient if beta == 0.95 else m[name]  # Nesterov
            weight = weights[name]
            weights[name] = weight - compute_update(
                kind, name, weight, moment, v[name], step + 1, rate
            )
            averages[name] = EMA * averages[name] + (1 - EMA) * weights[name]
        history.append((dict(weights), dict(averages)))
    return history


def take_steps(optimizer, weights, all_gradients, **options):
    for step in all_gradients:
        gradients = [tf.constant(step[weight.name], tf.float32) for weight in weights]
        optimizer.apply(gradients, weights, **options)


def compare(variable, expected):
    # float32; the first values of 1 - .999**t have 4 digits, and steps are up to 1.
    np.testing.assert_allclose(
        variable.numpy(), expected, rtol=1e-4, atol=2e-5, err_msg=variable.path
    )


@KINDS
@pytest.mark.parametrize("is_penalized", [False, True])
def test_steps_are_those_of_the_papers_and_averages_follow(kind, is_penalized):
    fields, options = {}, {}
    if is_penalized:
        fields = {"l2": PENALTY, "embed_lr_ratio": TABLE_RATIO}
        options = {"rate_factor": tf.constant(STEP_RATIO)}
    values, gradients = make_start(), make_gradients(7)
    norms = [clip(step)[1] for step in gradients]
    assert min(norms) < CLIP < max(norms)
    weights, optimizer = make_weights(values), make_optimizer(make_config(kind, ema=EMA, **fields))
    expected = simulate(kind, values, gradients, optimizer.schedule, is_penalized=is_penalized)
    for step in range(7):
        take_steps(optimizer, weights, gradients[step : step + 1], **options)
        for weight in weights:
            compare(weight, expected[step][0][weight.name])
    assert [weight for weight, _ in optimizer.averaged_weights] == weights
    for weight, average in optimizer.averaged_weights:
        compare(average, expected[-1][1][weight.name])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"l2": -0.1}, r"`l2` must not be negative. Received: l2=-0.1"),
        ({"embed_lr_ratio": 0}, r"`embed_lr_ratio` must be positive. Received: embed_lr_ratio=0"),
    ],
)
def test_a_penalty_or_rate_that_cannot_be_is_an_error(fields, message):
    with pytest.raises(txl_tf.UserError, match=message):
        txl_tf.TrainConfig(**fields)


@KINDS
def test_a_skipped_step_changes_nothing_but_the_count(kind):
    config = make_config(kind, ema=EMA, l2=PENALTY)
    weights, optimizer = make_weights(make_start()), make_optimizer(config)
    take_steps(optimizer, weights, make_gradients(3))
    before = {variable.path: variable.numpy() for variable in optimizer.variables + weights}
    (gradients,) = make_gradients(1)
    gradients["kernel"][1, 2] = np.inf
    take_steps(optimizer, weights, [gradients])
    after = {variable.path: variable.numpy() for variable in optimizer.variables + weights}
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    assert changed == {f"{kind}/iteration"}


@DECAYING
def test_matrices_of_the_model_decay_alone(kind):
    config = dataclasses.replace(MODEL, cutoffs=(7, 13), div_val=2, untie_r=True)
    model, optimizer = txl_tf.TransformerXL(config, seed=3), make_optimizer(make_config(kind))
    weights = model.trainable_variables
    for weight in weights:
        weight.assign(np.ones(weight.shape))
    optimizer.apply([tf.zeros(weight.shape) for weight in weights], weights)
    decayed = {weight.path for weight in weights if weight.numpy().max() < 1}
    kinds = ("kernel", "table_", "projection_", "cluster_weight")
    assert decayed == {w.path for w in weights if w.name.startswith(kinds) or "_kernel" in w.name}
    kept = {weight.name for weight in weights if np.all(weight.numpy() == 1)}
    biases = {"bias", "bias_0", "bias_1", "bias_2", "cluster_bias", "content_bias", "position_bias"}
    assert kept == biases | {"gamma", "beta"}


def test_averages_begin_once_where_a_function_builds_the_optimizer():
    weight, optimizer = keras.Variable([2.0]), make_optimizer(make_config("adamw", ema=EMA))

    @tf.function(autograph=False)
    def step():
        optimizer.apply([tf.constant([0.5])], [weight])

    expected = weight.numpy()
    for _ in range(3):
        step()
        expected = EMA * expected + (1 - EMA) * weight.numpy()
    ((_, average),) = optimizer.averaged_weights
    np.testing.assert_allclose(average.numpy(), expected, rtol=1e-6)  # float32


def test_averages_begin_again_at_the_weights():
    weights, optimizer = make_weights(make_start()), make_optimizer(make_config("lamb", ema=EMA))
    take_steps(optimizer, weights, make_gradients(3))
    optimizer.restart_averages()
    for weight, average in optimizer.averaged_weights:
        np.testing.assert_array_equal(average.numpy(), weight.numpy(), err_msg=weight.name)


@pytest.mark.parametrize("skipped", [(), (5,), (6, 9)])
def test_a_mean_is_that_of_the_weights_after_later_steps(skipped):
    """From step 4 on, without those that are skipped; until then it is the weight."""
    weights = make_weights({"kernel": make_start()["kernel"]})
    optimizer, made = make_optimizer(make_config("adam", average_from=4)), []
    for step, gradients in enumerate(make_gradients(11), 1):
        if step in skipped:
            gradients["kernel"][1, 2] = np.nan
        take_steps(optimizer, weights, [gradients])
        ((weight, average),) = optimizer.averaged_weights
        if step > 4 and step not in skipped:
            made.append(weight.numpy())
        expected = np.mean(made or [weight.numpy()], axis=0, dtype=np.float64)
        np.testing.assert_allclose(average.numpy(), expected, rtol=1e-5, atol=1e-6)  # float32
