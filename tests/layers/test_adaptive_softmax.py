import itertools

import numpy as np
import pytest
import tensorflow as tf
from tables import slow_after

from txl_tf.config import ModelConfig
from txl_tf.layers import AdaptiveEmbedding, AdaptiveSoftmax, bin_loss
from txl_tf.layers.packed_kernel import PackedPolicy

VOCABULARY, WIDTH, CUTOFFS = 23, 14, (7, 10, 15)
BATCH, LENGTH = 3, 11
CONFIGS = {
    "tables, own projections": {"cutoffs": CUTOFFS, "div_val": 2},
    "one bin": {},
    "one bin, projected": {"d_embed": 11},
    "one table": {"cutoffs": CUTOFFS},
    "one table, own projections": {"cutoffs": CUTOFFS, "d_embed": 11},
    "one table, shared projection": {
        "cutoffs": CUTOFFS,
        "d_embed": 11,
        "proj_share_all_but_first": True,
    },
    "tables, shared projections": {
        "cutoffs": CUTOFFS,
        "div_val": 2,
        "proj_share_all_but_first": True,
    },
    "tables, first unprojected": {"cutoffs": CUTOFFS, "div_val": 2, "proj_same_dim": False},
    "tables, first unprojected, shared": {
        "cutoffs": CUTOFFS,
        "div_val": 2,
        "proj_same_dim": False,
        "proj_share_all_but_first": True,
    },
    "tables, wider than the model": {"cutoffs": CUTOFFS, "div_val": 2, "d_embed": 19},
}
# Logits of the order of 10, from sums of at most 19 terms, in float32.
CLOSE = {"rtol": 0, "atol": 5e-5}


def make_layers(**changes):
    """Returns a softmax and its embedding, all weights random."""
    config = ModelConfig(n_token=VOCABULARY, **{"d_model": WIDTH, "d_embed": WIDTH} | changes)
    embedding, softmax = AdaptiveEmbedding(config), AdaptiveSoftmax(config)
    rng = np.random.default_rng(5)
    for layer in (embedding, softmax):
        layer.build()
        for variable in layer.trainable_variables:
            variable.assign(rng.normal(scale=0.5, size=variable.shape))
    return softmax, embedding


def make_hidden():
    rng = np.random.default_rng(7)
    return tf.constant(rng.normal(size=(BATCH, LENGTH, WIDTH)), "float32")


def make_targets(low=0, high=VOCABULARY):
    rng = np.random.default_rng(3)
    targets = rng.integers(low, high, size=BATCH * LENGTH, dtype="int32")
    targets[: high - low] = np.arange(low, high)  # every id of the range
    return tf.constant(rng.permutation(targets).reshape(BATCH, LENGTH))


def choose_projection(config, index, softmax, embedding):
    """The rule of the 2019 code."""
    of_embedding = embedding.projections[index if config.div_val > 1 else 0]
    if not config.cutoffs or (config.proj_share_all_but_first and index > 0):
        return of_embedding
    narrow = config.d_embed // config.div_val**index
    if narrow == config.d_model and (config.div_val == 1 or not config.proj_same_dim):
        return None
    return softmax.projections[index]


def compute_log_probs_by_hand(softmax, embedding, hidden):
    """Bin by bin over the whole vocabulary, in float64."""
    config, read = softmax.config, lambda array: np.asarray(array, "float64")

    def score(rows, bias, projection):
        narrow = read(hidden) if projection is None else read(hidden) @ read(projection).T
        logits = narrow @ rows.T + bias
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    bounds, head, parts = (0, *config.cutoffs, VOCABULARY), None, []
    whole = np.concatenate([read(bias) for bias in softmax.biases])
    for index, (low, high) in enumerate(itertools.pairwise(bounds)):
        table = read(embedding.tables[index if config.div_val > 1 else 0])
        table = table if config.div_val > 1 else table[low:high]
        projection = choose_projection(config, index, softmax, embedding)
        if index:
            cluster = head[..., bounds[1] + index - 1, None]
            parts.append(cluster + score(table, whole[low:high], projection))
        elif config.cutoffs:
            rows = np.concatenate([table, read(softmax.cluster_weight)])
            bias = np.concatenate([whole[low:high], read(softmax.cluster_bias)])
            head = score(rows, bias, projection)
            parts.append(head[..., :high])
        else:
            parts.append(score(table, whole, projection))
    return np.concatenate(parts, axis=-1)


def gather(log_probs, targets):
    return np.take_along_axis(np.asarray(log_probs), np.asarray(targets)[..., None], axis=-1)[
        ..., 0
    ]


@tf.function  # as in every loop of the package
def differentiate(compute, softmax, embedding, hidden):
    """Returns losses, and their gradients to the hidden states and all weights."""
    weights = [*embedding.trainable_variables, *softmax.trainable_variables]
    variables = [hidden, *(weight.value for weight in weights)]
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        nll = compute(hidden)
        order = tf.range(BATCH * LENGTH, dtype="float32")  # no token weighs as much as another
        loss = tf.reduce_sum(nll * tf.reshape(tf.cos(order), nll.shape))
    gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
    return nll, [tf.convert_to_tensor(gradient) for gradient in gradients]


def assert_losses_and_gradients_agree(softmax, embedding, targets):
    def compute_nll(hidden):
        return softmax(hidden, targets, embedding=embedding)

    def gather_log_probs(hidden):
        return -tf.gather(softmax.log_probs(hidden, embedding), targets, batch_dims=2)

    nll, gradients = differentiate(compute_nll, softmax, embedding, make_hidden())
    expected, others = differentiate(gather_log_probs, softmax, embedding, make_hidden())
    np.testing.assert_allclose(nll, expected, **CLOSE)
    assert np.abs(gradients[0]).max() > 0.1
    for gradient, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(gradient, other, **CLOSE)


