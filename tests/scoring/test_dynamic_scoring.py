"""`lm.score` and `lm.evaluate` with weights that learn from the text."""

import dataclasses
import shutil

import numpy as np
import pytest
from small_language_model import SPANS, make_transformer
from small_runs import Text
from tables import slow_after

from txl_tf.config import EvalConfig
from txl_tf.config.dynamic import DynamicConfig
from txl_tf.data import Vocabulary, open_records, write_records
from txl_tf.errors import UserError
from txl_tf.language_model import LanguageModel, load
from txl_tf.scoring.dynamic_evaluation import AdaptingReader, gather_roots
from txl_tf.scoring.evaluator import Evaluator

STILL = DynamicConfig("sgd", 1e-30, 0.0)
SGD = DynamicConfig("sgd", 0.05, 0.01)
VOCABULARY = Vocabulary("word", tuple(f"w{index}" for index in range(13)))
LENGTHS = (0, 1, 2, 23, 5, 6, 7, 47, 3)


def make_texts():
    rng = np.random.default_rng(3)
    return [rng.integers(0, 13, length, np.int32) for length in LENGTHS]


def make_lm(span=SPANS[4], **options):
    names = ("mem_len", "same_length", "counts_self", "clamp_len")
    config = EvalConfig(tgt_len=5, **{name: getattr(span, name) for name in names})
    return LanguageModel(make_transformer(), VOCABULARY, config, **options)


