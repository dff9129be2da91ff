"""The comparison with the reference names the layer and the term of each mistake."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from golden_cases import NAMES, load_case
from keras import ops
from small_release import SIZES, draw_weights, write_checkpoint

import txl_tf.model
from txl_tf.config import AttentionSpan, ModelConfig
from txl_tf.errors import UserError
from txl_tf.layers import (
    AdaptiveEmbedding,
    DecoderLayer,
    RelativeAttention,
    encodings,
    left_shift,
    make_attention_mask,
    make_position_table,
    relative_attention,
    update_memory,
)
from txl_tf.layers.adaptive_softmax import AdaptiveSoftmax
from txl_tf.release import load_model, verdict, verify
from txl_tf.release.comparison import TOLERANCE, measure_difference

SHAPE = verify.Shape(tgt_len=5)
PLAIN, SAME_LENGTH = AttentionSpan(7), AttentionSpan(7, same_length=True, clamp_len=3)


def compare(name="char", change=None, **arguments):
    """Returns the checks of a golden model, into which a mistake is put first."""
    case = load_case(name)
    model = load_model(case.checkpoint, case.config)
    if change:
        change(model)
    variables = verify.CheckpointVariables(case.checkpoint)
    return verify.compare_model(
        model, variables, **{"shape": SHAPE, "spans": [SAME_LENGTH]} | arguments
    )


def get_blame(checks):
    """Returns layer and term of the first check that parts."""
    first = verdict.find_first(checks)
    return first and (first.layer, first.term)


def assert_is_blamed(checks, layer, term):
    """The first to part is this one, and nothing parts in a layer but this term."""
    assert get_blame(checks) == (layer, term)
    assert {check.term for check in checks if check.layer is not None and not check.agrees} <= {
        term
    }


@pytest.mark.parametrize("name", NAMES)
def test_imported_weights_agree_in_every_term(name):
    checks = compare(name, spans=[PLAIN, SAME_LENGTH])
    assert get_blame(checks) is None
    assert max(check.difference for check in checks) < TOLERANCE / 10
    config = load_case(name).config
    layers = {(check.layer, check.term) for check in checks if check.layer is not None}
    expected = {(n, term) for n in range(config.n_layer) for term in verdict.LAYER_TERMS}
    assert layers == expected
    bins = range(len(config.bins))
    names = {f"{kind} {n}" for kind in (verdict.EMBEDDING, verdict.SOFTMAX) for n in bins}
    assert {check.term for check in checks if check.layer is None} == names | {verdict.END_TO_END}


def test_a_model_without_memory_agrees():
    assert get_blame(compare(spans=[AttentionSpan(0)])) is None


# What is wrong for all layers: a function of the layers, put where the model finds it.


def reverse_positions(length, width, **arguments):
    return make_position_table(length, width, **arguments)[::-1]


def interleave_positions(length, width, **arguments):
    sines, cosines = ops.split(make_position_table(length, width, **arguments), 2, axis=-1)
    return ops.reshape(ops.stack([sines, cosines], axis=-1), (length, width))


def ignore_clamp(length, width, clamp_len=-1):
    return make_position_table(length, width)


def see_one_key_less(tgt_len, mem_len, same_length=False, **_):
    mask = make_attention_mask(tgt_len, mem_len, same_length=same_length)
    return ops.logical_and(mask, ops.arange(mask.shape[1]) > ops.arange(tgt_len)[:, None])


def see_one_key_more(tgt_len, mem_len, same_length=False, **_):
    return make_attention_mask(tgt_len, mem_len + 1, same_length=same_length)[:, :-1]


def shift_one_more(scores):
    return ops.roll(left_shift(scores), -1, axis=-1)


def keep_old_memory(memory, hidden, same_document=None):
    return memory


def drop_memory(memory, hidden, same_document=None):
    return ops.zeros_like(memory)


def keep_oldest(memory, hidden, same_document=None):
    return ops.concatenate([memory, hidden], axis=1)[:, : memory.shape[1]]


FUNCTIONS = [
    (encodings, "make_position_table", reverse_positions, "position"),
    (encodings, "make_position_table", interleave_positions, "position"),
    (encodings, "make_position_table", ignore_clamp, "position"),
    (relative_attention, "left_shift", shift_one_more, "position"),
    (relative_attention, "left_shift", lambda scores: scores, "position"),
    (txl_tf.model, "make_attention_mask", see_one_key_less, "mask"),
    (txl_tf.model, "make_attention_mask", see_one_key_more, "mask"),
    (txl_tf.model, "update_memory", keep_old_memory, "memory"),
    (txl_tf.model, "update_memory", drop_memory, "memory"),
    (txl_tf.model, "update_memory", keep_oldest, "memory"),
]


@pytest.mark.parametrize(
    ("place", "name", "mistake", "term"), FUNCTIONS, ids=[row[2].__name__ for row in FUNCTIONS]
)
def test_a_mistake_of_all_layers_is_named_at_the_first(monkeypatch, place, name, mistake, term):
    monkeypatch.setattr(place, name, mistake)
    assert_is_blamed(compare(), 0, term)


def test_a_mask_that_is_wrong_with_same_length_alone_is_found_there(monkeypatch):
    def see_all(tgt_len, mem_len, same_length=False, **_):
        return make_attention_mask(tgt_len, mem_len)

    monkeypatch.setattr(txl_tf.model, "make_attention_mask", see_all)
    checks = compare(spans=[PLAIN, SAME_LENGTH])
    assert_is_blamed(checks, 0, "mask")
    assert verdict.find_first(checks).span == SAME_LENGTH


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


def swap_biases(layer):
    call = layer.call
    layer.call = lambda hidden, memory, positions, u, v, *rest, **arguments: call(
        hidden, memory, positions, v, u, *rest, **arguments
    )


def set_epsilon(epsilon, layer):
    layer.feed_forward_norm.epsilon = epsilon


def use_gelu(layer):
    inner, outer = layer.feed_forward.inner, layer.feed_forward.outer
    layer.feed_forward.call = lambda hidden, training: outer(keras.activations.gelu(inner(hidden)))


def norm_first(layer):
    def call(hidden, *arguments, training):
        hidden = hidden + layer.attention(layer.attention_norm(hidden), *arguments)
        return hidden + layer.feed_forward(layer.feed_forward_norm(hidden))

    layer.call = call


def ignore_mask(layer):
    compute_attention_weights = layer.attention.compute_attention_weights
    layer.attention.compute_attention_weights = lambda content, position, mask: (
        compute_attention_weights(content, position, ops.ones_like(mask))
    )


def change_weight(get, layer):
    weight = get(layer)
    weight.assign(np.asarray(weight) * 1.01)


LAYERS = {
    "k q v": (functools.partial(permute_qkv, (1, 0, 2)), "content"),
    "q v k": (functools.partial(permute_qkv, (0, 2, 1)), "content"),
    "v k q": (functools.partial(permute_qkv, (2, 1, 0)), "content"),
    "memory not read": (forget_memory, "memory"),
    "epsilon of the hub": (functools.partial(set_epsilon, 1e-5), "LayerNorm"),
    "small epsilon": (functools.partial(set_epsilon, 1e-8), "LayerNorm"),
    "gelu": (use_gelu, "feed-forward"),
    "u and v swapped": (swap_biases, "content"),
    "mask ignored": (ignore_mask, "mask"),
    "LayerNorm before": (norm_first, "output"),
    "o kernel": (
        functools.partial(change_weight, lambda layer: layer.attention.o_kernel),
        "output",
    ),
    "r kernel": (
        functools.partial(change_weight, lambda layer: layer.attention.r_kernel),
        "position",
    ),
    "beta": (
        functools.partial(change_weight, lambda layer: layer.attention_norm.beta),
        "LayerNorm",
    ),
    "inner bias": (
        functools.partial(change_weight, lambda layer: layer.feed_forward.inner.bias),
        "feed-forward",
    ),
}


@pytest.mark.parametrize("mistake", LAYERS)
def test_a_mistake_in_a_layer_is_named_there_and_nowhere_else(mistake):
    change, term = LAYERS[mistake]
    checks = compare(change=lambda model: change(model.decoder_layers[1]))
    assert get_blame(checks) == (1, term)
    assert {check.layer for check in checks if not check.agrees} <= {1, None}


def test_biases_that_are_swapped_in_the_model_part_in_content_and_position():
    def swap(model):
        u, v = model.content_bias, model.position_bias
        old = np.asarray(u).copy()
        u.assign(v)
        v.assign(old)

    checks = compare(change=swap)
    assert get_blame(checks) == (0, "content")
    parted = {check.term for check in checks if check.layer is not None and not check.agrees}
    assert parted == {"content", "position"}


def test_scores_that_are_not_divided_part_in_content(monkeypatch):
    score = RelativeAttention.score_content

    def score_undivided(self, *arguments):
        return score(self, *arguments) * self.d_head**0.5

    monkeypatch.setattr(RelativeAttention, "score_content", score_undivided)
    assert_is_blamed(compare(), 0, "content")


def test_a_memory_of_layer_outputs_is_named(monkeypatch):
    """The model's call with the memory taken one step too late."""
    monkeypatch.setattr(txl_tf.model, "update_memory", lambda old, hidden, same_document: old)
    call_layer = DecoderLayer.call
    kept = []

    def run_and_keep(self, hidden, memory, *arguments, **options):
        hidden = call_layer(self, hidden, memory, *arguments, **options)
        kept.append(update_memory(memory, hidden))
        return hidden

    call = txl_tf.model.TransformerXL.call

    def call_and_keep(self, *arguments, **options):
        kept.clear()
        hidden, _ = call(self, *arguments, **options)
        return hidden, tuple(kept)

    monkeypatch.setattr(DecoderLayer, "call", run_and_keep)
    monkeypatch.setattr(txl_tf.model.TransformerXL, "call", call_and_keep)
    assert_is_blamed(compare(), 0, "memory")


