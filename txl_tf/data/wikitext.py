"""Making the tokenised text of WikiText readable."""

import re

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


def _join_heading(match: re.Match[str]) -> str:
    opening, title, closing = (part.strip() for part in match.groups())
    return f"{opening.replace(' ', '')} {title} {closing.replace(' ', '')}"
