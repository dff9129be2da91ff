import sys

import numpy as np
import pytest
import tensorflow as tf
from tables import slow_after

from txl_tf.data.text.tokenizer import Detokenizer, Tokenizer
from txl_tf.data.text.vocabulary import Vocabulary

TEXTS = ["the cät\n\nsat", "", "\n", " on\u3000the  文字 🜁\n", "THE\r\ncat\0!"]
VOCABULARIES = {
    "byte": Vocabulary.learn("byte", [b"the cat\n", bytes(range(256))]),
    "char": Vocabulary.learn("char", TEXTS, space="_"),
    "word": Vocabulary.learn("word", TEXTS),
    "marked words": Vocabulary.learn("word", TEXTS, line_start="<S>", line_end="<S>"),
    "words in lower case": Vocabulary.learn("word", TEXTS, lower_case=True, line_end="</s>"),
    "subword": Vocabulary.learn("subword", ["the cat sat on the mat\n" * 5], max_symbols=277),
    "subwords in lower case": Vocabulary.learn(
        "subword", ["the cat sat on the mat\n" * 5], max_symbols=281, lower_case=True
    ),
    "unknown characters": Vocabulary("char", ("<", "t", "h", "e"), unknown="<"),
    "unknown words": Vocabulary("word", ("<unk>", "the", "cat"), unknown="<unk>"),
}


class Model(tf.Module):
    """What a SavedModel may hold: it takes texts."""

    def __init__(self, vocabulary):
        super().__init__()
        self.tokenizer = Tokenizer(vocabulary)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def tokenize(self, texts):
        return self.tokenizer.tokenize(texts)


def save_and_load(model, folder):
    tf.saved_model.save(model, str(folder))
    return tf.saved_model.load(str(folder))


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_graph_gives_the_ids_of_encode(name):
    vocabulary = VOCABULARIES[name]
    ids = Tokenizer(vocabulary).tokenize(tf.constant(TEXTS))
    assert ids.dtype == tf.int32
    assert ids.to_list() == [vocabulary.encode(text).tolist() for text in TEXTS]


@pytest.mark.parametrize("name", slow_after(1, ["marked words", "subword", "char", "byte"]))
def test_a_saved_model_gives_the_ids_of_encode(tmp_path, name):
    vocabulary = VOCABULARIES[name]
    loaded = save_and_load(Model(vocabulary), tmp_path)
    ids = loaded.tokenize(tf.constant(TEXTS)).to_list()
    assert ids == [vocabulary.encode(text).tolist() for text in TEXTS]


@pytest.mark.parametrize("level", ["byte", "char"])
def test_bytes_and_characters_need_no_tensorflow_text(level, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    texts = [*(text.encode() for text in TEXTS), b"\xff\0\xfe" if level == "byte" else b"\0"]
    ids = Tokenizer(VOCABULARIES[level]).tokenize(tf.constant(texts))
    assert ids.to_list() == [VOCABULARIES[level].encode(text).tolist() for text in texts]


@pytest.mark.parametrize("level", ["char", "word"])
def test_symbols_that_are_not_known_are_minus_one(level):
    vocabulary = Vocabulary(level, ("a", "b"))
    ids = Tokenizer(vocabulary).tokenize(tf.constant(["b c a", "\U0010ffff"]))
    expected = {"char": [[1, -1, -1, -1, 0], [-1]], "word": [[1, -1, 0], [-1]]}
    assert ids.to_list() == expected[level]


@pytest.mark.parametrize("level", ["byte", "char", "word", "subword"])
def test_no_text_gives_no_row(level):
    ids = Tokenizer(VOCABULARIES[level]).tokenize(tf.constant([], tf.string))
    assert ids.shape[0] == 0


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_graph_gives_the_text_that_ids_add(name):
    """Wherever the ids are cut: words have a space before them if a word comes before."""
    vocabulary = VOCABULARIES[name]
    detokenize = tf.function(Detokenizer(vocabulary).detokenize, reduce_retracing=True)
    ids = np.concatenate([vocabulary.encode(text) for text in TEXTS])
    for cut in range(1, len(ids)):
        added = detokenize(tf.constant(ids[cut:]), before=tf.constant(ids[cut - 1]))
        head, whole = vocabulary.decode_bytes(ids[:cut]), vocabulary.decode_bytes(ids)
        assert head + added.numpy() == whole
