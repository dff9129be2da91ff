import json
from collections import Counter

import numpy as np
import pytest

from benchmarks import baselines
from benchmarks.baselines import measure_baselines, predict_symbols, witten_bell_bpc, xz_bpc
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


@pytest.mark.parametrize("n_symbols", [5, 7])
@pytest.mark.parametrize("order", [0, 2, 3])
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


@pytest.mark.parametrize("order", [0, 2, 3])
@pytest.mark.parametrize("context", [[1, 4, 2], [3, 3, 3], [6, 0]])
def test_probabilities_of_all_symbols_sum_to_one(order, context):
    train = random_ids(17, 113, 7)
    total = sum(predict_symbols(train, [*context, c], order, 7)[-1] for c in range(7))
    assert total == pytest.approx(1, abs=1e-12)


def test_symbols_near_the_start_use_the_context_there_is():
    train, test = random_ids(19, 113, 5), random_ids(23, 29, 5)
    at_order_1, at_order_3 = (predict_symbols(train, test, order, 5) for order in (1, 3))
    np.testing.assert_array_equal(at_order_1[:2], at_order_3[:2])


def test_a_future_symbol_changes_no_probability():
    train, test = random_ids(29, 113, 5), random_ids(31, 29, 5)
    changed = test.copy()
    changed[17] = (test[17] + 1) % 5
    before, after = (predict_symbols(train, ids, 3, 5) for ids in (test, changed))
    np.testing.assert_array_equal(before[:17], after[:17])


def test_first_symbol_is_not_scored():
    # Symbol 2 is not in the training text and would cost more than the others.
    train, test = np.array([0, 1] * 7), np.array([0, 1, 1, 0, 0])
    rare_first = np.array([2, 1, 1, 0, 0])
    assert witten_bell_bpc(train, test, 0, 3) == witten_bell_bpc(train, rare_first, 0, 3)


def test_constant_text_at_order_0_costs_its_closed_form():
    # N = 97, T = 1: p = (97 + 1/5) / 98 for every symbol.
    expected = -np.log2((97 + 1 / 5) / 98)
    bpc = witten_bell_bpc(np.full(97, 3), np.full(13, 3), order=0, n_symbols=5)
    assert bpc == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("order", [0, 3])
def test_unseen_symbol_has_finite_bits(order):
    bpc = witten_bell_bpc(np.array([0, 1, 2] * 11), np.array([0, 4, 4, 1]), order, n_symbols=5)
    assert np.isfinite(bpc)


@pytest.mark.parametrize("train_size", [0, 1, 2])
def test_training_text_shorter_than_the_context_adds_no_level(train_size):
    train, test = random_ids(37, train_size, 5), random_ids(41, 13, 5)
    top = max(train_size - 1, 0)
    expected = witten_bell_bpc(train, test, top, 5)
    assert witten_bell_bpc(train, test, 6, 5) == expected


def test_no_training_text_leaves_the_uniform_model():
    bpc = witten_bell_bpc(np.zeros(0, np.int64), random_ids(43, 13, 7), 3, n_symbols=7)
    assert bpc == pytest.approx(np.log2(7), abs=1e-12)


def test_order_6_of_bytes_does_not_overflow():
    # 255 everywhere makes the largest key; uint8 ids would wrap in their own type.
    text = np.full(97, 255, np.uint8)
    assert witten_bell_bpc(text, text, order=6, n_symbols=256) < 0.02


def test_keys_beyond_int64_are_refused():
    ids = np.array([0, 1, 2])
    message = r"`n_symbols` \*\* \(`order` \+ 1\) must fit in int64\. Received: n_symbols=256"
    with pytest.raises(ValueError, match=message):
        witten_bell_bpc(ids, ids, order=7, n_symbols=256)


def test_id_outside_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match=r"`test_ids` must lie in .* Received: 0 to 5"):
        witten_bell_bpc(np.array([0, 1]), np.array([0, 5]), order=1, n_symbols=5)


