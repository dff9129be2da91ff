"""The signatures of a SavedModel that take texts."""

import math

import tensorflow as tf

from txl_tf.data.tokenizer import Tokenizer
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.inference.serving import Scorer, Tensors, check_ids


class TextReader(tf.Module):
    """Turns texts into ids, and fails in a graph where one cannot be.

    Args:
        vocabulary: what it knows.
    """

    def __init__(self, vocabulary: Vocabulary):
        super().__init__(name="text_reader")
        self._tokenizer = Tokenizer(vocabulary)
        self._is_bytes = vocabulary.level == "byte"
        self._n_token = len(vocabulary)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of texts (n,), ragged (n, ids) int32 in [0, V)."""
        if not self._is_bytes:  # else what is no UTF-8 would be replaced
            texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="strict")
        ids = self._tokenizer.tokenize(texts)
        rule = "a text holds a symbol that the vocabulary does not know, and has none for"
        with tf.control_dependencies([check_ids(ids.flat_values, self._n_token, rule)]):
            return ids.with_flat_values(tf.identity(ids.flat_values))


def make_text_functions(text_reader: TextReader, scorer: Scorer) -> dict[str, tf.function]:
    """Returns the signatures that take texts, by name."""

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, "texts")], autograph=False)
    def score_text(texts: tf.Tensor) -> Tensors:
        ids = text_reader.tokenize(texts)
        nats = scorer.score(ids)
        tokens = tf.maximum(tf.cast(ids.row_lengths(), tf.int32) - 1, 0)
        sums = tf.reduce_sum(tf.cast(nats, tf.float64), axis=1)
        bpc = sums / tf.cast(tf.maximum(tokens, 1), tf.float64) / math.log(2)
        return {
            "nats": tf.cast(sums, tf.float32),
            "tokens": tokens,
            "bpc": tf.cast(bpc, tf.float32),
            "token_ids": ids.flat_values,
            "token_nats": nats.flat_values,
            "row_splits": ids.row_splits,
        }

    return {"score_text": score_text}