def test_a_first_memory_that_is_not_zeros_is_named(monkeypatch):
    make = txl_tf.model.TransformerXL.initial_memory
    monkeypatch.setattr(
        txl_tf.model.TransformerXL,
        "initial_memory",
        lambda self, *arguments: tuple(states + 1 for states in make(self, *arguments)),
    )
    assert_is_blamed(compare(), 0, "memory")


def test_a_layer_that_gets_the_memory_of_another_is_named(monkeypatch):
    call_layer = DecoderLayer.call
    first = []

    def run_with_first(self, hidden, memory, *arguments, **options):
        if self.name == "layer_0":
            first[:] = [memory]
        return call_layer(self, hidden, *first, *arguments, **options)

    monkeypatch.setattr(DecoderLayer, "call", run_with_first)
    checks = compare()
    assert_is_blamed(checks, 1, "memory")
    assert verdict.find_first(checks).segment == 1


# Embedding and softmax, by bin.


def test_embeddings_that_are_not_scaled_part_in_every_bin(monkeypatch):
    call = AdaptiveEmbedding.call
    monkeypatch.setattr(
        AdaptiveEmbedding, "call", lambda self, ids: call(self, ids) / self.config.d_model**0.5
    )
    checks = compare("word_large")
    assert get_blame(checks) == (None, "embedding bin 0")
    parted = {check.term for check in checks if not check.agrees}
    assert parted == {*(f"embedding bin {index}" for index in range(4)), verdict.END_TO_END}


