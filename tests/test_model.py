import dataclasses
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from golden_cases import EVALUATIONS, NAMES, load_case, parse_evaluation

from txl_tf.config import AttentionSpan, ModelConfig
from txl_tf.model import TransformerXL
from txl_tf.release.checkpoint import SCOPE, list_entries, load_model

# float32, summed in another order; the golden numbers themselves hold 2e-5 and 1e-4.
LOSS_TOLERANCE = 2e-5
GRADIENT_TOLERANCE = 1e-4
# Hidden states are of the order of 1 and go through three layers in float32.
SAME = {"rtol": 0, "atol": 2e-5}
BATCH, LENGTH, VOCABULARY = 2, 5, 23
COMPILED = pytest.mark.parametrize("jit", [False, True], ids=["plain", "compiled"])


def make_config(**changes):
    fields = {
        "n_token": VOCABULARY,
        "n_layer": 3,
        "d_model": 10,
        "d_embed": 10,
        "n_head": 3,
        "d_head": 7,
        "d_inner": 17,
        "dropout": 0.0,
        "dropatt": 0.0,
    }
    return ModelConfig(**fields | changes)


def make_model(*, dtype=None, **changes):
    """Returns a model whose weights are all random and large enough to matter."""
    model, rng = (
        TransformerXL(make_config(**changes), seed=1, dtype=dtype),
        np.random.default_rng(7),
    )
    for variable in model.trainable_variables:
        variable.assign(rng.normal(scale=0.5, size=variable.shape))
    return model


def make_ids(length=LENGTH, *, batch=BATCH):
    return np.random.default_rng(3).integers(VOCABULARY, size=(batch, length), dtype="int32")


def read(model, ids, tgt_len, span):
    """Returns the hidden states of a text read in segments, from an empty memory."""
    memory, parts = model.initial_memory(len(ids), span.mem_len), []
    for start in range(0, ids.shape[1], tgt_len):
        hidden, memory = model(ids[:, start : start + tgt_len], memory, span=span)
        parts.append(np.asarray(hidden))
    return np.concatenate(parts, axis=1)


@COMPILED
@pytest.mark.parametrize("name", NAMES)
def test_segments_are_those_of_the_2019_code(name, jit):
    """Losses and memory of every segment, gradients of the last."""
    case = load_case(name)
    model = load_model(case.checkpoint, case.config)
    entries = list(list_entries(model))

    @tf.function(jit_compile=jit)
    def step(ids, targets, memory):
        with tf.GradientTape() as tape:
            hidden, memory = model(ids, memory, span=case.span)
            nll = model.nll(hidden, targets)
            loss = tf.reduce_mean(nll)
        gradients = tape.gradient(loss, [entry.target.value for entry in entries])
        return nll, memory, [tf.convert_to_tensor(gradient) for gradient in gradients]

    segments = case.cut(case.tgt_len)
    memory, computed = model.initial_memory(len(segments[0][0]), case.span.mem_len), {}
    for index, (ids, targets) in enumerate(segments):
        nll, memory, gradients = step(tf.constant(ids), tf.constant(targets), memory)
        computed[f"nll_{index}"] = nll
        computed |= {f"mem_{index}_{layer}": states for layer, states in enumerate(memory)}
    names = [f"grad/{SCOPE}{entry.source}" for entry in entries]
    computed |= dict(zip(names, gradients, strict=True))
    evaluations = {key for key in case.golden if key.startswith("eval/")}
    assert computed.keys() == case.golden.keys() - evaluations - {"tokens"}
    for key, value in computed.items():
        tolerance = GRADIENT_TOLERANCE if key.startswith("grad/") else LOSS_TOLERANCE
        np.testing.assert_allclose(value, case.golden[key], rtol=0, atol=tolerance, err_msg=key)


@COMPILED
@pytest.mark.parametrize(("name", "key"), EVALUATIONS)
def test_evaluations_are_those_of_the_2019_code(name, key, jit):
    case, (tgt_len, span) = load_case(name), parse_evaluation(key)
    model = load_model(case.checkpoint, case.config)

    @tf.function(jit_compile=jit)
    def score(ids, targets, memory):
        hidden, memory = model(ids, memory, span=span)
        return model.nll(hidden, targets), memory

    memory, losses = model.initial_memory(len(case.golden["tokens"]), span.mem_len), []
    for ids, targets in case.cut(tgt_len):
        nll, memory = score(tf.constant(ids), tf.constant(targets), memory)
        losses.append(nll)
    nll = np.concatenate(losses, axis=1)
    np.testing.assert_allclose(nll, case.golden[key], rtol=0, atol=LOSS_TOLERANCE)


