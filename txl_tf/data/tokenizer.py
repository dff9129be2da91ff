"""Tokenisation inside a graph, for SavedModels that take texts."""

import tensorflow as tf

from txl_tf.data.vocabulary import Vocabulary


class Tokenizer(tf.Module):
    """Turns texts into the ids that `Vocabulary.encode` gives, as a part of a graph.

    tensorflow-text splits the texts, at levels "word" and "subword" by the very functions that
    prepare data. What it needs is saved with a SavedModel.

    >>> tokenize = Tokenizer(Vocabulary("char", ("_", "e", "s"), space="_")).tokenize
    >>> tokenize(tf.constant(["see es", "", "e"])).to_list()
    [[2, 1, 1, 0, 1, 2], [], [1]]

    Args:
        vocabulary: The symbols.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(name="tokenizer")
        self._codec = vocabulary.codec
        # Held here, so that it is saved with whatever holds the tokenizer.
        self._resource = self._codec.make_resource()

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Turns texts into ids.

        Args:
            texts: (n,) string; UTF-8 unless the level is "byte".

        Returns:
            The ids, ragged (n, ids) int32; -1 for what is not known, if the vocabulary has no
            symbol for that.
        """
        return self._codec.tokenize(texts, self._resource)


class Detokenizer:
    """Turns ids into the text that `Vocabulary.decode` gives, as a part of a graph.

    What an id adds to a text depends on no more than whether a word comes before it.

    >>> detokenize = Detokenizer(Vocabulary("word", ("a", "cat"))).detokenize
    >>> detokenize(tf.constant([0, 1]), before=tf.constant(1)).numpy()
    b' a cat'

    Args:
        vocabulary: The symbols.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        marks = {vocabulary.line_start, vocabulary.line_end}
        self._is_word = [
            vocabulary.level == "word" and symbol not in marks for symbol in vocabulary.symbols
        ]
        ids = range(len(vocabulary))
        self._pieces = [vocabulary.decode_bytes([i]) for i in ids]
        self._pieces_after_word = self._pieces
        if any(self._is_word):
            word = self._is_word.index(True)
            size = len(self._pieces[word])
            self._pieces_after_word = [vocabulary.decode_bytes([word, i])[size:] for i in ids]

    def detokenize(self, ids: tf.Tensor, *, before: tf.Tensor) -> tf.Tensor:
        """Turns ids into the text that they add to one.

        Args:
            ids: (n,) int32.
            before: () int32, the id that comes before them.

        Returns:
            () string; UTF-8 unless the level is "byte", though a cut of subwords may end inside a
            character.
        """
        previous = tf.concat([before[None], ids], axis=0)[:-1]
        pieces = tf.where(
            tf.gather(self._is_word, previous),
            tf.gather(self._pieces_after_word, ids),
            tf.gather(self._pieces, ids),
        )
        return tf.strings.reduce_join(pieces)