@pytest.mark.parametrize(
    ("span", "mask_empty_memory"), slow_after(1, [(SPANS[3], True), (SPANS[4], False)]), ids=str
)
def test_steps_of_nothing_give_the_static_scores(span, mask_empty_memory):
    lm = make_lm(span)
    options = {"mask_empty_memory": mask_empty_memory, "jit": "none"}
    static = lm.score(make_texts(), **options)
    dynamic = lm.score(make_texts(), dynamic=STILL, **options)
    for one, other in zip(static, dynamic, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_allclose(one.nats, other.nats, rtol=0, atol=1e-5)
        assert one.n_unknown == other.n_unknown


def test_a_text_is_scored_as_a_split_of_its_own():
    lm, text = make_lm(), make_texts()[7]
    (found,) = lm.score([text], dynamic=SGD, mask_empty_memory=False, jit="none")
    one_lane = dataclasses.replace(lm.evaluation, eval_batch_size=1)
    reader = AdaptingReader(lm.model, lm.span, SGD, jit="none")
    expected = Evaluator(lm.model, one_lane, reader=reader).score(Text(text))
    assert found.tokens == expected.tokens == 46
    assert found.total_nats == pytest.approx(expected.total_nats, rel=1e-6)
    (static,) = lm.score([text], mask_empty_memory=False, jit="none")
    assert found.total_nats != pytest.approx(static.total_nats, rel=1e-3)


def test_texts_do_not_learn_from_each_other_unless_they_are_one():
    lm, texts = make_lm(), make_texts()
    together = lm.score(texts, dynamic=SGD, jit="none")
    (alone,) = lm.score([texts[7]], dynamic=SGD, jit="none")
    np.testing.assert_array_equal(together[7].nats, alone.nats)
    carried = lm.score(texts, dynamic=SGD, carry_memory=True, jit="none")
    (joined,) = lm.score([np.concatenate(texts)], dynamic=SGD, jit="none")
    nats = np.concatenate([score.nats for score in carried])
    np.testing.assert_array_equal(nats, joined.nats)


@pytest.mark.slow
def test_weights_that_diverge_are_an_error():
    lm = make_lm()
    with pytest.raises(UserError, match=r"the weights diverge. Received: learning_rate=1e\+30"):
        lm.score(make_texts(), dynamic=DynamicConfig("sgd", 1e30, 0.0), jit="none")
    (expected,) = make_lm().score(make_texts()[7:8], dynamic=SGD, jit="none")
    (found,) = lm.score(make_texts()[7:8], dynamic=SGD, jit="none")
    np.testing.assert_array_equal(found.nats, expected.nats)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with records of its own."""
    folder = tmp_path_factory.mktemp("dynamic") / "run"
    make_lm().save(folder)
    rng = np.random.default_rng(5)
    splits = {"train": [rng.integers(0, 13, 307)], "test": [rng.integers(0, 13, 97)]}
    write_records(folder / "records", dataset="words", vocabulary=VOCABULARY, splits=splits)
    return folder


@pytest.mark.slow
def test_dynamic_true_stands_for_the_defaults(run):
    lm, text = load(run), make_texts()[7]
    (expected,), (found,) = (
        lm.score([text], dynamic=dynamic, jit="none") for dynamic in (DynamicConfig(), True)
    )
    np.testing.assert_array_equal(found.nats, expected.nats)


@pytest.mark.slow
def test_a_split_is_evaluated_with_the_statistics_of_its_data(run):
    lm, records = load(run), open_records(run / "records")
    config = DynamicConfig("rms", 0.01, 0.1, 1e-3, 5)
    one_lane = dataclasses.replace(lm.evaluation, eval_batch_size=1)
    roots = gather_roots(lm.model, one_lane, records.split("train"), 5, jit="none")
    reader = AdaptingReader(lm.model, lm.span, config, roots, jit="none")
    expected = Evaluator(lm.model, one_lane, reader=reader).score(records.split("test"))
    found = lm.evaluate("test", dynamic=config)
    assert found.total_nats == pytest.approx(expected.total_nats, rel=1e-5)
    assert found.total_nats != pytest.approx(lm.evaluate("test").total_nats, rel=1e-3)


def test_a_run_with_records_of_another_vocabulary_is_not_adapted(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("records"))
    letters = Vocabulary("char", tuple("abcdefghijklm"))
    write_records(
        copy / "records", dataset="letters", vocabulary=letters, splits={"train": [np.arange(13)]}
    )
    with pytest.raises(UserError, match="has another vocabulary than the model"):
        load(copy).score(make_texts(), dynamic=True)


def test_dynamic_evaluation_refuses_runs_that_it_cannot_adapt(run):
    with pytest.raises(UserError, match=r"training split, and the run has none: choose rule=sgd"):
        make_lm().score(make_texts(), dynamic=True)
    with pytest.raises(UserError, match=r"the model has no records of its own: pass `data_dir`"):
        make_lm().evaluate()
    lm = load(run)
    lm.evaluation = dataclasses.replace(lm.evaluation, reset_at_documents=True)
    with pytest.raises(UserError, match=r"needs a data set with document boundaries"):
        lm.evaluate()
    with pytest.raises(UserError, match="`dynamic` needs float32 weights"):
        load(run, precision="int8").score(make_texts(), dynamic=True)
    lm = make_lm()
    lm.evaluation = dataclasses.replace(lm.evaluation, temperature=1.1)
    with pytest.raises(UserError, match="`temperature` must be 1"):
        lm.score(make_texts(), dynamic=SGD)


def test_frozen_weights_learn_from_the_text_too():
    (expected,) = make_lm().score(make_texts()[7:8], dynamic=SGD, jit="none")
    lm = make_lm()
    lm.model.trainable = False
    (found,) = lm.score(make_texts()[7:8], dynamic=SGD, jit="none")
    np.testing.assert_array_equal(found.nats, expected.nats)


@pytest.mark.slow
def test_statistics_are_those_of_the_current_weights(run):
    lm, texts = load(run), make_texts()[7:8]
    options = {"dynamic": DynamicConfig("rms", 0.01, 0.1, 1e-3, 5), "jit": "none"}
    lm.score(texts, **options)
    for weight in lm.model.trainable_variables:
        weight.assign(weight / 3)
    (found,) = lm.score(texts, **options)
    new = LanguageModel(lm.model, lm.vocabulary, lm.evaluation, records=lm.records)
    (expected,) = new.score(texts, **options)
    np.testing.assert_array_equal(found.nats, expected.nats)
