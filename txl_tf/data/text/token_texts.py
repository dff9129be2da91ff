"""The text that each id adds to a text."""

from txl_tf.data.text.vocabulary import Vocabulary


class TextPieces:
    """The text of each id, which depends only on whether a space must separate it from a word.

    >>> pieces = TextPieces(Vocabulary("word", ("a", "cat")))
    >>> pieces.get(1, before=0)
    b' cat'
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        markers = {vocabulary.line_start, vocabulary.line_end}
        self.is_word = [
            vocabulary.level == "word" and symbol not in markers for symbol in vocabulary.symbols
        ]
        ids = range(len(vocabulary))
        self.texts = [vocabulary.decode_bytes([i]) for i in ids]
        self.texts_after_word = self.texts
        if any(self.is_word):
            word = self.is_word.index(True)
            size = len(self.texts[word])
            self.texts_after_word = [vocabulary.decode_bytes([word, i])[size:] for i in ids]

    def get(self, token: int, *, before: int) -> bytes:
        """Returns the text that an id adds after another id."""
        return (self.texts_after_word if self.is_word[before] else self.texts)[token]
