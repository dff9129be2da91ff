"""Tokenizing text as WikiText was, and back."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator

from txl_tf.data.vocabulary import Vocabulary
from txl_tf.errors import UserError, require_extra

# Its tokenizer wrote 5 @-@ 4, 5 @,@ 000, 5 @.@ 4, and put spaces around all punctuation.
_JOINED = re.compile(r" ?@([-,.])@ ?")
_BEFORE = re.compile(r" ([.,;:!?%)\]}]|'s\b|'re\b|'ve\b|'ll\b|'m\b|'d\b|n't\b)")
_AFTER = re.compile(r"([(\[{$£€#]) ")
_QUOTED = re.compile(r'" ([^"\n]*?) "')
_BOUNDARY = "\0"  # stands in no word
_HEADING = re.compile(r"^ ?((?:= )+)(.*?)((?: =)+) ?$", re.MULTILINE)
_RAW_HEADING = re.compile(r"\s*(={1,6})\s*([^=].*?)\s*(={1,6})\s*")
_IN_NUMBER = re.compile(r"(?<=\d)([,.])(?=\d)")
# Tokens that a text may hold already, and which the tokenizer would take apart.
_KEPT = ("<unk>", "<eos>", "@-@", "@,@", r"@\.@", r"(?<=\s)'(?:s|t|re|ve|ll|m|d)(?=\s)")


def is_wikitext(symbols: tuple[str, ...]) -> bool:
    """Returns whether a vocabulary is that of WikiText, by its escapes for hyphens and commas."""
    return {"@-@", "@,@"} <= set(symbols)


def check_wikitext(vocabulary: Vocabulary) -> None:
    """Checks that a vocabulary is that of WikiText.

    Raises:
        UserError: If it is not.
    """
    if not is_wikitext(vocabulary.symbols):
        raise UserError(
            "`tokenize_wikitext` is for the vocabulary of WikiText, which has @-@ and @,@. This "
            f"one has {len(vocabulary):,} {vocabulary.level}s without them"
        )


def tokenize_wikitext(text: str) -> str:
    r"""Returns an ordinary text as the words of WikiText, separated by spaces.

    The words are those of the Moses tokenizer for English, with which WikiText was made: hyphens in
    words are `@-@`, and commas and points in numbers `@,@` and `@.@`. Each line stays a line; a
    heading as in Wikipedia's sources, "== Plot ==", becomes "= = Plot = =". A text that has been
    tokenized stays as it is, but for white space.

    >>> tokenize_wikitext("It cost 5,000 dollars (in 1990-91), he didn't say.")  # doctest: +SKIP
    "It cost 5 @,@ 000 dollars ( in 1990 @-@ 91 ) , he didn 't say ."

    Raises:
        UserError: If the package sacremoses is missing.
    """
    tokenize = _make_tokenizer()
    return "\n".join(_tokenize_line(line, tokenize) for line in text.split("\n"))


def tokenize_wikitext_bytes(text: bytes) -> bytes:
    """Returns the result of `tokenize_wikitext` for UTF-8, whose errors are left in place."""
    decoded = text.decode("utf-8", errors="surrogateescape")
    return tokenize_wikitext(decoded).encode("utf-8", errors="surrogateescape")


def _tokenize_line(line: str, tokenize: Callable[[str], str]) -> str:
    heading = _RAW_HEADING.fullmatch(line)
    if heading and len(heading[1]) == len(heading[3]):
        signs = " ".join(heading[1])
        return f"{signs} {tokenize(heading[2])} {signs}"
    return tokenize(line) if line.strip() else line


@functools.cache
def _make_tokenizer() -> Callable[[str], str]:
    with require_extra("wikitext", "tokenizing as WikiText"):
        from sacremoses import MosesTokenizer
    moses = MosesTokenizer(lang="en")

    def tokenize(line: str) -> str:
        words = moses.tokenize(
            line,
            aggressive_dash_splits=True,
            escape=False,
            return_str=True,
            protected_patterns=_KEPT,
        )
        return _IN_NUMBER.sub(r" @\1@ ", words)

    return tokenize


def detokenize_wikitext(text: str, *, keep_headings: bool = False) -> str:
    """Returns a WikiText text in ordinary spelling, as the paper shows samples (appendix E).

    The tokenizer loses information, which is guessed: within a line, quotation marks open and
    close in turns.

    >>> detokenize_wikitext("It cost 5 @,@ 000 dollars ( in 1990 @-@ 91 ) , he said .")
    'It cost 5,000 dollars (in 1990-91), he said.'
    >>> detokenize_wikitext(" = = Plot = = ")
    '== Plot =='

    Args:
        text: The text.
        keep_headings: Whether to leave headings as they are, which the paper does.
    """
    if keep_headings:
        lines = text.split("\n")
        return "\n".join(
            line if _HEADING.fullmatch(line) else detokenize_wikitext(line) for line in lines
        )
    text = _HEADING.sub(_join_heading, text)
    text = _JOINED.sub(r"\1", text)
    text = _QUOTED.sub(r'"\1"', text)
    text = _BEFORE.sub(r"\1", text)
    return _AFTER.sub(r"\1", text)


def detokenize_continuation(context: str, text: str, *, keep_headings: bool = False) -> str:
    """Returns the text after a context in ordinary spelling.

    Words that the end of the context joins, and quotations that it leaves open, are spelled as in
    the whole text.

    >>> detokenize_continuation('He said , " it cost 5 @,@', '000 dollars " .')
    '000 dollars".'

    Args:
        context: The text before it, not detokenized.
        text: The text.
        keep_headings: As in `detokenize_wikitext`.
    """
    line = context.rpartition("\n")[2]  # nothing depends on earlier lines
    if not line:
        return detokenize_wikitext(text, keep_headings=keep_headings)
    space = "" if text.startswith("\n") else " "
    whole = f"{line}{_BOUNDARY}{space}{text}"
    readable = detokenize_wikitext(whole, keep_headings=keep_headings)
    return readable.partition(_BOUNDARY)[2].lstrip(" ")


def stream_wikitext(chunks: Iterable[str]) -> Iterator[str]:
    """Yields the result of `detokenize_wikitext` for a text that comes in chunks.

    Text that later words may still change is held back: the last word, an open quotation, and a
    line that may be a heading.

    Args:
        chunks: The chunks of the text.
    """
    text = shown = ""
    for chunk in chunks:
        text += chunk
        settled = detokenize_wikitext(text[: _find_settled(text)])
        yield settled[len(shown) :]
        shown = settled
    yield detokenize_wikitext(text)[len(shown) :]


def _find_settled(text: str) -> int:
    """Returns the end of the last word before everything that later words may change."""
    start = text.rfind("\n") + 1
    line = text[start:]
    if line.lstrip(" ").startswith("="):
        return start
    without_quotations = _QUOTED.sub(lambda match: "-" * len(match[0]), line)
    end = without_quotations.partition('"')[0].rfind(" ")
    return start + max(end, 0)


def _join_heading(match: re.Match[str]) -> str:
    opening, title, closing = (part.strip() for part in match.groups())
    return f"{opening.replace(' ', '')} {title} {closing.replace(' ', '')}"
