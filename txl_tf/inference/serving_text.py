"""The signatures of a SavedModel that take texts."""

import math

import tensorflow as tf

from txl_tf.cached_model import CachedModel
from txl_tf.data.tokenizer import Detokenizer, Tokenizer
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.inference.sampling import UNIFORMS_PER_BLOCK, SamplingTensors, draw_uniforms
from txl_tf.inference.serving import Reader, Tensors, check_ids
from txl_tf.inference.token_loop import TokenLoop, take_positions


class StrictTokenizer(tf.Module):
    """Turns texts into ids, and fails in a graph where one cannot be.

    Args:
        vocabulary: what it knows.
    """

    def __init__(self, vocabulary: Vocabulary):
        super().__init__(name="tokenizer")
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


class Writer(tf.Module):
    """Goes on with texts.

    Args:
        tokenizer: turns them into ids.
        reader: reads these.
        cached: the model.
        vocabulary: turns ids into texts; its unknown symbol is never drawn.
    """

    def __init__(
        self,
        tokenizer: StrictTokenizer,
        reader: Reader,
        cached: CachedModel,
        vocabulary: Vocabulary,
    ):
        super().__init__(name="writer")
        self._tokenizer = tokenizer
        self._reader = reader
        self._cached = cached
        self._detokenizer = Detokenizer(vocabulary)
        self._is_allowed = [symbol != vocabulary.unknown for symbol in vocabulary.symbols]

    def write(
        self,
        text: tf.Tensor,
        length: tf.Tensor,
        temperature: tf.Tensor,
        top_k: tf.Tensor,
        seed: tf.Tensor,
    ) -> tf.Tensor:
        """Returns what is added to a text, () string; docs/serving.md tells the rest."""
        ids = self._tokenizer.tokenize(text[None]).to_tensor()
        with tf.control_dependencies(_check_choice(ids, length, temperature, top_k, seed)):
            ids, length = tf.ensure_shape(ids, (1, None)), tf.identity(length)
        state = self._cached.initial_state(1)
        _, state = self._reader.score(ids, tf.shape(ids)[1][None], state)
        n_token = len(self._is_allowed)
        one = tf.constant(1.0)
        no_stops = tf.zeros(0, tf.int32)
        sampling = SamplingTensors(temperature, one, one, tf.constant(self._is_allowed), no_stops)
        blocks = tf.map_fn(
            lambda block: draw_uniforms(seed, block),
            tf.range(-(-length // UNIFORMS_PER_BLOCK)),
            fn_output_signature=tf.float32,
        )
        uniforms = tf.reshape(blocks, (-1, 1))[:length]

        def draw(n_candidates: tf.Tensor | None) -> tf.Tensor:
            loop = TokenLoop(self._cached, n_candidates)
            begun = loop.begin(state, tf.zeros((1, n_token), tf.bool))
            positions = take_positions(self._cached)
            return loop.run(begun, positions, uniforms, length, sampling)[0]

        tokens = tf.cond(top_k > 0, lambda: draw(tf.minimum(top_k, n_token)), lambda: draw(None))
        return self._detokenizer.detokenize(tokens[:, 0], before=ids[0, -1])


def _check_choice(
    ids: tf.Tensor,
    length: tf.Tensor,
    temperature: tf.Tensor,
    top_k: tf.Tensor,
    seed: tf.Tensor,
) -> list[tf.Operation]:
    """Returns what fails in a graph where a text cannot be gone on with."""
    return [
        tf.debugging.assert_positive(
            tf.shape(ids)[1], message="`text` must hold at least one token"
        ),
        tf.debugging.assert_non_negative(length, message="`length` must not be negative"),
        tf.debugging.Assert(
            tf.logical_and(temperature >= 0, tf.math.is_finite(temperature)),
            ["`temperature` must be 0 or more", temperature],
        ),
        tf.debugging.assert_non_negative(top_k, message="`top_k` must be 0, for all, or more"),
        tf.debugging.assert_non_negative(seed, message="`seed` must not be negative"),
    ]


def make_text_functions(
    tokenizer: StrictTokenizer, score: tf.function, writer: Writer
) -> dict[str, tf.function]:
    """Returns the signatures that take texts, by name; `score` is `RaggedScorer.score`."""

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, "texts")], autograph=False)
    def score_text(texts: tf.Tensor) -> Tensors:
        ids = tokenizer.tokenize(texts)
        nats = score(ids)
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

    signature = [
        tf.TensorSpec((), tf.string, "text"),
        tf.TensorSpec((), tf.int32, "length"),
        tf.TensorSpec((), tf.float32, "temperature"),
        tf.TensorSpec((), tf.int32, "top_k"),
        tf.TensorSpec((), tf.int32, "seed"),
    ]

    @tf.function(input_signature=signature, autograph=False)
    def generate_text(
        text: tf.Tensor,
        length: tf.Tensor,
        temperature: tf.Tensor,
        top_k: tf.Tensor,
        seed: tf.Tensor,
    ) -> Tensors:
        return {"text": writer.write(text, length, temperature, top_k, seed)}

    return {"score_text": score_text, "generate_text": generate_text}
