"""Tokenizing text like WikiText, and detokenizing it."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.errors import UserError, require_extra

_IN_NUMBER = re.compile(r"(?<=\d)([,.])(?=\d)")
_LETTER = r"[^\W\d_]"
# Tokens that a text may hold already, and which Moses would take apart. A rare letter stands for
# each of them while Moses tokenizes the rest; if it occurs in a text, it stands for itself.
_PLACEHOLDER = "\ua66e"
_KEPT = re.compile(
    rf"{_PLACEHOLDER}|<(?:unk|eos|formula)>|@[-,.]@|(?<!\S)'(?:s|t|re|ve|ll|m|d)(?!\S)",
    re.IGNORECASE,
)
# The space that Moses puts into a word: "didn 't", "O 'Brien".
_IN_WORD = re.compile(rf"(?<=\w) (?='{_LETTER})")
# The tokenizer wrote 5 @-@ 4, 5 @,@ 000, 5 @.@ 4, and put spaces around all punctuation.
_ESCAPE = re.compile(r"@([-,.])@")
_JOINS_PREVIOUS = re.compile(rf"@[-,.]@|[.,;:!?%)\]}}]|'{_LETTER}|n't\b")
_JOINS_NEXT = re.compile(r"(?:@[-,.]@|[(\[{$£€#])$")


def is_wikitext(symbols: tuple[str, ...]) -> bool:
    """Returns whether a vocabulary is that of WikiText, with its escapes for hyphens and commas."""
    return {"@-@", "@,@"} <= set(symbols)


def check_wikitext(vocabulary: Vocabulary) -> None:
    """Checks that a vocabulary is that of WikiText."""
    if not is_wikitext(vocabulary.symbols):
        raise UserError(
            "`tokenize_wikitext` is for the vocabulary of WikiText, which has @-@ and @,@. This "
            f"one has {len(vocabulary):,} {vocabulary.level}s without them"
        )


def tokenize_wikitext(text: str) -> str:
    r"""Returns an ordinary text as words of WikiText, separated by spaces.

    The words are those of the Moses tokenizer for English, with which WikiText was made: hyphens in
    words become `@-@`, and commas and points in numbers `@,@` and `@.@`. Each line stays a line; a
    heading as in Wikipedia's sources, "== Plot ==", becomes "= = Plot = =". A line that is already
    tokenized does not change, except for white space.

    >>> tokenize_wikitext("It cost 5,000 dollars (in 1990-91), he didn't say.")  # doctest: +SKIP
    "It cost 5 @,@ 000 dollars ( in 1990 @-@ 91 ) , he didn 't say ."

    Raises:
        UserError: If the package sacremoses is not installed.
    """
    return "\n".join(map(_make_tokenizer(), text.split("\n")))


def tokenize_wikitext_bytes(text: bytes) -> bytes:
    """Returns the result of `tokenize_wikitext` for UTF-8; invalid bytes are kept.

    A space at the beginning is kept, because a long line may have been cut before it.
    """
    words = tokenize_wikitext(text.decode("utf-8", errors="surrogateescape"))
    if text.startswith(b" "):
        words = " " + words.lstrip(" ")
    return words.encode("utf-8", errors="surrogateescape")


@functools.cache
def _make_tokenizer() -> Callable[[str], str]:
    with require_extra("wikitext", "tokenizing as WikiText"):
        from sacremoses import MosesTokenizer
    moses = MosesTokenizer(lang="en")

    def split(line: str, *, is_tokenized: bool) -> str:
        kept = iter(_KEPT.findall(line))
        words = _KEPT.sub(_PLACEHOLDER, line)
        if is_tokenized:
            words = _IN_WORD.sub("", words)
        # Words around the line make Moses treat its ends as any other place.
        words = f"{_PLACEHOLDER} {words} {_PLACEHOLDER}"
        words = moses.tokenize(words, aggressive_dash_splits=True, escape=False, return_str=True)
        words = _IN_NUMBER.sub(r" @\1@ ", words[2:-2])
        return re.sub(_PLACEHOLDER, lambda match: next(kept), words)

    def tokenize(line: str) -> str:
        line = " ".join(line.split())
        # In a line that has been tokenized, 'Brien is a part of O'Brien; in another one, it may
        # begin a quotation.
        if split(line, is_tokenized=True) == line:
            return line
        # A single call leaves the second apostrophe of '5', and the last point of "v1.2.".
        return split(split(line, is_tokenized=False), is_tokenized=True)

    return tokenize


def detokenize_wikitext(text: str, *, keep_headings: bool = False) -> str:
    """Returns a WikiText text in ordinary spelling, like the paper's samples (appendix E).

    The tokenizer loses information, which must be guessed: within a line, quotation marks
    alternately open and close, and a line that begins with = is a heading. Nothing depends on later
    words: the result for the first words of a text is the beginning of the result for the whole
    text. Spaces at the end of the text are left out.

    >>> detokenize_wikitext("It cost 5 @,@ 000 dollars ( in 1990 @-@ 91 ) , he said .")
    'It cost 5,000 dollars (in 1990-91), he said.'
    >>> detokenize_wikitext(" = = Plot = = ")
    '== Plot =='

    Args:
        text: The text.
        keep_headings: Whether to leave headings unchanged, as in the paper.
    """
    return "".join(stream_wikitext([text], keep_headings=keep_headings))


def detokenize_continuation(context: str, text: str, *, keep_headings: bool = False) -> str:
    """Returns the text after a context in ordinary spelling.

    It continues the detokenized context: together, they equal the result of `detokenize_wikitext`
    for `context + text`. If there is no white space between the two, a space is added: the context
    must end with a whole word, and the text must begin with another.

    >>> detokenize_continuation('He said , " it cost 5 @,@', '000 dollars " .')
    '000 dollars".'
    """
    # Also true if one of them is empty, because an empty string is in every string.
    are_apart = context[-1:] in " \n" or text[:1] in " \n"
    whole = f"{context}{'' if are_apart else ' '}{text}"
    before, readable = (
        detokenize_wikitext(part, keep_headings=keep_headings) for part in (context, whole)
    )
    return readable[len(before) :]


def stream_wikitext(chunks: Iterable[str], *, keep_headings: bool = False) -> Iterator[str]:
    """Yields the result of `detokenize_wikitext` for a text in chunks, which may be cut anywhere.

    A word is held back until white space ends it, and spaces until the next word.
    """
    detokenizer = _Detokenizer(keep_headings)
    unfinished = ""
    for chunk in chain(chunks, [" "]):  # the space ends the last word
        *tokens, unfinished = re.split("([ \n])", unfinished + chunk)
        yield "".join(map(detokenizer.spell, tokens))


class _Detokenizer:
    """Detokenizes a text word by word; each word depends only on those before it in its line."""

    def __init__(self, keep_headings: bool):
        self._keep_headings = keep_headings
        self._begin_line()

    def _begin_line(self) -> None:
        self._previous = self._space = ""
        self._joins_next = self._is_quoted = self._is_heading = False

    def spell(self, token: str) -> str:
        r"""Returns what a token adds to the text: a word, a space, "\n" or nothing."""
        if token in ("", " "):
            self._space += token
            return ""
        space, self._space = self._space, ""
        if token == "\n":
            drops_space = self._is_heading and not self._keep_headings
            self._begin_line()
            return token if drops_space else space + token
        is_joined = self._join(token)
        if self._is_heading and self._keep_headings:
            return space + token
        return ("" if is_joined else space) + _ESCAPE.sub(r"\1", token)

    def _join(self, word: str) -> bool:
        """Adds a word to the line; returns whether it joins the previous one without a space."""
        if not self._previous:
            self._is_heading = word == "="
        is_quote = word == '"'
        is_sign = word == "=" and self._is_heading
        is_joined = (
            self._joins_next
            or bool(_JOINS_PREVIOUS.match(word))
            or (is_quote and self._is_quoted)
            or (is_sign and self._previous in ("", "="))
        )
        self._is_quoted ^= is_quote
        self._joins_next = bool(_JOINS_NEXT.search(word)) or (is_quote and self._is_quoted)
        self._previous = word
        return is_joined
