import numpy as np
import pytest

from txl_tf.lab.attention_lengths import AttentionLengths
from txl_tf.lab.context_report import ContextReport
from txl_tf.lab.effective_length import (
    ContextCurve,
    Length,
    compare_models,
    find_effective_length,
    summarize_losses,
)
from txl_tf.scoring.metrics import Score

LENGTHS = [5, 10, 15, 20]


def make_losses(*means, n=1000, seed=0):
    """Returns losses (C, n) with these means; the positions differ much more than the contexts."""
    shared = np.random.default_rng(seed).exponential(1, n)
    return np.stack([shared - shared.mean() + mean for mean in means]).astype(np.float32)


def compare_by_loops(models, lengths, share, threshold):
    """Appendix C, position by position."""
    n = models[0].shape[1]
    table, found = {}, []
    for i, losses in enumerate(models):
        for a in range(len(lengths)):
            best = [min(float(m[a, t]) for m in models) for t in range(n)]
            hard = sorted(range(n), key=lambda t: (-best[t], t))[: max(1, round(share * n))]
            for b in range(a, len(lengths)):
                values = [min(best[t], float(losses[b, t])) for t in hard]
                table[i, a, b] = sum(values) / len(values)
        a = 0
        while a + 1 < len(lengths):
            before, after = np.exp(table[i, a, a]), np.exp(table[i, a, a + 1])
            if (before - after) / before < threshold:
                break
            a += 1
        found.append(lengths[a])
    return table, found


@pytest.mark.parametrize("share", [0.1, 0.37, 1])
@pytest.mark.parametrize("threshold", [0.01, 0.2])
def test_relative_lengths_are_those_of_the_definition(share, threshold):
    generator = np.random.default_rng(1)
    models = []
    for decay in (0.2, 0.6):
        shared = generator.exponential(1, (1, 53))
        noise = generator.exponential(0.3, (4, 53))
        models.append((shared + noise * decay ** np.arange(4)[:, None]).astype(np.float32))
    found = compare_models(models, LENGTHS, share, threshold)
    table, lengths = compare_by_loops(models, LENGTHS, share, threshold)
    assert [length.tokens for length in found.lengths] == lengths
    for (i, a, b), mean in table.items():
        assert found.losses[i, a, b] == pytest.approx(mean, rel=1e-6)
        assert found.gains[i, a, b] == pytest.approx(np.exp(table[i, a, a]) - np.exp(mean))
    assert np.isnan(found.losses[:, 1, 0]).all()


def test_a_model_alone_stops_where_a_longer_context_gains_too_little():
    losses = make_losses(2.0, 1.9, 1.895, 1.5)
    (length,) = compare_models([losses], LENGTHS, 1.0).lengths
    assert length == Length(10, False)
    assert compare_models([losses], LENGTHS, 1.0, 0.001).lengths == [Length(20, True)]


def test_the_effective_length_is_the_last_that_gains():
    assert find_effective_length(make_losses(2.0, 1.9, 1.9, 1.89), LENGTHS) == (20, True)
    assert find_effective_length(make_losses(2.0, 2.0, 1.9, 1.9), LENGTHS) == (15, False)
    assert find_effective_length(make_losses(2.0, 2.0, 2.0, 2.1), LENGTHS) == (5, False)
    assert str(Length(1200, True)) == "1,200 or more"


def test_contexts_differ_by_less_than_targets():
    curve = summarize_losses(make_losses(2.0, 1.5, 1.4, 1.4), as_perplexity=True)
    np.testing.assert_allclose(curve.means, np.exp([2.0, 1.5, 1.4, 1.4]), rtol=1e-5)
    assert (curve.errors > 0.1).all()
    assert (curve.excess_errors < 1e-5).all()
    assert curve.excess[0] == pytest.approx(np.exp(2.0) - np.exp(1.4), rel=1e-5)
    in_bits = summarize_losses(make_losses(2.0, 1.5, 1.4, 1.4), as_perplexity=False)
    np.testing.assert_allclose(in_bits.means, np.log2(curve.means), rtol=1e-5)


def test_the_best_loss_is_the_lowest_even_if_a_shorter_length_reaches_its_perplexity():
    scores = [Score(nats, 1, "byte") for nats in (0.744, 0.742, 0.7415)]
    report = ContextReport({}, "bpc", [1], {"run": ContextCurve(*np.zeros((3, 1)))}, {}, [], {})
    report.add_attention_lengths("run", AttentionLengths([64, 128, 256], scores, 128))
    row = list(report.format_attention_lengths())[1].split()
    assert row == ["run", "1.0705", "at", "128", "1.0698", "64"]