def test_every_golden_evaluation_is_compared():
    keys = {(name, key) for name in NAMES for key in load_case(name).golden if "eval/" in key}
    assert keys == set(EVALUATIONS)


# Shorter than the segment, between segment and text, as long as the text.
@pytest.mark.parametrize("mem_len", [3, 7, 15])
def test_segments_with_memory_equal_one_long_pass(mem_len):
    model, ids = make_model(), make_ids(15)
    span = AttentionSpan(mem_len, same_length=True)
    np.testing.assert_allclose(read(model, ids, 5, span), read(model, ids, 15, span), **SAME)


def test_a_memory_of_all_the_text_equals_one_long_pass():
    model, ids, zeros = make_model(), make_ids(15), 7
    memory, parts = model.initial_memory(BATCH, zeros), []
    for start in range(0, 15, 5):
        hidden, memory = model(ids[:, start : start + 5], memory)
        # 5 zeros fell off; put back, each query sees 7 zeros and all the text before it.
        memory = tuple(tf.pad(states, [(0, 0), (5, 0), (0, 0)]) for states in memory)
        parts.append(hidden)
    whole, _ = model(ids, model.initial_memory(BATCH, zeros))
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, **SAME)


@pytest.mark.parametrize("same_length", [False, True])
def test_a_future_token_changes_no_earlier_loss(same_length):
    model, ids = make_model(), make_ids(11)
    span, targets = AttentionSpan(3, same_length=same_length), make_ids(11)[:, ::-1]
    changed = ids.copy()
    changed[:, 4] = (changed[:, 4] + 1) % VOCABULARY
    before, after = (
        np.asarray(model.nll(model(tokens, model.initial_memory(BATCH, 3), span=span)[0], targets))
        for tokens in (ids, changed)
    )
    # Not bit for bit: a product may sum a row in an order that depends on where it lies.
    np.testing.assert_allclose(before[:, :4], after[:, :4], rtol=0, atol=1e-5)
    assert np.all(np.abs(before[:, 4] - after[:, 4]) > 1e-3)


def test_a_token_that_left_the_memory_changes_nothing():
    model, ids, span = make_model(n_layer=1), make_ids(15), AttentionSpan(3)
    changed = ids.copy()
    changed[:, 6] = (changed[:, 6] + 1) % VOCABULARY  # segments begin at 5 and 10
    before, after = (read(model, tokens, 5, span) for tokens in (ids, changed))
    np.testing.assert_array_equal(before[:, 10:], after[:, 10:])
    changed[:, 7] = (changed[:, 7] + 1) % VOCABULARY  # the oldest that the memory keeps
    after = read(model, changed, 5, span)
    assert np.all(np.abs(before[:, 10] - after[:, 10]).max(axis=-1) > 1e-3)


def test_rows_of_a_batch_know_nothing_of_each_other():
    model, ids, span = make_model(), make_ids(15), AttentionSpan(7)
    changed = ids.copy()
    changed[1] = changed[1, ::-1]
    before, after = (read(model, tokens, 5, span) for tokens in (ids, changed))
    np.testing.assert_allclose(before[0], after[0], **SAME)
    assert np.abs(before[1] - after[1]).max() > 1e-2


def test_same_length_sees_one_key_more_than_the_memory():
    model, ids = make_model(n_layer=1), make_ids(11)
    span, seen = AttentionSpan(3, same_length=True), []
    before = read(model, ids, 11, span)
    for position in range(11):
        changed = ids.copy()
        changed[:, position] = (changed[:, position] + 1) % VOCABULARY
        seen.append(np.abs(read(model, changed, 11, span) - before).max(axis=(0, 2)) > 1e-4)
    key, query = np.indices((11, 11))
    np.testing.assert_array_equal(seen, (key <= query) & (query <= key + 3))


def test_clamping_beyond_the_span_changes_nothing():
    model, ids = make_model(), make_ids()
    free, at_edge, within = (
        read(model, ids, LENGTH, AttentionSpan(7, clamp_len=clamp_len)) for clamp_len in (-1, 11, 3)
    )
    np.testing.assert_array_equal(free, at_edge)
    assert np.abs(free - within).max() > 1e-2


