"""Tokenization inside a graph, for SavedModels that take texts."""

import tensorflow as tf

from txl_tf.data.text.vocabulary import Vocabulary


class Tokenizer(tf.Module):
    """Encodes texts in a graph, with the same ids as `Vocabulary.encode`.

    At levels "word" and "subword", tensorflow-text splits the texts; preparation uses the same
    functions. The resources that they need are saved with a SavedModel.

    >>> tokenize = Tokenizer(Vocabulary("char", ("_", "e", "s"), space="_")).tokenize
    >>> tokenize(tf.constant(["see es", "", "e"])).to_list()
    [[2, 1, 1, 0, 1, 2], [], [1]]
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(name="tokenizer")
        self._codec = vocabulary.codec
        # An attribute, so that it is saved with the object that holds the tokenizer.
        self._resource = self._codec.make_resource()

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Encodes texts, (n,) string, as ragged (n, ids) int32; -1 for unknown without an id."""
        return self._codec.tokenize(texts, self._resource)


class Detokenizer:
    """Decodes ids in a graph, to the same text as `Vocabulary.decode`.

    >>> detokenize = Detokenizer(Vocabulary("word", ("a", "cat"))).detokenize
    >>> detokenize(tf.constant([0, 1]), before=tf.constant(1)).numpy()
    b' a cat'
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        # The text of an id depends only on whether a word stands before it.
        markers = {vocabulary.line_start, vocabulary.line_end}
        self._is_word = [
            vocabulary.level == "word" and symbol not in markers for symbol in vocabulary.symbols
        ]
        ids = range(len(vocabulary))
        self._texts = self._texts_after_word = [vocabulary.decode_bytes([i]) for i in ids]
        if any(self._is_word):
            word = self._is_word.index(True)
            size = len(self._texts[word])
            self._texts_after_word = [vocabulary.decode_bytes([word, i])[size:] for i in ids]

    def detokenize(self, ids: tf.Tensor, *, before: tf.Tensor) -> tf.Tensor:
        """Returns the text, () string, of ids, (n,) int32, that follow the id `before`, () int32.

        At level "subword", it may end inside a character.
        """
        previous = tf.concat([before[None], ids], axis=0)[:-1]
        texts = tf.where(
            tf.gather(self._is_word, previous),
            tf.gather(self._texts_after_word, ids),
            tf.gather(self._texts, ids),
        )
        return tf.strings.reduce_join(texts)