def test_float_ids_are_refused():
    with pytest.raises(ValueError, match="`train_ids` must be a 1-D integer array"):
        witten_bell_bpc(np.array([0.0, 1.0]), np.array([0, 1]), order=1, n_symbols=5)


def test_test_text_without_a_target_is_refused():
    with pytest.raises(ValueError, match=r"`test_ids` must hold at least 2 ids\. Received: 1"):
        witten_bell_bpc(np.array([0, 1]), np.array([0]), order=1, n_symbols=5)


def test_negative_order_is_refused():
    with pytest.raises(ValueError, match=r"`order` must be at least 0\. Received: order=-1"):
        witten_bell_bpc(np.array([0, 1]), np.array([0, 1]), order=-1, n_symbols=5)


def test_xz_prices_a_repeated_text_at_almost_nothing():
    text = np.random.default_rng(47).bytes(4999)
    # A match of xz is at most 273 bytes long, so a repeat is not free: 2% of these 8 bits a byte.
    assert xz_bpc(text, text) < 0.05 * xz_bpc(b"", text)


def test_xz_prices_random_bytes_at_8_bits():
    rng = np.random.default_rng(53)
    train, test = rng.bytes(4999), rng.bytes(4999)
    # A header every 64 kB and rounding to 4 bytes: under 1% of this text.
    assert xz_bpc(train, test) == pytest.approx(8, rel=0.01)


def test_xz_of_an_empty_text_is_refused():
    with pytest.raises(ValueError, match="`test` must hold at least 1 byte"):
        xz_bpc(b"abc", b"")


def write_text(data_dir, level):
    """Writes a random text of 7 symbols, which take 2 bytes of UTF-8 each at level "char"."""
    symbols = "абвгдеж" if level == "char" else "abcdefg"
    train, test = (
        "".join(symbols[i] for i in random_ids(seed, size, 7))
        for seed, size in ((59, 4999), (61, 1999))
    )
    vocabulary = Vocabulary.learn(level, [train])
    splits = {"train": [vocabulary.encode(train)], "test": [vocabulary.encode(test)]}
    write_records(data_dir, dataset="random", vocabulary=vocabulary, splits=splits)


def test_measure_baselines_names_every_model(tmp_path):
    write_text(tmp_path, "byte")
    assert list(measure_baselines(tmp_path)) == ["order-0", "order-3", "order-5", "xz -9"]


def test_xz_is_counted_per_symbol_whatever_the_bytes(tmp_path):
    write_text(tmp_path / "byte", "byte")
    write_text(tmp_path / "char", "char")
    # xz pays a little for the constant lead bytes of UTF-8, far from the factor 2 of its bytes.
    assert measure_baselines(tmp_path / "char")["xz -9"] == pytest.approx(
        measure_baselines(tmp_path / "byte")["xz -9"], rel=0.25
    )


def test_the_table_has_the_last_whole_evaluation_of_a_run(tmp_path, capsys):
    write_text(tmp_path, "byte")
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


def test_the_table_takes_bits_per_token_where_characters_are_unknown(tmp_path, capsys):
    write_text(tmp_path, "byte")
    record = {"split": "test", "step": 13, "bpc": None, "bits_per_token": 2.625, "is_whole": True}
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(record) + "\n")
    assert baselines.main(["baselines", f"--data_dir={tmp_path}", f"--model_dir={tmp_path}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Transformer-XL, 13 steps   2.625"


def test_a_run_without_evaluation_is_one_line_and_status_1(tmp_path, capsys):
    write_text(tmp_path, "byte")
    assert baselines.main(["baselines", f"--data_dir={tmp_path}", f"--model_dir={tmp_path}"]) == 1
    assert capsys.readouterr().err == (
        f"baselines: `{tmp_path}` has no evaluation on test: run train_gpu.py --do_eval\n"
    )


def test_a_folder_without_records_is_one_line_and_status_1(tmp_path, capsys):
    assert baselines.main(["baselines", f"--data_dir={tmp_path}"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"baselines: `{tmp_path}` holds no records.")
    assert error.count("\n") == 1
