"""The comparison with the reference names the layer and the term of each mistake."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
from golden_cases import load_case
from keras import ops
from small_release import SIZES, draw_weights, write_checkpoint
from tables import slow_after

import txl_tf.models.transformer_xl
from txl_tf.config import AttentionSpan, ModelConfig
from txl_tf.lab.verify import comparison
from txl_tf.lab.verify.comparison import TOLERANCE, compare_model, draw_text, measure_difference
from txl_tf.layers import (
    RelativeAttention,
    attention,
    encodings,
    left_shift,
    make_attention_mask,
    make_position_table,
)
from txl_tf.layers.adaptive_softmax import AdaptiveSoftmax
from txl_tf.release import load_model
from txl_tf.release.weights import read_weights

PLAIN, SAME_LENGTH = AttentionSpan(7), AttentionSpan(7, same_length=True, clamp_len=3)


def compare(name="char", change=None, **arguments):
    """Returns the checks of a golden model, into which a mistake is put first."""
    case = load_case(name)
    model = load_model(case.checkpoint, case.config)
    if change:
        change(model)
    arguments = {"tgt_len": 5, "spans": [SAME_LENGTH]} | arguments
    return compare_model(model, read_weights(case.checkpoint), **arguments)


def get_blame(checks):
    """Returns layer and term of the first check that parts."""
    first = comparison.find_first(checks)
    return first and (first.layer, first.term)


def assert_is_blamed(checks, layer, term):
    """The first to part is this one, and nothing parts in a layer but this term."""
    assert get_blame(checks) == (layer, term)
    assert {check.term for check in checks if check.layer is not None and not check.agrees} <= {
        term
    }


@pytest.mark.parametrize("name", slow_after(1, ["word_large", "lm1b", "word_base", "char"]))
def test_imported_weights_agree_in_every_term(name):
    checks = compare(name, spans=[PLAIN, SAME_LENGTH])
    assert get_blame(checks) is None
    assert max(check.difference for check in checks) < TOLERANCE / 10
    config = load_case(name).config
    layers = {(check.layer, check.term) for check in checks if check.layer is not None}
    expected = {(n, term) for n in range(config.n_layer) for term in comparison.LAYER_TERMS}
    assert layers == expected
    bins = range(len(config.bins))
    names = {f"{kind} {n}" for kind in (comparison.EMBEDDING, comparison.SOFTMAX) for n in bins}
    assert {check.term for check in checks if check.layer is None} == names | {
        comparison.END_TO_END
    }


def test_a_model_with_dropout_and_without_memory_agrees():
    case = load_case("char")
    config = dataclasses.replace(case.config, dropout=0.3, dropatt=0.3)
    model = load_model(case.checkpoint, config)
    checks = compare_model(
        model, read_weights(case.checkpoint), tgt_len=8, spans=[AttentionSpan(0)]
    )
    assert get_blame(checks) is None


# What is wrong for all layers: a function of the layers, put where the model finds it.


def interleave_positions(length, width, **arguments):
    sines, cosines = ops.split(make_position_table(length, width, **arguments), 2, axis=-1)
    return ops.reshape(ops.stack([sines, cosines], axis=-1), (length, width))


def ignore_clamp(length, width, clamp_len=-1):
    return make_position_table(length, width)


def see_one_key_more(tgt_len, mem_len, same_length=False, **_):
    return make_attention_mask(tgt_len, mem_len + 1, same_length=same_length)[:, :-1]


def shift_one_more(scores):
    return ops.roll(left_shift(scores), -1, axis=-1)


def keep_oldest(memory, hidden):
    return ops.concatenate([memory, hidden], axis=1)[:, : memory.shape[1]]


FUNCTIONS = [
    (encodings, "make_position_table", interleave_positions, "position"),
    (encodings, "make_position_table", ignore_clamp, "position"),
    (attention, "left_shift", shift_one_more, "position"),
    (txl_tf.models.transformer_xl, "make_attention_mask", see_one_key_more, "mask"),
    (txl_tf.models.transformer_xl, "update_memory", keep_oldest, "memory"),
]


@pytest.mark.parametrize(("place", "name", "mistake", "term"), slow_after(2, FUNCTIONS))
def test_a_mistake_of_all_layers_is_named_at_the_first(monkeypatch, place, name, mistake, term):
    monkeypatch.setattr(place, name, mistake)
    assert_is_blamed(compare(), 0, term)


def test_a_mask_wrong_with_same_length_alone_is_found_there(monkeypatch):
    def see_all(tgt_len, mem_len, same_length=False, **_):
        return make_attention_mask(tgt_len, mem_len)

    monkeypatch.setattr(txl_tf.models.transformer_xl, "make_attention_mask", see_all)
    checks = compare(spans=[PLAIN, SAME_LENGTH])
    assert_is_blamed(checks, 0, "mask")
    assert comparison.find_first(checks).span == SAME_LENGTH


# What is wrong in one layer: its weights, or one of its methods.


def permute_qkv(order, layer):
    kernel = layer.attention.qkv_kernel
    parts = np.split(np.asarray(kernel), 3, axis=1)
    kernel.assign(np.concatenate([parts[index] for index in order], axis=1))


def forget_memory(layer):
    project = layer.attention.project
    layer.attention.project = lambda hidden, memory, **options: project(
        hidden, memory * 0, **options
    )


def set_epsilon(epsilon, layer):
    layer.feed_forward_norm.epsilon = epsilon


def use_gelu(layer):
    network = layer.feed_forward
    network.compute_inner = lambda hidden, **_: keras.activations.gelu(network.inner(hidden))


def norm_first(layer):
    def call(hidden, *arguments, training):
        hidden = hidden + layer.attention(layer.attention_norm(hidden), *arguments)
        return hidden + layer.feed_forward(layer.feed_forward_norm(hidden))

    layer.call = call


def ignore_mask(layer):
    call = layer.attention.call

    def see_all(hidden, memory, positions, u, v, mask, *others, **training):
        return call(hidden, memory, positions, u, v, ops.ones_like(mask), *others, **training)

    layer.attention.call = see_all


LAYERS = {
    "k q v": (functools.partial(permute_qkv, (1, 0, 2)), "content"),
    "memory not read": (forget_memory, "memory"),
    "another epsilon": (functools.partial(set_epsilon, 1e-5), "LayerNorm"),
    "gelu": (use_gelu, "feed-forward"),
    "mask ignored": (ignore_mask, "output"),
    "LayerNorm before": (norm_first, "output"),
}


@pytest.mark.parametrize("mistake", slow_after(2, LAYERS))
def test_a_mistake_in_a_layer_is_named_there_and_nowhere_else(mistake):
    change, term = LAYERS[mistake]
    checks = compare(change=lambda model: change(model.decoder_layers[1]))
    assert get_blame(checks) == (1, term)
    assert {check.layer for check in checks if not check.agrees} <= {1, None}


def test_swapped_biases_part_in_content_and_position():
    def swap(model):
        u, v = model.content_bias, model.position_bias
        old = np.asarray(u).copy()
        u.assign(v)
        v.assign(old)

    checks = compare(change=swap)
    assert get_blame(checks) == (0, "content")
    parted = {check.term for check in checks if check.layer is not None and not check.agrees}
    assert parted == {"content", "position"}


# Embedding and softmax, by bin.


def test_a_wrong_projection_of_an_embedding_bin_is_named():
    checks = compare(
        "lm1b",
        change=lambda model: model.embedding.projections[2].assign(-model.embedding.projections[2]),
    )
    parted = {check.term for check in checks if not check.agrees}
    assert parted == {"embedding bin 2", comparison.END_TO_END}


def test_cluster_rows_in_reverse_part_in_their_bins():
    def reverse(model):
        model.softmax.cluster_weight.assign(model.softmax.cluster_weight[::-1])
        model.softmax.cluster_bias.assign(model.softmax.cluster_bias[::-1])

    checks = compare("word_large", change=reverse)
    parted = {check.term for check in checks if not check.agrees}
    assert parted == {"softmax bin 1", "softmax bin 3", comparison.END_TO_END}
    assert comparison.find_first(checks).quantity.startswith("log p(bin)")


def test_a_bias_that_is_left_out_is_named():
    def leave_out(model):
        model.softmax.biases[2].assign(model.softmax.biases[2] * 0)

    checks = compare("word_base", change=leave_out)
    parted = {check.term for check in checks if check.term.startswith(comparison.SOFTMAX)}
    assert get_blame(checks) == (None, "softmax bin 2")
    assert len(parted) == 4


def test_losses_that_are_not_those_of_the_distribution_are_named(monkeypatch):
    call = AdaptiveSoftmax.call

    def drop_tail(self, hidden, targets, embedding, **options):
        return ops.where(targets >= 80, 0.0, call(self, hidden, targets, embedding, **options))

    monkeypatch.setattr(AdaptiveSoftmax, "call", drop_tail)
    checks = compare("word_large")
    parted = {check.term for check in checks if not check.agrees}
    assert parted == {"softmax bin 3", comparison.END_TO_END}


# What is not of a term.


def test_a_model_changes_neither_by_the_comparison_nor_by_its_failure(monkeypatch):
    case = load_case("char")
    model = load_model(case.checkpoint, case.config)
    variables = read_weights(case.checkpoint)
    ids, memory = np.array([[1, 2, 3]]), model.initial_memory(1, 5)
    before = model(ids, memory)[0]
    compare_model(model, variables, tgt_len=8, spans=[PLAIN])
    with monkeypatch.context() as patch:
        patch.setattr(RelativeAttention, "project", None)
        with pytest.raises(TypeError, match=r"not callable"):
            compare_model(model, variables, tgt_len=8, spans=[PLAIN])
    np.testing.assert_array_equal(model(ids, memory)[0], before)


@pytest.mark.parametrize("tgt_len", [1, 8, 13])
@pytest.mark.parametrize("cutoffs", [(), (1,), (10, 30), (11, 50, 150)])
def test_every_edge_of_every_bin_occurs_as_input_and_as_target(cutoffs, tgt_len):
    config = ModelConfig(n_token=211, cutoffs=cutoffs)
    edges = {edge for low, high in config.bins for edge in (low, high - 1)}
    for seed in range(50):
        ids = draw_text(config, tgt_len, seed=seed)
        assert edges <= set(ids[:, :-1].ravel().tolist())
        assert edges <= set(ids[:, 1:].ravel().tolist())


def confuse(ids, edge, n_token):
    """Takes one id for the next, or the last id for the one before."""
    return ops.where(ids == edge, edge + 1 if edge + 1 < n_token else edge - 1, ids)


@pytest.mark.parametrize(("edge", "part"), [(50, "embedding"), (149, "softmax")])
def test_an_edge_that_is_off_by_one_is_found(edge, part, tmp_path):
    cutoffs, n_token = (11, 50, 150), 211
    config = ModelConfig(n_token=n_token, cutoffs=cutoffs, div_val=2, **SIZES)
    path = write_checkpoint(tmp_path / "model", draw_weights(config))
    model = load_model(path, config)
    call = getattr(model, part).call

    def take_another(hidden, targets, embedding, **options):
        return call(hidden, confuse(targets, edge, n_token), embedding, **options)

    def embed_another(ids):
        return call(confuse(ids, edge, n_token))

    getattr(model, part).call = embed_another if part == "embedding" else take_another
    checks = compare_model(model, read_weights(path), tgt_len=8, spans=[PLAIN])
    index = int(np.searchsorted(cutoffs, edge, side="right"))
    assert get_blame(checks) == (None, f"{part} bin {index}")


def test_values_that_are_no_numbers_or_of_another_shape_differ():
    ones = np.ones((2, 3))
    assert measure_difference(ones, ones) == 0
    assert measure_difference(ones * np.nan, ones) == np.inf
    assert measure_difference(ones[:1], ones) == np.inf
    assert measure_difference(ones, ones * 0) == 1
    assert measure_difference(ones * 3, ones, scale=4.0) == 0.5


def test_the_verdict_and_the_table_say_where_and_why():
    checks = compare(change=lambda model: use_gelu(model.decoder_layers[1]))
    first, where, causes, *_ = comparison.describe_verdict(checks)
    assert first.startswith("They first differ at layer 1, feed-forward: ")
    assert where == "  in segment 0, mem_len 7, same_length, clamp_len 3."
    assert "relu" in causes
    lines = list(comparison.format_table(checks))
    marked = [line.split()[:2] for line in lines if "!" in line]
    assert marked == [["layer", "1"], ["end", "to"]]
    assert len({len(line) for line in lines if line.startswith("layer")}) == 1


def test_every_term_has_a_hint():
    checks = compare("word_large")
    assert {check.term.rstrip("0123456789 ") for check in checks} == set(comparison.HINTS)
