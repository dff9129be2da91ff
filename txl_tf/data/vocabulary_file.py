"""Reading a vocabulary that a user brings."""

import json
from pathlib import Path

from txl_tf.data.learning import LearningOptions
from txl_tf.data.levels import Level
from txl_tf.data.vocabulary import Vocabulary
from txl_tf.data.words import WHITE_SPACE
from txl_tf.errors import UserError


def read_vocabulary_file(
    path: Path, level: Level, options: LearningOptions, unknown: str | None = None
) -> Vocabulary:
    """Reads a vocabulary.

    Args:
        path: A file with a symbol a line, in the order of their ids, of which the first word of
            the line counts (another may give its count); or a .json, as a run folder holds it.
        level: What its symbols are; "word", unless it is a .json.
        options: `lower_case`, `line_start` and `line_end`; a .json has its own.
        unknown: The symbol for words that are not known; `None` for none.

    Returns:
        The vocabulary.

    Raises:
        UserError: If a line is blank, holds a symbol for the second time, or the file is not one
            of symbols of this level.
    """
    try:
        if path.suffix == ".json":
            vocabulary = Vocabulary.from_json(json.loads(path.read_bytes()))
            if vocabulary.level != level:
                raise UserError(f"it has {vocabulary.level}s, not {level}s")
            return vocabulary
        if level != "word":
            raise UserError("a file with a symbol a line is for level 'word'; others need a .json")
        return Vocabulary(
            level,
            _read_words(path.read_bytes()),
            unknown=unknown,
            lower_case=options.lower_case,
            line_start=options.line_start,
            line_end=options.line_end,
        )
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise UserError(f"`{path}` is no vocabulary: {error}") from error


def _read_words(text: bytes) -> tuple[str, ...]:
    place_of_word: dict[str, int] = {}
    for place, line in enumerate(text.decode("utf-8").removesuffix("\n").split("\n"), start=1):
        word = next(filter(None, WHITE_SPACE.split(line)), None)
        if word is None:
            raise UserError(f"line {place} is blank")
        if word in place_of_word:
            raise UserError(f"lines {place_of_word[word]} and {place} both hold {word!r}")
        place_of_word[word] = place
    return tuple(place_of_word)
