import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_tf.data.text.wikitext import (
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
        ("$ 5 million , or 10 %", "$5 million, or 10%"),
        ("O 'Brien did n't , she didn 't", "O'Brien didn't, she didn't"),
        ('the " 5 @-@ " and b " .', 'the "5-" and b ".'),
        ('" a\n" b " c', '"a\n"b" c'),
        ("a  ,  b ", "a,  b"),
    ],
)
def test_text_is_as_people_write_it(tokenised, readable):
    assert detokenize_wikitext(tokenised) == readable


def test_headings_can_be_left_as_they_are():
    text = ' = Title @-@ 2 , a = \n\nHe , " she " said .\n = = Plot = = \n'
    readable = ' = Title @-@ 2 , a = \n\nHe, "she" said.\n = = Plot = = \n'
    assert detokenize_wikitext(text, keep_headings=True) == readable


@pytest.mark.parametrize(
    ("context", "text", "readable"),
    [
        ("the cat", "sat , then .", " sat, then."),
        ("the cat", ", then .", ", then."),
        ('he said , " it', 'cost " . " You', ' cost". "You'),
        ('" a "\n"', 'b " , c', 'b", c'),
        ("5", "@,@ 000 men", ",000 men"),
        ("(", "a )", "a)"),
        ("a .\n", '= = Plot , a = =\n" b "', '= = Plot , a = =\n"b"'),
        ("a .", '\n= Plot =\n" b "', '\n= Plot =\n"b"'),
        ("= = Plot , a", "= =\nb .", " = =\nb."),
    ],
)
def test_a_continuation_is_spelled_as_in_the_whole_text(context, text, readable):
    assert detokenize_continuation(context, text, keep_headings=True) == readable


def test_its_marks_tell_a_wikitext_vocabulary():
    assert is_wikitext(("<eos>", "@-@", "the", "@,@"))
    assert not is_wikitext(("<eos>", "-", "the", ","))


FUZZ = settings(max_examples=101, deadline=None, derandomize=True)
PIECES = ["the", "=", '"', ",", "(", ")", "@-@", "@,@", "@", "'s", "n't", "$", "'", "5"]
TEXTS = st.lists(st.sampled_from([*PIECES, *"    \n"]), max_size=53).map("".join)


@FUZZ
@given(text=TEXTS, cuts=st.lists(st.integers(0, 97), max_size=11), keep=st.booleans())
def test_a_stream_gives_the_whole_text(text, cuts, keep):
    """However it is cut, also within words; what was shown once is never taken back."""
    places = sorted({0, *cuts, len(text)})
    pieces = [text[low:high] for low, high in itertools.pairwise(places)]
    whole = detokenize_wikitext(text, keep_headings=keep)
    assert "".join(stream_wikitext(pieces, keep_headings=keep)) == whole


@FUZZ
@given(context=TEXTS, space=st.sampled_from(" \n"), text=TEXTS, keep=st.booleans())
def test_a_continuation_completes_its_detokenized_context(context, space, text, keep):
    before = detokenize_wikitext(context, keep_headings=keep)
    whole = detokenize_wikitext(context + space + text, keep_headings=keep)
    assert before + detokenize_continuation(context, space + text, keep_headings=keep) == whole


@FUZZ
@given(context=TEXTS, text=TEXTS)
def test_no_word_goes_on_from_a_context_into_its_continuation(context, text):
    assert detokenize_continuation(context + "a", "b" + text) == detokenize_continuation(
        context + "a", " b" + text
    )


@FUZZ
@given(text=TEXTS)
def test_detokenizing_changes_only_spaces_and_escapes(text):
    characters = re.sub("@([-,.])@", r"\1", text).replace(" ", "")
    assert detokenize_wikitext(text).replace(" ", "") == characters


def test_a_stream_shows_each_word_that_has_ended():
    pieces = ["It cost 5 @,@", " 000 dollars", ' , " he', ' said " .\n', " = Plot", " = \n It"]
    shown = ["It cost 5", ",000", ' dollars, "', 'he said".\n', "=", " Plot =\n", " It"]
    assert list(stream_wikitext(pieces)) == shown
