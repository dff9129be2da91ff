import pytest

from txl_tf.data import Vocabulary
from txl_tf.errors import UserError
from txl_tf.generation.text_encoder import TextEncoder

BYTES = Vocabulary("byte", tuple(map(str, range(256))))
CHARS = Vocabulary("char", ("_", "a", ".", "?"), space="_", unknown="?")
WORDS = Vocabulary("word", ("<eos>", "<unk>", "the", "."), line_end="<eos>", unknown="<unk>")


@pytest.mark.parametrize(
    ("vocabulary", "symbols", "ids"),
    [
        (BYTES, [".", "4", "\n", "46"], (46, 52, 10, 46)),
        (CHARS, [" ", "_", "a", "?"], (0, 0, 1, 3)),
        (WORDS, ["\n", "<eos>", "the", "<unk>"], (0, 0, 2, 1)),
    ],
    ids=["byte", "char", "word"],
)
def test_a_symbol_is_named_as_it_is_or_as_it_is_written(vocabulary, symbols, ids):
    encoder = TextEncoder(vocabulary, len(vocabulary))
    assert tuple(map(encoder.find_id, symbols)) == ids


@pytest.mark.parametrize(
    ("vocabulary", "symbol"),
    [(BYTES, "ab"), (BYTES, "\u00e9"), (BYTES, ""), (CHARS, "x"), (WORDS, "the ."), (WORDS, "dog")],
)
def test_texts_that_are_not_one_symbol_are_refused(vocabulary, symbol):
    with pytest.raises(UserError, match=rf"{symbol!r} is neither a symbol of the vocabulary nor"):
        TextEncoder(vocabulary, len(vocabulary)).find_id(symbol)
