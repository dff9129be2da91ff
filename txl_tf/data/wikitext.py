"""Making the tokenised text of WikiText readable."""

import re
from collections.abc import Iterable, Iterator

# Its tokeniser wrote 5 @-@ 4, 5 @,@ 000, 5 @.@ 4, and put spaces around all punctuation.
_JOINED = re.compile(r" ?@([-,.])@ ?")
_BEFORE = re.compile(r" ([.,;:!?%)\]}]|'s\b|'re\b|'ve\b|'ll\b|'m\b|'d\b|n't\b)")
_AFTER = re.compile(r"([(\[{$£€#]) ")
_QUOTED = re.compile(r'" ([^"\n]*?) "')
_HEADING = re.compile(r"^ ?((?:= )+)(.*?)((?: =)+) ?$", re.MULTILINE)


def is_wikitext(symbols: tuple[str, ...]) -> bool:
    """Tells whether words are those of a WikiText corpus: its marks for joined signs are there."""
    return {"@-@", "@,@"} <= set(symbols)


def detokenize_wikitext(text: str) -> str:
    """Returns a text of WikiText as people write it; the paper shows samples so (appendix E).

    What the tokeniser lost is guessed: a quotation mark opens and closes in turns within a line.

    >>> detokenize_wikitext("It cost 5 @,@ 000 dollars ( in 1990 @-@ 91 ) , he said .")
    'It cost 5,000 dollars (in 1990-91), he said.'
    >>> detokenize_wikitext(" = = Plot = = ")
    '== Plot =='
    """
    text = _HEADING.sub(_join_heading, text)
    text = _JOINED.sub(r"\1", text)
    text = _QUOTED.sub(r'"\1"', text)
    text = _BEFORE.sub(r"\1", text)
    return _AFTER.sub(r"\1", text)


def stream_wikitext(pieces: Iterable[str]) -> Iterator[str]:
    """Yields what `detokenize_wikitext` returns for a text that comes in pieces.

    What later words may still change is held back: the last word, a quotation that is not closed,
    and a line that may be a heading.

    Args:
        pieces: of the text.
    """
    text = shown = ""
    for piece in pieces:
        text += piece
        settled = detokenize_wikitext(text[: _find_settled(text)])
        yield settled[len(shown) :]
        shown = settled
    yield detokenize_wikitext(text)[len(shown) :]


def _find_settled(text: str) -> int:
    """Returns where what later words may change begins; a word ends there."""
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