def test_a_wrong_projection_of_an_embedding_bin_is_named():
    checks = compare(
        "lm1b",
        change=lambda model: model.embedding.projections[2].assign(-model.embedding.projections[2]),
    )
    parted = {check.term for check in checks if not check.agrees}
    assert parted == {"embedding bin 2", verdict.END_TO_END}


def test_cluster_rows_in_reverse_part_in_their_bins():
    def reverse(model):
        model.softmax.cluster_weight.assign(model.softmax.cluster_weight[::-1])
        model.softmax.cluster_bias.assign(model.softmax.cluster_bias[::-1])

    checks = compare("word_large", change=reverse)
    parted = {check.term for check in checks if not check.agrees}
    assert parted == {"softmax bin 1", "softmax bin 3", verdict.END_TO_END}
    assert verdict.find_first(checks).quantity.startswith("log p(bin)")


def test_an_own_projection_instead_of_the_tied_one_is_named():
    def untie(model):
        tied = model.softmax.get_bin_weights
        own = np.random.default_rng(3).normal(size=model.embedding.projections[3].shape)

        def get_bin_weights(embedding):
            *others, (table, bias, _) = tied(embedding)
            return [*others, (table, bias, ops.cast(own, "float32"))]

        model.softmax.get_bin_weights = get_bin_weights

    checks = compare("word_large", change=untie)
    parted = {check.term for check in checks if not check.agrees}
    assert parted == {"softmax bin 3", verdict.END_TO_END}


