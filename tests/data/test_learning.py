import numpy as np
import pytest

from txl_tf.data.text.learning import (
    LearningOptions,
    choose_fields,
    choose_symbols,
    learn_fields,
    select_candidates,
)
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError

# In order of first appearance; "c" and "a" are equally frequent, as are "d", "e" and "<unk>".
COUNTS = {"d": 2, "c": 5, "b": 7, "a": 5, "e": 2, "<unk>": 2, "f": 1}


def choose(**options):
    return " ".join(choose_symbols(COUNTS, LearningOptions(**options)))


def learn(level, *texts, **options):
    """Returns the vocabulary, and what the user is told."""
    lines = []
    encoded = [text.encode() for text in texts]
    fields = learn_fields(level, encoded, LearningOptions(**options), report=lines.append)
    return Vocabulary(level, **fields), lines


def test_symbols_fall_by_count_and_ties_keep_first_appearance():
    assert choose() == "b c a d e <unk> f"


def test_special_symbols_and_marks_of_lines_come_first_and_once():
    found = choose(special=("x", "a"), line_start="<S>", line_end="<S>")
    assert found == "x a <S> b c d e <unk> f"


def test_the_unknown_symbol_has_its_place_or_follows_the_special_ones():
    assert choose(special=("x",), unknown="?") == "x ? b c a d e <unk> f"
    assert choose(special=("x",), unknown="<unk>") == "x b c a d e <unk> f"
    assert choose(unknown="<unk>", min_count=5) == "b c a <unk>"


@pytest.mark.parametrize(("min_count", "expected"), [(5, "b c a"), (8, "")])
def test_rare_symbols_are_left_out(min_count, expected):
    assert choose(min_count=min_count) == expected


@pytest.mark.parametrize(("max_symbols", "expected"), [(1, "b"), (3, "b c a"), (97, choose())])
def test_the_most_frequent_symbols_are_kept(max_symbols, expected):
    assert choose(max_symbols=max_symbols) == expected


def test_special_symbols_and_the_unknown_one_count_among_the_most():
    assert choose(special=("x",), line_end="y", unknown="?", max_symbols=5) == "x y ? b c"


@pytest.mark.parametrize(("max_symbols", "expected"), [(3, "b c <unk>"), (1, "<unk>")])
def test_the_unknown_symbol_takes_the_last_place(max_symbols, expected):
    assert choose(unknown="<unk>", max_symbols=max_symbols) == expected


def test_there_must_be_room_for_special_symbols_and_the_unknown_one():
    with pytest.raises(UserError, match=r"at least 3, .* Received: max_symbols=2"):
        choose(special=("x",), line_end="y", unknown="?", max_symbols=2)


def test_the_user_is_told_how_many_symbols_are_left_out():
    _, lines = learn("word", "b b c a a", min_count=2, special=("x", "y"))
    assert lines == ["Symbols left out of the vocabulary: 1"]


@pytest.mark.parametrize("name", ["min_count", "max_symbols"])
def test_counts_must_be_positive(name):
    with pytest.raises(ValueError, match=rf"`{name}` must be positive\. Received: {name}=0"):
        learn("word", "a", **{name: 0})


def test_characters_may_be_few():
    vocabulary, _ = learn("char", "aaabbc", "c?", unknown="?", min_count=2, max_symbols=3)
    assert vocabulary.symbols == ("a", "b", "?")
    assert vocabulary.decode(vocabulary.encode("abcd")) == "ab??"


def test_the_space_has_the_place_of_its_count_unless_it_is_rare():
    vocabulary, _ = learn("char", "a b b  ", space="_")
    assert vocabulary == Vocabulary("char", ("_", "b", "a"), space="_")
    vocabulary, _ = learn("char", "aab b ab", space="_", max_symbols=1)
    assert vocabulary == Vocabulary("char", ("a",))


def test_words_are_learnt_in_lower_case():
    vocabulary, _ = learn("word", "The the cat", lower_case=True)
    assert vocabulary == Vocabulary("word", ("the", "cat"), lower_case=True)


def test_the_symbol_for_the_space_must_not_occur():
    with pytest.raises(UserError, match=r"`space` must not occur in `texts`.*space='_'"):
        learn("char", "a _", space="_")


def test_threads_change_nothing():
    texts = [f"w{i % 7} w{i % 11} x{i}\n".encode() for i in range(31)]
    options = LearningOptions(line_end="</s>", unknown="<unk>", max_symbols=23)
    one, many = (learn_fields("word", texts, options, n_threads=n) for n in (1, 3))
    assert one == many


@pytest.mark.parametrize(
    ("level", "option", "levels"),
    [
        ("char", {"special": ("a",)}, "'word'"),
        ("byte", {"max_symbols": 2}, "'char' or 'word' or 'subword'"),
        ("char", {"lower_case": True}, "'word' or 'subword'"),
    ],
)
def test_an_option_of_another_level_is_refused(level, option, levels):
    (name,) = option
    with pytest.raises(ValueError, match=rf"`{name}` needs level={levels}. Received: .*'{level}'"):
        learn(level, "a", **option)


@pytest.mark.parametrize("n_groups", [1, 5])
@pytest.mark.parametrize(
    "options",
    [
        LearningOptions(max_symbols=5, min_count=3, unknown="e", special=("d", "z")),
        LearningOptions(min_count=4, unknown="<unk>", line_end="b"),
    ],
)
def test_candidates_of_groups_are_enough_to_choose_from(options, n_groups):
    rng = np.random.default_rng(0)
    counts = {symbol: int(rng.integers(1, 7)) for symbol in "abcdefghijklmnopq"}
    reports, expected_reports = [], []
    expected = choose_fields(counts, options, report=expected_reports.append)
    located = {symbol: (n, (place, 0)) for place, (symbol, n) in enumerate(counts.items())}
    left = {}
    for group in range(n_groups):
        part = dict(list(located.items())[group::n_groups])
        left |= select_candidates(part, options)
    left = select_candidates(left, options)
    ordered = {symbol: n for symbol, (n, _) in sorted(left.items(), key=lambda item: item[1][1])}
    found = choose_fields(ordered, options, n_symbols=len(counts), report=reports.append)
    assert (found, reports) == (expected, expected_reports)
    assert options.max_symbols is None or len(left) <= options.max_symbols + 3
