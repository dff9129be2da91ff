"""Detokenizing WikiText."""

import re
from collections.abc import Iterable, Iterator

# Its tokenizer wrote 5 @-@ 4, 5 @,@ 000, 5 @.@ 4, and put spaces around all punctuation.
_JOINED = re.compile(r" ?@([-,.])@ ?")
_BEFORE = re.compile(r" ([.,;:!?%)\]}]|'s\b|'re\b|'ve\b|'ll\b|'m\b|'d\b|n't\b)")
_AFTER = re.compile(r"([(\[{$£€#]) ")
_QUOTED = re.compile(r'" ([^"\n]*?) "')
_BOUNDARY = "\0"  # stands in no word
_HEADING = re.compile(r"^ ?((?:= )+)(.*?)((?: =)+) ?$", re.MULTILINE)


def is_wikitext(symbols: tuple[str, ...]) -> bool:
    """Returns whether a vocabulary is that of WikiText, by its escapes for hyphens and commas."""
    return {"@-@", "@,@"} <= set(symbols)


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
