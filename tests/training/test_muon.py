"""Muon: which weights it changes, how kernels are divided, and what its iterations do."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_runs import MODEL, TRAINING

import txl_tf
from txl_tf.models.architecture import make_model
from txl_tf.training.dry_run import count_kept_memory
from txl_tf.training.muon import orthogonalize
from txl_tf.training.update_rules import make_optimizer

MUON = dataclasses.replace(TRAINING, optimizer="muon", learning_rate=0.02)
ADAPTIVE = dataclasses.replace(MODEL, cutoffs=(7, 13), div_val=2, untie_r=True)
MODELS = {
    "adaptive": ADAPTIVE,
    "shaw_biased": dataclasses.replace(MODEL, encoding="shaw_biased", n_positions=12),
    "lstm": txl_tf.ModelConfig(23, n_layer=2, d_model=6, d_embed=6, model_type="lstm"),
    "qrnn": txl_tf.ModelConfig(23, n_layer=2, d_model=6, d_embed=6, model_type="qrnn"),
}
ATTENTION = {"attention/qkv_kernel", "attention/o_kernel"}
KERNELS = {*ATTENTION, "attention/r_kernel", "feed_forward/inner/kernel"}
KERNELS |= {"feed_forward/outer/kernel"}
OF_LAYER = {
    "adaptive": KERNELS,
    "shaw_biased": KERNELS - {"attention/r_kernel"},
    "lstm": {"kernel", "recurrent_kernel"},
    "qrnn": {"kernel"},
}
SHAPES = [(3, 5), (7, 2), (11, 11), (1, 13)]


def make_matrix(shape, seed=3):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), tf.float32)


def build(config, training=MUON):
    model = make_model(config, seed=3)
    optimizer = make_optimizer(training)
    optimizer.build(model.trainable_variables)
    return model, optimizer


@pytest.mark.parametrize("name", MODELS)
def test_muon_changes_the_kernels_of_the_layers_alone(name):
    _, optimizer = build(MODELS[name])
    found = {slots.weight.path for slots in optimizer.slots if slots.velocity is None}
    root = name if MODELS[name].is_recurrent else "transformer_xl"
    layers = range(MODELS[name].n_layer)
    assert found == {f"{root}/layer_{index}/{path}" for index in layers for path in OF_LAYER[name]}


@pytest.mark.parametrize("name", ["adaptive", "lstm", "qrnn"])
def test_the_estimate_of_the_memory_is_that_of_the_variables(name):
    training = dataclasses.replace(MUON, mem_len=0, average_from=5)
    _, optimizer = build(MODELS[name], training)
    slots = [variable.numpy() for variable in optimizer.variables if len(variable.shape)]
    n_bytes = sum(slot.nbytes for slot in slots)
    assert count_kept_memory(MODELS[name], training)["optimizer"] == n_bytes


@pytest.mark.parametrize(
    ("name", "path", "n_joint"),
    [
        ("adaptive", "layer_1/attention/qkv_kernel", 3),
        ("lstm", "layer_1/recurrent_kernel", 4),
        ("qrnn", "layer_0/kernel", 3),
    ],
)
def test_a_joint_kernel_changes_as_its_matrices_would_alone(name, path, n_joint):
    model, joint = build(MODELS[name])
    (kernel,) = (weight for weight in model.trainable_variables if weight.path.endswith(path))
    gradient = make_matrix(kernel.shape)
    parts = [keras.Variable(part) for part in np.split(kernel.numpy(), n_joint, axis=1)]
    for part in parts:
        part.group = "kernels"
    single = make_optimizer(dataclasses.replace(MUON, clip=1e6))
    joint = make_optimizer(dataclasses.replace(MUON, clip=1e6))
    for _ in range(3):
        joint.apply([gradient], [kernel])
        single.apply(tf.split(gradient, n_joint, axis=1), parts)
    expected = np.concatenate([part.numpy() for part in parts], axis=1)
    np.testing.assert_allclose(kernel.numpy(), expected, rtol=1e-5, atol=1e-6)  # float32


@pytest.mark.parametrize(("dtype", "error"), [("float32", 0.1), ("bfloat16", 0.15)])
@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_become_about_1(shape, dtype, error):
    matrix = make_matrix(shape)
    (found,) = orthogonalize([matrix], [1], product_dtype=dtype)
    assert found.dtype == tf.float32
    u, _, v = np.linalg.svd(matrix, full_matrices=False)
    moved = np.diag(u.T @ found.numpy() @ v.T)
    assert moved.min() > 1 - error
    assert moved.max() < 1 + error


@pytest.mark.parametrize(("precision", "is_rounded"), [("float32", False), ("bfloat16", True)])
def test_the_products_have_the_precision_of_the_run(precision, is_rounded):
    weight = keras.Variable(np.zeros((13, 29)), dtype="float32")
    weight.group = "kernels"
    training = dataclasses.replace(MUON, warmup_steps=0, precision=precision, clip=1e6)
    make_optimizer(training).apply([make_matrix(weight.shape)], [weight])
    direction = weight.numpy() / weight.numpy()[0, 0]
    exact = orthogonalize([make_matrix(weight.shape)], [1])[0].numpy()
    difference = np.abs(direction - exact / exact[0, 0]).max()
    assert (difference > 1e-3) == is_rounded


def test_small_singular_values_become_larger_and_never_too_large():
    (moved,) = orthogonalize([tf.linalg.diag(tf.constant([1.0, 0.02, 5e-3, 1e-3, 1e-5]))], [1])
    expected = [1, 1, 1, 0.218, 0.00218]
    np.testing.assert_allclose(np.diag(moved), expected, rtol=0.1)


@pytest.mark.parametrize("scale", [1e-12, 1e9])
def test_the_scale_of_a_matrix_does_not_matter(scale):
    matrix = make_matrix((5, 7))
    (found,), (expected,) = orthogonalize([scale * matrix], [1]), orthogonalize([matrix], [1])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)  # float32


def test_a_matrix_of_zeros_stays_as_it_is():
    assert not orthogonalize([tf.zeros((3, 10))], [2])[0].numpy().any()
