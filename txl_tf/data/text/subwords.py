"""Level "subword": byte-pair encoding, learned by SentencePiece and applied by tensorflow-text.

A symbol is a piece of a word, with the space before it. A line break is a separate symbol, and
characters that the training text lacks fall back to bytes. Nothing is normalized, so decoding
restores every text exactly.
"""

import base64
import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from txl_tf.data.text.codec import NO_OFFSETS, Encoded, Tensor
from txl_tf.data.text.words import convert_to_lower_case, locate_lines
from txl_tf.errors import UserError, explain_errors, require_extra

DEFAULT_SYMBOLS = 8192
# The symbols of ids 0 and 1. The 256 bytes follow, then the learned pieces.
UNKNOWN, NEWLINE = "<unk>", "\n"
FIRST_BYTE = 2
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))

_SPACE_PIECE = "\u2581"  # SentencePiece's escape for a space
# The largest text to learn from. Of a larger one, every second, fourth, ... line is used.
_SAMPLE_BYTES = 2**25


class SubwordCodec:
    """Encodes subwords with a SentencePiece model in base64."""

    def __init__(self, symbols: Sequence[str], model: str, *, lower_case: bool = False) -> None:
        self._pieces = [symbol.encode("utf-8") for symbol in symbols]
        self._pieces[FIRST_BYTE : FIRST_BYTE + 256] = [bytes([byte]) for byte in range(256)]
        self._model = model
        self._lower_case = lower_case

    def encode(
        self, text: bytes, offsets: np.ndarray = NO_OFFSETS, *, begins_line: bool = True
    ) -> Encoded:
        """See `Codec.encode`."""
        # No piece crosses a line break, so each line can be encoded by itself.
        *lines, rest = text.split(b"\n")
        encoded = self.tokenize([line + b"\n" for line in lines] + [rest], self._tokenizer)
        positions = locate_lines(text, offsets, encoded.row_splits)
        return Encoded(encoded.flat_values.numpy(), positions, Counter())

    def make_resource(self) -> Any:
        """See `Codec.make_resource`: the SentencePiece model; a damaged one raises `UserError`."""
        import tensorflow as tf
        import tensorflow_text as tf_text

        fault = "`sentencepiece` of the vocabulary is not a SentencePiece model in base64"
        faults = (TypeError, ValueError, tf.errors.OpError)
        with explain_errors(fault, *faults):
            model = base64.b64decode(self._model)
            return tf_text.SentencepieceTokenizer(model=model, out_type=tf.int32)

    def tokenize(self, texts: Tensor, resource: Any) -> Tensor:
        """See `Codec.tokenize`."""
        return resource.tokenize(convert_to_lower_case(texts) if self._lower_case else texts)

    def decode(self, ids: np.ndarray) -> bytes:
        """See `Codec.decode`."""
        return b"".join(self._pieces[i] for i in ids)

    @cached_property
    def _tokenizer(self) -> Any:
        return self.make_resource()


def learn_subwords(
    texts: Iterable[bytes], n_symbols: int, report: Callable[[str], None] = print
) -> tuple[tuple[str, ...], str]:
    """Returns pieces of words, learned by byte-pair encoding, and the base64 SentencePiece model.

    The texts consist of whole lines; the same texts give the same pieces. If there are more than 32
    MiB, equally spaced lines are used, and `report` is called with a line that says so. `n_symbols`
    must be at least 258 plus the number of different characters.
    """
    with require_extra("subword", "learning at level 'subword'"):
        import sentencepiece
    lines, stride = sample_lines(texts, _SAMPLE_BYTES)
    if stride > 1:
        report(f"The subwords are learned from 1 of every {stride} lines.")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="bpe",
            vocab_size=n_symbols,
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            user_defined_symbols=[NEWLINE],
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            max_sentence_length=2**30,
            num_threads=1,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        reason = str(error).rpartition("] ")[2] or "the text is empty"
        raise UserError(
            f"{n_symbols} subwords cannot be learned from this training text: {reason}"
        ) from error
    symbols, patched = _keep_spaces(model.getvalue())
    return symbols, base64.b64encode(patched).decode("ascii")


def sample_lines(texts: Iterable[bytes], n_bytes: int) -> tuple[list[str], int]:
    """Returns equally spaced lines of texts and the stride between them.

    Returns at most `n_bytes` of text, but at least one line. Lines of only white space and NUL are
    left out.
    """
    # SentencePiece stops at a NUL. It will be encoded as a byte.
    every_line = (line.replace(b"\0", b" ") for text in texts for line in text.split(b"\n"))
    lines: list[bytes] = []
    stride, size = 1, 0
    for index, line in enumerate(filter(bytes.strip, every_line)):
        if index % stride == 0:
            lines.append(line)
            size += len(line)
        while size > n_bytes and len(lines) > 1:
            lines, stride = lines[::2], stride * 2
            size = sum(map(len, lines))
    return [line.decode("utf-8") for line in lines], stride


def _keep_spaces(model: bytes) -> tuple[tuple[str, ...], bytes]:
    """Returns the pieces of a model, and the model changed so that it does not escape spaces.

    SentencePiece writes spaces as U+2581 while it learns, and would decode every U+2581 of a text
    as a space. With spaces in the pieces themselves, nothing is replaced.
    """
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
    for piece in proto.pieces:
        piece.piece = piece.piece.replace(_SPACE_PIECE, " ")
    proto.normalizer_spec.escape_whitespaces = False
    return tuple(piece.piece for piece in proto.pieces), proto.SerializeToString()