def test_a_transposed_projection_of_the_head_is_named():
    def transpose(model):
        projection = model.softmax.projections[0]
        projection.assign(ops.transpose(projection))

    checks = compare("word_large", change=transpose)
    assert get_blame(checks) == (None, "softmax bin 0")


@pytest.mark.parametrize("index", range(4))
def test_a_bias_that_is_left_out_is_named(index):
    def leave_out(model):
        model.softmax.biases[index].assign(model.softmax.biases[index] * 0)

    checks = compare("word_base", change=leave_out)
    parted = {check.term for check in checks if check.term.startswith(verdict.SOFTMAX)}
    assert get_blame(checks) == (None, f"softmax bin {index}")
    assert len(parted) == 4


def test_losses_that_are_not_those_of_the_distribution_are_named(monkeypatch):
    call = AdaptiveSoftmax.call

    def drop_tail(self, hidden, targets, embedding, **options):
        return ops.where(targets >= 80, 0.0, call(self, hidden, targets, embedding, **options))

    monkeypatch.setattr(AdaptiveSoftmax, "call", drop_tail)
    checks = compare("word_large")
    parted = {check.term for check in checks if not check.agrees}
    assert parted == {"softmax bin 3", verdict.END_TO_END}


# What is not of a term.


def test_a_model_changes_neither_by_the_comparison_nor_by_its_failure(monkeypatch):
    case = load_case("char")
    model = load_model(case.checkpoint, case.config)
    variables = verify.CheckpointVariables(case.checkpoint)
    ids, memory = np.array([[1, 2, 3]]), model.initial_memory(1, 5)
    before = model(ids, memory)[0]
    verify.compare_model(model, variables, shape=SHAPE, spans=[PLAIN])
    with monkeypatch.context() as patch:
        patch.setattr(RelativeAttention, "compute_attention_weights", None)
        with pytest.raises(TypeError, match=r"not callable"):
            verify.compare_model(model, variables, shape=SHAPE, spans=[PLAIN])
    np.testing.assert_array_equal(model(ids, memory)[0], before)


def test_the_precision_of_products_is_full_and_put_back():
    assert tf.config.experimental.tensor_float_32_execution_enabled()
    seen = []

    def watch(model):
        call = model.embedding.call

        def run(ids):
            seen.append(tf.config.experimental.tensor_float_32_execution_enabled())
            return call(ids)

        model.embedding.call = run

    compare("char", change=watch)
    assert set(seen) == {False}
    assert tf.config.experimental.tensor_float_32_execution_enabled()


@pytest.mark.parametrize("name", NAMES)
def test_every_bin_occurs_as_input_and_as_target(name):
    config = load_case(name).config
    for seed in range(20):
        shape = verify.Shape(tgt_len=2, batch_size=2, seed=seed)
        ids = verify.draw_text(config, shape)
        assert ids.shape == (2, 2 * verify.extend_shape(config, shape).n_segments + 1)
        for low, high in config.bins:
            for part in (ids[:, :-1], ids[:, 1:]):
                assert ((low <= part) & (part < high)).any()


# An edge is the first or the last id of a bin.
EDGES = [
    (cutoffs, n_token, edge)
    for cutoffs, n_token in (((10, 30), 37), ((11, 50, 150), 211))
    for edge in sorted({0, n_token - 1, *cutoffs, *(cutoff - 1 for cutoff in cutoffs)})
]