@pytest.mark.parametrize("name", CONFIGS)
def test_log_probs_are_those_of_the_bins_by_brute_force(name):
    softmax, embedding = make_layers(**CONFIGS[name])
    expected = compute_log_probs_by_hand(softmax, embedding, make_hidden())
    np.testing.assert_allclose(softmax.log_probs(make_hidden(), embedding), expected, **CLOSE)


@pytest.mark.parametrize("name", slow_after(1, CONFIGS))
def test_gradients_are_those_of_the_whole_distribution(name):
    assert_losses_and_gradients_agree(*make_layers(**CONFIGS[name]), make_targets())


# Chunks of 16 logits (5, 3 and 2 tokens), of one, and of an eighth of the tokens.
@pytest.mark.parametrize(
    ("low", "high", "logits_per_chunk"),
    slow_after(1, [(10, 15, 16), (7, 10, 16), (15, 23, 16), (0, VOCABULARY, 1), (7, 10, 2**24)]),
)
def test_no_token_is_lost_in_chunks_of_any_size(low, high, logits_per_chunk, monkeypatch):
    monkeypatch.setattr(bin_loss, "LOGITS_PER_CHUNK", logits_per_chunk)
    layers = make_layers(cutoffs=CUTOFFS, div_val=2)
    assert_losses_and_gradients_agree(*layers, make_targets(low, high))


@pytest.mark.parametrize("length", [0, 2, LENGTH])  # no chunk, a part of one, and seven
def test_a_head_that_is_traced_for_any_number_of_tokens_takes_chunks(length, monkeypatch):
    """As in a SavedModel: all logits at once may be more than int32 can count."""
    monkeypatch.setattr(bin_loss, "LOGITS_PER_CHUNK", 5 * VOCABULARY)
    softmax, embedding = make_layers()
    specs = [tf.TensorSpec([None, None, WIDTH]), tf.TensorSpec([None, None], tf.int32)]
    compute = tf.function(
        lambda hidden, targets: softmax(hidden, targets, embedding=embedding), input_signature=specs
    )
    hidden, targets = make_hidden()[:, :length], make_targets()[:, :length]
    expected = gather(-softmax.log_probs(hidden, embedding), targets)
    np.testing.assert_allclose(compute(hidden, targets), expected, **CLOSE)
    operations = compute.get_concrete_function().graph.get_operations()
    assert any(operation.type.endswith("While") for operation in operations)


def test_large_logits_of_other_bins_spoil_no_gradient():
    """The last chunk of a bin holds tokens of others, whose exponentials there may overflow."""
    softmax, embedding = make_layers(cutoffs=CUTOFFS)
    hidden = 100 * make_hidden()
    logits = tf.matmul(hidden, embedding.tables[0], transpose_b=True)
    assert tf.reduce_max(tf.abs(logits)) > 200  # exp(89) is infinite in float32
    nll, gradients = differentiate(
        lambda hidden: softmax(hidden, make_targets(), embedding=embedding),
        softmax,
        embedding,
        hidden,
    )
    for values in (nll, *gradients):
        assert np.isfinite(values).all()


def test_one_token_alone_has_its_loss():
    softmax, embedding = make_layers(cutoffs=CUTOFFS, div_val=2)
    hidden, targets = make_hidden()[:1, :1], tf.constant([[16]])
    nll = tf.function(softmax)(hidden, targets, embedding=embedding)
    expected = -gather(softmax.log_probs(hidden, embedding), targets)
    np.testing.assert_allclose(nll, expected, **CLOSE)


def compute_losses_and_gradients(softmax, embedding, hidden):
    weights = [*embedding.trainable_variables, *softmax.trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        nll = softmax(hidden, make_targets(), embedding=embedding)
    return nll, tape.gradient(nll, [hidden, *weights])


@pytest.mark.parametrize("name", ["one bin, projected", "tables, own projections"])
def test_products_are_computed_in_the_dtype_of_the_hidden_states(name):
    softmax, embedding = make_layers(**CONFIGS[name])
    hidden = tf.cast(make_hidden(), "bfloat16")
    nll, gradients = compute_losses_and_gradients(softmax, embedding, hidden)
    expected, exact = compute_losses_and_gradients(softmax, embedding, tf.cast(hidden, "float32"))
    assert nll.dtype == "float32"
    np.testing.assert_allclose(nll, expected, rtol=0.01, atol=0.1)  # bfloat16 has 8 bits
    assert not np.array_equal(nll, expected)
    for gradient, close in zip(gradients, exact, strict=True):
        if close is None:  # a projection that the softmax does not share
            continue
        assert gradient.dtype == ("bfloat16" if close is exact[0] else "float32")
        difference = np.asarray(gradient, "float32") - np.asarray(close)
        assert np.linalg.norm(difference) < 0.02 * np.linalg.norm(close)


def test_losses_of_packed_tables_are_those_of_their_values():
    softmax, embedding = make_layers(cutoffs=CUTOFFS)
    packed = AdaptiveEmbedding(softmax.config, dtype=PackedPolicy("mixed_bfloat16", "bfloat16"))
    packed.build()
    packed.tables[0].assign(embedding.tables[0])
    embedding.tables[0].assign(packed.tables[0].restore())
    hidden, targets = tf.cast(make_hidden(), "bfloat16"), make_targets()
    found = softmax(hidden, targets, embedding=packed)
    np.testing.assert_array_equal(found, softmax(hidden, targets, embedding=embedding))
