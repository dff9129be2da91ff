"""The synthetic corpus with the sizes of Penn Treebank."""

import numpy as np
import pytest

from benchmarks import markov_words
from benchmarks.markov_words import N_WORDS, SIZES, Chain
from txl_tf.data.records.reading import open_records
from txl_tf.preparation.corpora import CORPORA


@pytest.fixture(scope="module")
def chain():
    return Chain.draw(np.random.default_rng(3), 500)


def test_the_probabilities_of_the_words_after_each_word_add_up_to_one(chain):
    words = np.arange(500)
    for before in (0, 7, 499):
        ids = np.stack([np.full(500, before), words], axis=1)
        found = np.concatenate([chain.score(pair) for pair in ids])
        assert np.exp(-found).sum() == pytest.approx(1.0, abs=1e-9)


def test_the_corpus_has_the_sizes_of_penn_treebank(tmp_path, capsys):
    assert markov_words.main(["markov_words", f"--data_dir={tmp_path / 'data'}"]) == 0
    assert CORPORA["ptb"].tokens == SIZES
    assert CORPORA["ptb"].symbols == N_WORDS
    records = open_records(tmp_path / "data")
    assert {split: len(records.split(split)) for split in records.splits} == SIZES
    assert records.n_token == N_WORDS
    assert "valid: perplexity 115.9 by the chain itself, 909 by how" in capsys.readouterr().out
