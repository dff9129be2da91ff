import numpy as np
import pytest

from txl_tf.config import ModelConfig
from txl_tf.layers import AdaptiveEmbedding

VOCABULARY, WIDTH, CUTOFFS = 23, 14, (7, 10, 15)
CONFIGS = {
    "one table": {},
    "one table, projected": {"d_embed": 11},
    "one table, cutoffs": {"cutoffs": CUTOFFS},
    "one bin, projected to its own width": {"div_val": 2},
    "tables": {"cutoffs": CUTOFFS, "div_val": 2},
    "tables, the first unprojected": {"cutoffs": CUTOFFS, "div_val": 2, "proj_same_dim": False},
    "tables, wider than the model": {"cutoffs": CUTOFFS, "div_val": 2, "d_embed": 19},
}


def make_embedding(**changes):
    config = ModelConfig(n_token=VOCABULARY, **{"d_model": WIDTH, "d_embed": WIDTH} | changes)
    embedding, rng = AdaptiveEmbedding(config), np.random.default_rng(5)
    embedding.build()
    for variable in embedding.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    return embedding


def embed_by_hand(embedding, token):
    low = 0
    for table, projection in zip(embedding.tables, embedding.projections, strict=True):
        if token < low + table.shape[0]:
            vector = np.asarray(table)[token - low]
            vector = vector if projection is None else vector @ np.asarray(projection)
            return vector * np.sqrt(WIDTH)
        low += table.shape[0]
    raise AssertionError(token)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_id_is_embedded_by_its_bin(name):
    embedding = make_embedding(**CONFIGS[name])
    ids = np.random.default_rng(7).permutation(VOCABULARY)[None].repeat(2, axis=0)
    ids[1] = ids[1, ::-1]
    expected = [[embed_by_hand(embedding, token) for token in row] for row in ids]
    # Sums of at most 19 terms of the order of 1, times 3.7, in float32.
    np.testing.assert_allclose(embedding(ids.astype("int32")), expected, rtol=0, atol=3e-5)