def test_an_empty_memory_stays_empty():
    model, ids = make_model(), make_ids()
    hidden, memory = model(ids, model.initial_memory(BATCH, 0), span=AttentionSpan(0))
    assert hidden.shape == (BATCH, LENGTH, 10)
    assert [states.shape for states in memory] == [(BATCH, 0, 10)] * 3


def test_the_span_defaults_to_all_of_the_memory():
    model, ids = make_model(), make_ids()
    memory = model(ids, model.initial_memory(BATCH, 7))[1]
    hidden, _ = model(ids, memory)
    explicit, _ = model(ids, memory, span=AttentionSpan(7, same_length=False, clamp_len=-1))
    np.testing.assert_array_equal(hidden, explicit)


def test_a_memory_of_another_length_than_the_span_is_an_error():
    model = make_model()
    with pytest.raises(ValueError, match=r"span.mem_len=11, a memory of 7"):
        model(make_ids(), model.initial_memory(BATCH, 7), span=AttentionSpan(11))


def test_no_gradient_flows_into_the_memory():
    model, ids = make_model(), make_ids()
    memory = model(ids, model.initial_memory(BATCH, 7))[1]
    with tf.GradientTape() as tape:
        tape.watch(memory)
        hidden, _ = model(ids, memory)
    assert tape.gradient(hidden, list(memory)) == [None] * 3


@pytest.mark.parametrize("mem_len", [3, 7])
def test_the_new_memory_carries_no_gradient(mem_len):
    model = make_model()
    with tf.GradientTape() as tape:
        _, memory = model(make_ids(), model.initial_memory(BATCH, mem_len))
    weights = [variable.value for variable in model.trainable_variables]
    assert tape.gradient(list(memory), weights) == [None] * len(weights)


def test_resetting_empties_the_rows_asked_and_no_others():
    model, ids = make_model(), make_ids(batch=3)
    memory = model(ids, model.initial_memory(3, 7))[1]
    reset = model.reset_memory(memory, np.array([False, True, False]))
    fresh = model.initial_memory(3, 7)
    for old, new, empty in zip(memory, reset, fresh, strict=True):
        np.testing.assert_array_equal(new[1], empty[1])
        np.testing.assert_array_equal(tf.gather(new, [0, 2]), tf.gather(old, [0, 2]))
        assert np.abs(old[1]).max() > 0


# Where documents begin in two rows of 31 tokens: in the middle of segments of 5, at their edges,
# one token long, and longer than memory and segment. The first goes on from an empty memory.
DOCUMENT_STARTS = ((7, 8, 20), (5, 10, 11, 13, 28))
DOCUMENT_SPANS = pytest.mark.parametrize(
    "span",
    [
        AttentionSpan(3, same_length=True),
        AttentionSpan(5, same_length=True),
        AttentionSpan(13, same_length=True, clamp_len=4),
    ],
    ids=["short", "segment", "long"],
)


def mark_starts(length, starts=DOCUMENT_STARTS):
    marks = np.zeros((len(starts), length), bool)
    for row, positions in enumerate(starts):
        marks[row, list(positions)] = True
    return marks


def read_documents(model, ids, starts, tgt_len, span, *, jit=False):
    """As `read`, with documents that see nothing of each other; also returns the last memory."""
    call = tf.function(
        lambda ids, memory, starts: model(ids, memory, span=span, document_starts=starts),
        jit_compile=jit,
    )
    memory, parts = model.initial_memory(len(ids), span.mem_len), []
    for start in range(0, ids.shape[1], tgt_len):
        segment = slice(start, start + tgt_len)
        hidden, memory = call(tf.constant(ids[:, segment]), memory, tf.constant(starts[:, segment]))
        parts.append(np.asarray(hidden))
    return np.concatenate(parts, axis=1), memory


