"""The attention of the layers, segment by segment."""

import numpy as np
import pytest
import tensorflow as tf
from small_cached_model import SPANS, make_model
from tables import slow_after

from txl_tf.cached_model import CachedModel
from txl_tf.inference.attention_terms import read_attention

IDS = np.random.default_rng(2).integers(0, 13, (2, 15), dtype="int32")
STARTS = np.isin(np.arange(30).reshape(2, 15), [3, 11, 15, 22])


@pytest.mark.parametrize(
    ("span", "has_documents"),
    slow_after(2, [(SPANS[3], True), (SPANS[0], True), (SPANS[4], True), (SPANS[3], False)]),
    ids=str,
)
def test_the_model_reads_as_it_does_unwatched(span, has_documents):
    cached = CachedModel(make_model(), span, 5)
    watched = expected = cached.initial_state(2)
    for start in range(0, 15, 5):
        ids, starts = (tf.constant(each[:, start : start + 5]) for each in (IDS, STARTS))
        starts = starts if has_documents else None
        hidden, expected = cached.read(ids, expected, document_starts=starts)
        layers, states, watched = read_attention(
            cached, ids, watched, lambda layer, attention: (layer, attention), starts
        )
        for ours, theirs in zip(
            tf.nest.flatten((states, watched)), tf.nest.flatten((hidden, expected)), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
        assert [index for index, _ in layers] == [0, 1]
        for _, attention in layers:
            assert (attention.weights.numpy() >= 0).all()
            sums = attention.weights.numpy().sum(axis=-1)
            np.testing.assert_allclose(sums, 1, rtol=0, atol=1e-6)
