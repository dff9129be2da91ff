"""What keeps the app from starting, before it needs Gradio or a model."""

import sys
from types import SimpleNamespace

import pytest

from examples import app
from txl_tf.data import Vocabulary, write_records

BYTES = Vocabulary("byte", tuple(map(str, range(256))))


def test_without_gradio_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert app.main(["app.py", "runs/text8"]) == 1
    rule = "the app needs the package gradio: pip install -e '.[app]'"
    assert capsys.readouterr().err == f"app.py: {rule}\n"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--run=a", "--port=0"], 2, "flag --port=0: 0 is not an integer in the range [1, 65535]"),
        (
            ["--run=a", "--host=192.0.2.1"],
            1,
            "the app cannot listen at 192.0.2.1: Cannot assign requested address",
        ),
        (["--run=a", "--host=127..0.1"], 1, "the app cannot listen at 127..0.1: "),
    ],
)
def test_wrong_flags_are_one_line(arguments, status, message, capsys):
    assert app.main(["app.py", *arguments]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"app.py: {message}")


def write_text(run, text):
    """Writes the records of a run, whose split valid is a text."""
    write_records(
        run / "records",
        dataset="tiny",
        vocabulary=BYTES,
        splits={"valid": [BYTES.encode(text)]},
        tokens_per_record=500,
    )


def test_the_texts_that_the_page_begins_with_end_at_a_word(tmp_path):
    words = ("Returns", "the", "value")
    write_text(tmp_path, f"{' '.join(words)}\n" * 29)
    lm = SimpleNamespace(run=str(tmp_path), vocabulary=BYTES)
    for text in app.find_sample(lm, 393):
        assert set(text.split()) == set(words)


def test_records_with_another_vocabulary_than_the_model_are_not_shown(tmp_path):
    write_text(tmp_path, "Returns the value\n" * 29)
    vocabulary = Vocabulary("byte", BYTES.symbols[::-1])
    lm = SimpleNamespace(run=str(tmp_path), vocabulary=vocabulary)
    assert app.find_sample(lm, 393) == ("", "")


@pytest.mark.parametrize("text", ["", "\nword"])
def test_a_text_without_a_boundary_between_words_is_kept(text):
    assert app.end_at_word(text) == text


@pytest.mark.parametrize("fails", [False, True])
def test_wrong_input_becomes_a_message_without_markup(fails):
    class Gradio:
        class Error(Exception):
            def __init__(self, message, **options):
                super().__init__(message)

    def show(text):
        if fails:
            raise app.UserError(f"Received: {text}")
        return text

    def stream(text):
        yield show(text)

    calls = [app.report_errors(Gradio, show), lambda t: next(app.report_errors(Gradio, stream)(t))]
    for call in calls:
        if fails:
            with pytest.raises(Gradio.Error, match=r"^Received: &lt;b&gt;$"):
                call("<b>")
        else:
            assert call("<b>") == "<b>"
