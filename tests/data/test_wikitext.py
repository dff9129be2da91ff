import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_tf.data.wikitext import (
    detokenize_continuation,
    detokenize_wikitext,
    is_wikitext,
    stream_wikitext,
)


@pytest.mark.parametrize(
    ("tokenised", "readable"),
    [
        ("a 5 @.@ 4 @-@ metre hall", "a 5.4-metre hall"),
        ("10 @,@ 000 @,@ 000 people", "10,000,000 people"),
        (
            'He said , " it is n\'t mine " ; it was hers .',
            'He said, "it isn\'t mine"; it was hers.',
        ),
        ("the king 's men ( all of them ) [ sic ]", "the king's men (all of them) [sic]"),
        (" = Title = \n\n = = = Early life = = = \n", "= Title =\n\n=== Early life ===\n"),
        ("a = b", "a = b"),
        ("$ 5 million , or 10 %", "$5 million, or 10%"),
        ("", ""),
    ],
)
def test_text_is_as_people_write_it(tokenised, readable):
    assert detokenize_wikitext(tokenised) == readable


def test_headings_can_be_left_as_they_are():
    text = ' = Title @-@ 2 , a = \n\nHe , " she " said .\n = = Plot = = '
    readable = ' = Title @-@ 2 , a = \n\nHe, "she" said.\n = = Plot = = '
    assert detokenize_wikitext(text, keep_headings=True) == readable


@pytest.mark.parametrize(
    ("context", "text", "readable"),
    [
        ("the cat", "sat , then .", "sat, then."),
        ("the cat", ", then .", ", then."),
        ('he said , " it', 'cost " . " You', 'cost". " You'),
        ('" a "\n"', 'b " , c', 'b ", c'),
        ("5 @,@", "000 men", "000 men"),
        ("5", "@,@ 000 men", ",000 men"),
        ("(", "a )", "a)"),
        ("a .\n", '= = Plot , a = =\n" b "', '= = Plot , a = =\n"b"'),
        ("a .", '\n= Plot =\n" b "', '\n= Plot =\n"b"'),
        ("= = Plot , a", "= =\nb .", "= =\nb."),
        ("", "a .", "a."),
    ],
)
def test_a_continuation_is_spelled_as_in_the_whole_text(context, text, readable):
    assert detokenize_continuation(context, text, keep_headings=True) == readable


def test_its_marks_tell_a_wikitext_vocabulary():
    assert is_wikitext(("<eos>", "@-@", "the", "@,@"))
    assert not is_wikitext(("<eos>", "-", "the", ","))


WORDS = ["the", "=", '"', ",", "(", ")", "@-@", "@,@", "'s", "n't", "$", "'", "5"]


@given(
    words=st.lists(st.sampled_from(WORDS), max_size=40),
    ends=st.lists(st.sampled_from([" ", " ", "\n", "\n ", " \n "]), min_size=40, max_size=40),
    cuts=st.lists(st.integers(0, 150), max_size=9),
)
def test_a_stream_gives_the_whole_text(words, ends, cuts):
    """However it is cut, also within words; what was shown once is never taken back."""
    text = "".join(word + end for word, end in zip(words, ends, strict=False))
    places = sorted({0, *cuts, len(text)})
    pieces = [text[low:high] for low, high in itertools.pairwise(places)]
    assert "".join(stream_wikitext(pieces)) == detokenize_wikitext(text)


def test_a_stream_shows_what_cannot_change_any_more():
    pieces = ["It cost 5 @,@", " 000 dollars", ' , " he', ' said " .\n', " = Plot", " = \n It"]
    shown = ["It cost 5", ",000", " dollars,", ' "he said".\n', "", "= Plot =\n", " It"]
    assert list(stream_wikitext(pieces)) == shown