@COMPILED
@DOCUMENT_SPANS
def test_a_document_in_a_stream_equals_the_document_alone(span, jit):
    model, ids = make_model(), make_ids(31)
    found, _ = read_documents(model, ids, mark_starts(31), 5, span, jit=jit)
    targets = ids[:, ::-1]
    losses = np.asarray(model.nll(found, targets))
    for row, starts in enumerate(DOCUMENT_STARTS):
        for start, end in itertools.pairwise((0, *starts, 31)):
            place = slice(start, end)
            # Not in the segments of the stream: how a text is cut changes nothing.
            alone = read(model, ids[row : row + 1, place], 4, span)
            np.testing.assert_allclose(found[row, place], alone[0], **SAME)
            expected = model.nll(alone, targets[row : row + 1, place])[0]
            np.testing.assert_allclose(losses[row, place], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("same_length", [False, True])
@pytest.mark.parametrize("mem_len", [3, 7])
def test_a_document_at_the_first_token_equals_a_reset_memory(mem_len, same_length):
    model, ids, span = make_model(), make_ids(), AttentionSpan(mem_len, same_length=same_length)
    rows = np.array([False, True])
    starts = mark_starts(LENGTH, [(), (0,)])
    memory = model(ids, model.initial_memory(BATCH, mem_len), span=span)[1]
    found = model(ids, memory, span=span, document_starts=starts)
    expected = model(ids, model.reset_memory(memory, rows), span=span)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
    without = model(ids, memory, span=span)[0]
    assert np.abs(found[0] - without)[1].max() > 1e-2


def test_without_a_document_that_begins_nothing_changes():
    model, ids, span = make_model(), make_ids(), AttentionSpan(7)
    memory = model(ids, model.initial_memory(BATCH, 7), span=span)[1]
    found = model(ids, memory, span=span, document_starts=np.zeros(ids.shape, bool))
    expected = model(ids, memory, span=span)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


@COMPILED
@pytest.mark.parametrize("span", [AttentionSpan(7, same_length=True), AttentionSpan(0)])
def test_a_document_knows_nothing_of_the_one_before(span, jit):
    model, ids = make_model(), make_ids(15)
    starts = mark_starts(15, [(8,), (8,)])  # segments begin at 5 and 10
    changed = ids.copy()
    changed[:, :8] = (changed[:, :8] + 1) % VOCABULARY
    (before, kept), (after, kept_after) = (
        read_documents(model, tokens, starts, 5, span, jit=jit) for tokens in (ids, changed)
    )
    np.testing.assert_array_equal(before[:, 8:], after[:, 8:])
    tf.nest.map_structure(np.testing.assert_array_equal, kept, kept_after)
    assert np.all(np.abs(before[:, :8] - after[:, :8]).max(axis=-1) > 1e-3)


def test_no_gradient_flows_into_the_document_before():
    model, old, new = make_model(), [2, 3, 5], [7, 11]
    ids = np.array([old + new, old + new], "int32")

    def differentiate(starts):
        with tf.GradientTape() as tape:
            hidden, _ = model(ids, model.initial_memory(BATCH, 7), document_starts=starts)
            loss = tf.reduce_sum(hidden[:, 3:] ** 3)
        table = model.embedding.tables[0].value
        return np.abs(tf.convert_to_tensor(tape.gradient(loss, table)))

    gradient = differentiate(mark_starts(LENGTH, [(3,), (3,)]))
    assert gradient[old].max() == 0
    assert gradient[new].min() > 0
    assert differentiate(None)[old].max() > 1e-2


@pytest.mark.parametrize("shape", [(BATCH,), (BATCH, 1), (1, LENGTH)])
def test_document_starts_of_another_shape_are_an_error(shape):
    model = make_model()
    with pytest.raises(
        ValueError, match=r"`document_starts` must have the shape of `ids`.*\(2, 5\)"
    ):
        model(make_ids(), model.initial_memory(BATCH, 7), document_starts=np.zeros(shape, bool))


def test_nothing_is_dropped_outside_training():
    dropping, ids = make_model(dropout=0.5, dropatt=0.5), make_ids()
    hidden, _ = dropping(ids, dropping.initial_memory(BATCH, 7), training=False)
    plain = make_model()
    np.testing.assert_array_equal(hidden, plain(ids, plain.initial_memory(BATCH, 7))[0])


def test_dropout_falls_where_the_2019_code_has_it(monkeypatch):
    dropped, drop = [], keras.random.dropout

    def record(inputs, rate, **kwargs):
        dropped.append((tuple(inputs.shape), rate))
        return drop(inputs, rate, **kwargs)

    monkeypatch.setattr(keras.random, "dropout", record)
    model = make_model(dropout=0.25, dropatt=0.5)
    model(make_ids(), model.initial_memory(BATCH, 7), training=True)
    hidden = ((BATCH, LENGTH, 10), 0.25)
    weights, inner = ((BATCH, 3, LENGTH, 12), 0.5), ((BATCH, LENGTH, 17), 0.25)
    positions = ((12, 10), 0.25)  # once, for all layers
    assert dropped == [positions, hidden, *[weights, hidden, inner, hidden] * 3, hidden]


def test_the_memory_of_the_first_layer_is_the_embedding_after_dropout():
    model, ids = make_model(dropout=0.5), make_ids()
    _, memory = model(ids, model.initial_memory(BATCH, LENGTH), training=True)
    embedded, kept = np.asarray(model.embedding(ids)), np.asarray(memory[0])
    assert 0 < np.mean(kept == 0) < 1
    np.testing.assert_allclose(kept[kept != 0], 2 * embedded[kept != 0], rtol=1e-6)


def test_a_step_draws_as_many_masks_as_its_seed_reserves():
    model = make_model(dropout=0.25, dropatt=0.5)
    model.set_dropout_seed(5)
    model(make_ids(), model.initial_memory(BATCH, 7), training=True)
    used = np.asarray(model.seed_generator.state)
    model.set_dropout_seed(6)
    np.testing.assert_array_equal(used, model.seed_generator.state)
    assert used[1] == 6 * (4 * 3 + 3)  # what the step drew, and the five before it


def test_dropout_masks_follow_step_and_stream_alone():
    model, ids = make_model(dropout=0.25, dropatt=0.25), make_ids()

    def run(step, stream):
        model.set_dropout_seed(step, stream=stream)
        return np.asarray(model(ids, model.initial_memory(BATCH, 7), training=True)[0])

    masks = [run(step, stream) for step in (0, 1, 2) for stream in (0, 1)]
    np.testing.assert_array_equal(run(1, 1), masks[3])
    for first, second in itertools.combinations(masks, 2):
        assert np.abs(first - second).max() > 1e-2


@COMPILED
@pytest.mark.parametrize("cutoffs", [(), (5, 12)], ids=["full", "adaptive"])
def test_bfloat16_loses_no_more_than_rounding(cutoffs, jit):
    ids, targets, runs = make_ids(), make_ids()[:, ::-1], {}
    for dtype in ("float32", "mixed_bfloat16"):
        # A wide hidden state would make losses of 50 nats, where 2 % is no bound.
        model = TransformerXL(make_config(cutoffs=cutoffs, init_std=0.3), seed=1, dtype=dtype)

        @tf.function(jit_compile=jit)
        def score(ids, targets, model=model):
            hidden, memory = model(ids, model.initial_memory(BATCH, 7))
            return hidden, memory, model.nll(hidden, targets), model.log_probs(hidden)

        runs[dtype] = score(tf.constant(ids), tf.constant(targets))
    hidden, memory, nll, log_probs = runs["mixed_bfloat16"]
    assert {hidden.dtype, *(states.dtype for states in memory)} == {tf.bfloat16}
    assert {nll.dtype, log_probs.dtype} == {tf.float32}
    # bfloat16 rounds to 3 digits; three layers, and sums of some ten terms.
    expected = runs["float32"][2]
    assert np.mean(np.abs(nll - expected)) < 0.02 * np.mean(expected)
    assert np.abs(nll - expected).max() > 0


def test_segments_share_one_trace():
    model, span = make_model(cutoffs=(5, 12)), AttentionSpan(7, same_length=True)

    @tf.function
    def score(ids, memory):
        hidden, memory = model(ids, memory, span=span)
        return model.nll(hidden, ids), memory

    memory = model.initial_memory(BATCH, 7)
    for _ in range(3):
        _, memory = score(tf.constant(make_ids()), memory)
    assert score.experimental_get_tracing_count() == 1


BRANCHES = {
    "one bin": {},
    "one bin, projected": {"d_embed": 7},
    "one bin, div_val": {"div_val": 2},
    "one table": {"cutoffs": (5, 12)},
    "one table, projected": {"cutoffs": (5, 12), "d_embed": 7},
    "one table, shared": {"cutoffs": (5, 12), "d_embed": 7, "proj_share_all_but_first": True},
    "tables": {"cutoffs": (5, 12), "div_val": 2},
    "tables, shared": {"cutoffs": (5, 12), "div_val": 2, "proj_share_all_but_first": True},
    "tables, not same dim": {"cutoffs": (5, 12), "div_val": 2, "proj_same_dim": False},
    "tables, embedding wider": {"cutoffs": (5, 12), "div_val": 3, "d_embed": 13},
    "untied biases": {"untie_r": True},
}


@pytest.mark.parametrize("branch", BRANCHES)
def test_parameters_are_as_many_as_the_config_says(branch):
    config = make_config(**BRANCHES[branch])
    assert TransformerXL(config).count_params() == config.count_parameters()


def test_all_weights_exist_after_construction():
    model = TransformerXL(make_config(cutoffs=(5, 12), div_val=2, untie_r=True))
    before = [variable.path for variable in model.variables]
    score = tf.function(model.nll)
    score(model(make_ids(), model.initial_memory(BATCH, 7))[0], tf.constant(make_ids()))
    assert before == [variable.path for variable in model.variables]
    assert len(set(before)) == len(before)


def test_a_model_comes_back_from_its_config():
    model = make_model(cutoffs=(5, 12), div_val=2, untie_r=True)
    again = TransformerXL.from_config(model.get_config())
    assert again.config == model.config
    again.set_weights(model.get_weights())
    hidden, other = (each(make_ids(), each.initial_memory(BATCH, 7))[0] for each in (model, again))
    np.testing.assert_array_equal(hidden, other)


def test_a_seed_fixes_the_weights():
    first, second, other = (TransformerXL(make_config(), seed=seed) for seed in (5, 5, 6))
    for one, same in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(one, same)
    assert np.abs(first.content_bias - other.content_bias).max() > 0


@pytest.mark.parametrize("seed", [None, 5])
def test_layers_start_from_weights_of_their_own(seed):
    model = TransformerXL(make_config(), seed=seed)
    kernels = [np.asarray(layer.attention.qkv_kernel) for layer in model.decoder_layers]
    for first, second in itertools.combinations(kernels, 2):
        assert np.abs(first - second).max() > 0


def test_normal_weights_start_with_the_spreads_of_the_config():
    config = make_config(
        n_token=997, d_model=62, d_embed=58, cutoffs=(211,), init_std=0.03, proj_init_std=0.007
    )
    model = TransformerXL(config, seed=3)
    small = [model.embedding.projections[0], model.softmax.projections[0]]
    large = [model.embedding.tables[0], model.decoder_layers[0].attention.qkv_kernel]
    large.append(model.decoder_layers[2].feed_forward.outer.kernel)
    for weights, spread in [(small, 0.007), (large, 0.03)]:
        for weight in weights:
            # 1,000 draws and more: the standard deviation is known to 3 %, four times less.
            np.testing.assert_allclose(np.std(weight), spread, rtol=0.12)


def test_uniform_weights_stay_within_the_range_of_the_config():
    config = dataclasses.replace(make_config(cutoffs=(5,), div_val=2), init="uniform")
    model = TransformerXL(dataclasses.replace(config, init_range=0.07), seed=3)
    weights = [model.embedding.tables[0], model.softmax.projections[0], model.content_bias]
    for weight in weights:
        assert 0.05 < np.abs(weight).max() <= 0.07


WORDS = {"cutoffs": (5, 12), "div_val": 2, "d_embed": 8}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_word_models_train_with_weights_of_less_than_float32(dtype):
    model = TransformerXL(make_config(**WORDS), seed=1, dtype=dtype)

    @tf.function
    def compute():
        with tf.GradientTape() as tape:
            hidden, _ = model(make_ids(), model.initial_memory(BATCH, 3))
            nll = model.nll(hidden, make_ids())
        return tape.gradient(nll, [variable.value for variable in model.trainable_variables])

    assert all(np.isfinite(tf.cast(grad, "float32")).all() for grad in compute())


def test_projections_start_independent_of_the_tables():
    embedding = TransformerXL(make_config(**WORDS), seed=1).embedding
    table, projection = np.ravel(embedding.tables[0]), np.ravel(embedding.projections[0])
    size = min(table.size, projection.size)  # 40 draws: chance stays below 0.6
    assert abs(np.corrcoef(table[:size], projection[:size])[0, 1]) < 0.6


def test_a_model_comes_back_with_its_dtype_policy():
    model = TransformerXL(make_config(), dtype="mixed_bfloat16")
    assert TransformerXL.from_config(model.get_config()).compute_dtype == "bfloat16"


def test_a_shape_that_is_not_fixed_is_an_error():
    model = make_model()
    read_text = tf.function(lambda ids: model(ids, model.initial_memory(BATCH, 3))[0])
    with pytest.raises(ValueError, match=r"`ids` must have a fixed shape .*Received: \(2, None\)"):
        read_text.get_concrete_function(tf.TensorSpec((BATCH, None), "int32"))
