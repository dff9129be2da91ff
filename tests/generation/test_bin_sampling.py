import numpy as np
import pytest
import tensorflow as tf

from txl_tf import LanguageModel, ModelConfig, TransformerXL
from txl_tf.config import EvalConfig
from txl_tf.generation.sampling import BANNED_LOGIT, StandardSampler

BINS = ((0, 5), (5, 12), (12, 40))
N_ROWS = 400


def make_log_probs(seed):
    """Returns the log-probabilities of the head (B, 7) and within each further bin."""
    generator = np.random.default_rng(seed)
    sizes = (7, *(high - low for low, high in BINS[1:]))
    logits = (generator.normal(0, 2, (N_ROWS, size)) for size in sizes)
    head, *tails = (tf.nn.log_softmax(tf.constant(rows, tf.float32)) for rows in logits)
    return head, dict(enumerate(tails, 1))


def join(head, tails):
    """Returns the log-probabilities of all tokens, (B, V)."""
    parts = [head[:, :5], *(head[:, 4 + index, None] + tails[index] for index in tails)]
    return tf.concat(parts, axis=1)


@pytest.mark.parametrize("banned", [(), (2,), (6, 7, 39), tuple(range(5, 12))], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bins_give_the_tokens_that_all_probabilities_give(temperature, banned):
    sampler, is_allowed = StandardSampler(temperature, None), np.ones(40, bool)
    is_allowed[list(banned)] = False
    head, tails = make_log_probs(seed=0)
    uniforms = tf.constant(np.linspace(0, 1, N_ROWS, endpoint=False), tf.float32)
    log_probs = tf.where(is_allowed, join(head, tails), BANNED_LOGIT)
    expected = sampler.choose(log_probs, uniforms, tf.zeros((N_ROWS, 40), bool))
    found = sampler.choose_by_bins(head, BINS, tails.__getitem__, uniforms, is_allowed)
    np.testing.assert_array_equal(found, expected)
    n_drawn = [np.sum((found >= low) & (found < high)) for low, high in BINS]
    assert [count > 0 for count in n_drawn] == [True, len(banned) < 7, True]


def choose_and_list_bins(temperature, uniform, head):
    """Returns the token of one row, and the bins that were computed for it."""
    computed = []

    def compute_inside(index):
        computed.append(index)
        n_tokens = BINS[index][1] - BINS[index][0]
        return tf.fill((1, n_tokens), -np.float32(np.log(n_tokens)))

    head = tf.math.log(tf.constant([head], tf.float32))
    sampler, uniforms = StandardSampler(temperature, None), tf.constant([uniform], tf.float32)
    is_allowed = np.ones(40, bool)
    tokens = sampler.choose_by_bins(head, BINS, compute_inside, uniforms, is_allowed)
    return int(tokens[0]), computed


@pytest.mark.parametrize(
    ("uniform", "token", "bins"), [(0.25, 1, []), (0.56, 6, [1]), (0.999, 39, [2])]
)
def test_sampling_computes_only_the_bin_that_is_drawn(uniform, token, bins):
    head = [0.1, 0.2, 0.1, 0.05, 0.05, 0.35, 0.15]
    assert choose_and_list_bins(1.0, uniform, head) == (token, bins)


def test_greedy_decoding_computes_only_bins_that_could_hold_the_best_token():
    assert choose_and_list_bins(0.0, 0.9, [0.1, 0.4, 0.1, 0.05, 0.05, 0.2, 0.1]) == (1, [])
    assert choose_and_list_bins(0.0, 0.9, [0.02, 0.02, 0.03, 0.01, 0.02, 0.5, 0.4]) == (5, [1, 2])


def test_greedy_decoding_draws_by_bins_whatever_the_candidates():
    assert StandardSampler(temperature=0).draws_by_bins
    assert StandardSampler(temperature=0, top_k=3, top_p=0.5).draws_by_bins
    assert not StandardSampler(temperature=1).draws_by_bins


class AlwaysThree(StandardSampler):
    """A sampler that is standard but for its choice."""

    def choose(self, log_probs, uniforms, seen):
        return tf.fill(tf.shape(uniforms), 3)


def test_a_subclass_that_chooses_otherwise_needs_no_bins():
    sizes = {"n_layer": 1, "d_model": 6, "d_embed": 6, "n_head": 2, "d_head": 3, "d_inner": 7}
    model = TransformerXL(ModelConfig(n_token=13, cutoffs=(5,), **sizes), seed=1)
    lm = LanguageModel(model, None, EvalConfig(tgt_len=5, mem_len=7))
    ids = lm.generate(np.array([1]), max_new_tokens=9, sampler=AlwaysThree(1.0, None))
    np.testing.assert_array_equal(ids, [3] * 9)
