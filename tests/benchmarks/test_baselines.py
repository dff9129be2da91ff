import json
from collections import Counter

import numpy as np
import pytest

from benchmarks import baselines
from benchmarks.baselines import witten_bell_bpc
from txl_tf.data import Vocabulary, write_records


def reference_probability(train, context, symbol, n_symbols):
    """The recursion of the paper, read off the text for one symbol at a time."""
    if context is None:
        return 1 / n_symbols
    k = len(context)
    followers = Counter(train[i] for i in range(k, len(train)) if train[i - k : i] == context)
    lower_context = context[1:] if context else None
    lower = reference_probability(train, lower_context, symbol, n_symbols)
    if not followers:
        return lower
    return (followers[symbol] + len(followers) * lower) / (followers.total() + len(followers))


def random_ids(seed, size, n_symbols):
    return np.random.default_rng(seed).integers(n_symbols, size=size)


@pytest.mark.parametrize(("order", "n_symbols"), [(0, 5), (3, 7)])
def test_witten_bell_equals_brute_force(order, n_symbols):
    # Short enough that at order 3 contexts are seen often, once and never.
    train, test = random_ids(11, 113, n_symbols), random_ids(13, 41, n_symbols)
    texts = train.tolist(), test.tolist()
    probabilities = [
        reference_probability(texts[0], texts[1][max(0, i - order) : i], texts[1][i], n_symbols)
        for i in range(1, len(test))
    ]
    expected = -np.log2(probabilities).mean()
    # Both sum the same float64 numbers, in another order.
    assert witten_bell_bpc(train, test, order, n_symbols) == pytest.approx(expected, abs=1e-9)


def write_text(data_dir):
    """Writes a random text of 7 symbols."""
    train, test = (
        "".join("abcdefg"[i] for i in random_ids(seed, size, 7))
        for seed, size in ((59, 4999), (61, 1999))
    )
    vocabulary = Vocabulary.learn("byte", [train])
    splits = {"train": [vocabulary.encode(train)], "test": [vocabulary.encode(test)]}
    write_records(data_dir, dataset="random", vocabulary=vocabulary, splits=splits)


def test_the_table_has_the_last_whole_evaluation_of_a_run(tmp_path, capsys):
    write_text(tmp_path)
    evaluations = [("test", 3.5), ("valid", 1.5), ("test", 2.625), ("test", 4.5)]
    lines = [
        json.dumps({"split": split, "step": 13, "bpc": bpc, "is_whole": bpc < 4}) + "\n"
        for split, bpc in evaluations
    ]
    (tmp_path / "evaluations.jsonl").write_text("".join(lines))
    assert baselines.main(["baselines", f"--data_dir={tmp_path}", f"--model_dir={tmp_path}"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[-1] == "Transformer-XL, 13 steps   2.625"
    assert {len(line) for line in table} == {len(table[-1])}
