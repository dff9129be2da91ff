import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_tf.data.text.documents import RULES, DocumentFinder
from txl_tf.data.text.text_files import Chunk
from txl_tf.errors import UserError

FUZZ = settings(max_examples=101, deadline=None, derandomize=True)
SEPARATORS = dict.fromkeys(RULES) | {"separator": "=="}


def find(rule, *files, sizes=(10**6,)):
    """Finds documents in files that are cut at lines.

    Args:
        rule: The rule.
        files: The texts of the files.
        sizes: The lines of a chunk, over and over.
    """
    finder = DocumentFinder(rule, SEPARATORS[rule])
    starts, offset = [], 0
    for text in files:
        lines = re.findall(rb"[^\n]*\n|[^\n]+$", text)
        index = place = 0
        while place < len(lines):
            size = sizes[index % len(sizes)]
            chunk = Chunk(b"".join(lines[place : place + size]), place == 0, True)
            starts += (finder.find(chunk) + offset).tolist()
            offset += len(chunk.text)
            place, index = place + size, index + 1
    return starts


def mark(rule, *files, sizes=(10**6,)):
    """Returns the texts with a ^ where a document begins."""
    text = b"".join(files)
    for start in reversed(find(rule, *files, sizes=sizes)):
        text = text[:start] + b"^" + text[start:]
    return text.decode()


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "none"])
def test_a_file_begins_a_document(rule):
    assert mark(rule, b"a", b"b\n", b"c\n") == "^a^b\n^c\n"


def test_a_document_may_be_a_file_or_nothing():
    assert mark("none", b"a\n\nb\n", b"c") == "a\n\nb\nc"
    assert mark("file", b"\na\n\nb\n", b"", b" = c = \n") == "^\na\n\nb\n^ = c = \n"


def test_a_document_may_be_a_line():
    assert mark("line", b"a\n\n b\nc") == "^a\n^\n^ b\n^c"


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        (b"a\nb\n\nc\nd\n", "^a\nb\n\n^c\nd\n"),
        (b"a\n\n\n \t\n\r\nb\n", "^a\n\n\n \t\n\r\n^b\n"),
        (b"\n \na\nb\n\nc\n", "^\n \na\nb\n\n^c\n"),
    ],
)
def test_blank_lines_may_divide_documents(text, marked):
    assert mark("blank_line", text) == marked


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        (
            b" = A = \n \n text \n \n = B = \n \n text \n",
            "^ = A = \n \n text \n \n^ = B = \n \n text \n",
        ),
        (b"x \n = B = \n \n = C \n \n = D =\n", "^x \n = B = \n \n = C \n \n^ = D =\n"),
        (b"x \n \n = = S = \n \n = S = = \n", "^x \n \n = = S = \n \n = S = = \n"),
        (b"x \n \n = B = ", "^x \n \n = B = "),
        (
            b"= A =\n\nx\n\n= = S = =\n\n= B =\n",
            "^= A =\n\nx\n\n= = S = =\n\n^= B =\n",
        ),  # tokenized
    ],
)
def test_titles_of_wikitext_may_begin_documents(text, marked):
    assert mark("title", text) == marked


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        (b"a\n==\nb\n==\nc\n", "^a\n==\n^b\n==\n^c\n"),
        (b"a\n \t==\t \r\nb\n", "^a\n \t==\t \r\n^b\n"),
        (b"a\n== b\nc==\n===\nd\n", "^a\n== b\nc==\n===\nd\n"),
        (b"==\na\n", "^==\n^a\n"),
    ],
)
def test_a_line_may_end_documents(text, marked):
    assert mark("separator", text) == marked


# Lines that mean something to one rule or another.
LINES = st.sampled_from(
    [b"\n", b" \n", b"a\n", b" b\n", b"==\n", b" = A = \n", b" = = S = = \n", b"\r\n", b"\t"]
)
FILES = st.lists(st.lists(LINES, max_size=11).map(b"".join), max_size=3)


@FUZZ
@given(rule=st.sampled_from(RULES), files=FILES, sizes=st.lists(st.integers(1, 5), min_size=1))
def test_documents_do_not_depend_on_the_chunks(rule, files, sizes):
    assert mark(rule, *files, sizes=sizes) == mark(rule, *files)


@FUZZ
@given(rule=st.sampled_from(RULES), files=FILES)
def test_files_do_not_depend_on_each_other(rule, files):
    assert mark(rule, *files) == "".join(mark(rule, file) for file in files)


@pytest.mark.parametrize(
    ("rule", "starts"),
    [("line", [7, 8, 11, 12]), ("blank_line", [8, 12]), ("separator", [11]), ("title", [12])],
)
def test_a_continued_line_begins_no_document(rule, starts):
    finder = DocumentFinder(rule, SEPARATORS[rule])
    assert finder.find(Chunk(b"a long", True, True)).tolist() == [0]
    assert finder.find(Chunk(b" line", False, False)).tolist() == []
    assert finder.find(Chunk(b" it is\n\n==\n\n = A = \n", False, False)).tolist() == starts


def test_a_separator_is_no_pattern():
    finder = DocumentFinder("separator", " [a.c]* ")
    starts = finder.find(Chunk(b"x\nabc\ny\n[a.c]*\nz\n", True, True))
    assert starts.tolist() == [0, 15]


def test_many_documents_are_found_in_no_time():
    # 100,003 documents: with a copy of what is before each, this would take minutes.
    text = b" = A = \n\n" * 100_003
    assert len(DocumentFinder("title").find(Chunk(text, True, True))) == 100_003


@pytest.mark.parametrize("separator", [" \t", "a\nb"])
def test_a_separator_is_one_line(separator):
    with pytest.raises(UserError, match="`separator` must be one line that is not blank"):
        DocumentFinder("separator", separator)