@pytest.mark.parametrize("tgt_len", [2, 8, 13])
@pytest.mark.parametrize("cutoffs", [(), (1,), (10, 30), (11, 50, 150)])
def test_every_edge_of_every_bin_occurs_as_input_and_as_target(cutoffs, tgt_len):
    config = ModelConfig(n_token=211, cutoffs=cutoffs)
    edges = {edge for low, high in config.bins for edge in (low, high - 1)}
    for seed in range(50):
        ids = verify.draw_text(config, verify.Shape(tgt_len=tgt_len, seed=seed))
        assert edges <= set(ids[:, :-1].ravel().tolist())
        assert edges <= set(ids[:, 1:].ravel().tolist())


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Returns checkpoints of random weights, by the cutoffs of the model."""
    folder, found = tmp_path_factory.mktemp("drawn"), {}
    for cutoffs, n_token in dict.fromkeys(edge[:2] for edge in EDGES):
        config = ModelConfig(n_token=n_token, cutoffs=cutoffs, div_val=2, **SIZES)
        path = write_checkpoint(folder / f"model-{n_token}", draw_weights(config))
        found[cutoffs] = (path, config)
    return found


def confuse(ids, edge, n_token):
    """Takes one id for the next, or the last id for the one before."""
    return ops.where(ids == edge, edge + 1 if edge + 1 < n_token else edge - 1, ids)


@pytest.mark.parametrize("part", ["embedding", "softmax"])
@pytest.mark.parametrize(("cutoffs", "n_token", "edge"), EDGES)
def test_an_edge_that_is_off_by_one_is_found(drawn, cutoffs, n_token, edge, part):
    path, config = drawn[cutoffs]
    model = load_model(path, config)
    call = getattr(model, part).call

    def take_another(hidden, targets, embedding, **options):
        return call(hidden, confuse(targets, edge, n_token), embedding, **options)

    def embed_another(ids):
        return call(confuse(ids, edge, n_token))

    getattr(model, part).call = embed_another if part == "embedding" else take_another
    checks = verify.compare_model(model, verify.CheckpointVariables(path), spans=[PLAIN])
    index = int(np.searchsorted(cutoffs, edge, side="right"))
    assert get_blame(checks) == (None, f"{part} bin {index}")


def test_a_text_that_is_too_short_for_the_bins_is_refused():
    config = load_case("word_base").config
    with pytest.raises(
        UserError, match=r"`tgt_len` must leave room .* tgt_len=1 in 2 rows, 4 bins$"
    ):
        verify.draw_text(config, verify.Shape(tgt_len=1))


def test_values_that_are_no_numbers_or_of_another_shape_differ():
    ones = np.ones((2, 3))
    assert measure_difference(ones, ones) == 0
    assert measure_difference(ones * np.nan, ones) == np.inf
    assert measure_difference(ones[:1], ones) == np.inf
    assert measure_difference(ones, ones * 0) == 1
    assert measure_difference(ones * 3, ones, scale=4.0) == 0.5


def test_a_checkpoint_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(
        UserError, match=r"^No TensorFlow checkpoint can be read at .*absent: "
    ) as error:
        verify.CheckpointVariables(str(tmp_path / "absent"))
    assert "\n" not in str(error.value)


def test_a_variable_that_is_not_there_is_named():
    variables = verify.CheckpointVariables(load_case("char").checkpoint)
    assert "transformer/r_w_bias" in variables
    assert set(variables) == set(dict(variables))
    with pytest.raises(UserError, match=r"model.ckpt-0 lacks transformer/xyzzy$"):
        variables["transformer/xyzzy"]


def test_the_verdict_says_where_and_why():
    checks = compare(change=lambda model: use_gelu(model.decoder_layers[1]))
    first, where, causes, *_ = verdict.describe_verdict(checks)
    assert first.startswith("They first differ at layer 1, feed-forward: ")
    assert where == "  in segment 0, mem_len 7, same_length, clamp_len 3."
    assert "relu" in causes


def test_the_table_marks_what_parts():
    lines = list(verdict.format_table(compare(change=lambda m: use_gelu(m.decoder_layers[1]))))
    marked = [line.split()[:2] for line in lines if "!" in line]
    assert marked == [["layer", "1"], ["end", "to"]]
    assert len({len(line) for line in lines if line.startswith("layer")}) == 1


def test_every_term_has_a_hint():
    checks = compare("word_large")
    assert {check.hint for check in checks} == set(verdict.HINTS.values())


def test_the_reference_does_not_depend_on_dropout():
    config = dataclasses.replace(load_case("char").config, dropout=0.3, dropatt=0.3)
    case = load_case("char")
    model = load_model(case.checkpoint, config)
    variables = verify.CheckpointVariables(case.checkpoint)
    assert get_blame(verify.compare_model(model, variables, shape=SHAPE, spans=[PLAIN])) is None
