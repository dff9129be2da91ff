import pytest

from txl_tf.data.wikitext import detokenize_wikitext, is_wikitext


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


def test_its_marks_tell_a_wikitext_vocabulary():
    assert is_wikitext(("<eos>", "@-@", "the", "@,@"))
    assert not is_wikitext(("<eos>", "-", "the", ","))
