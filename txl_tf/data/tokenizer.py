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
