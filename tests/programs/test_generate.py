import gzip
import io
import json
import os
import re
import signal

import pytest
from small_language_model import make_model
from small_release import make_release

import txl_tf
from txl_tf.data import Vocabulary, detokenize_wikitext
from txl_tf.data.text.wikitext import detokenize_continuation
from txl_tf.generation.session import Session
from txl_tf.programs import generate, import_release


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of characters with random weights."""
    folder = tmp_path_factory.mktemp("generating")
    make_release(folder / "source", dataset="text8")
    spans = ["--eval_tgt_len=5", "--eval_mem_len=11"]
    argv = [f"--source={folder}/source", f"--out={folder}/run", *spans]
    assert import_release.main(["import_release", *argv]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def lm(run):
    """The model of the run; whatever it generates is compiled once."""
    return txl_tf.load(run)


def call(*arguments):
    return generate.main(["generate", *map(str, arguments)])


HOT = ("--prompt=so it", "--length=9", "--temperature=2", "--top_k=0", "--seed=3")


@pytest.fixture(scope="module")
def hot_text(lm):
    """What the flags of `HOT` generate."""
    return lm.generate("so it", max_new_tokens=9, temperature=2.0, top_k=None, seed=3)


def test_the_text_is_printed_after_its_prompt(run, hot_text, capsys):
    assert call(run, *HOT) == 0
    assert capsys.readouterr().out == f"so it{hot_text}\n"


@pytest.mark.slow
def test_defaults_draw_the_text_of_the_python_defaults(run, lm, capsys):
    prompt = "so it"
    assert call(run, f"--prompt={prompt}", "--seed=3", "--length=41") == 0
    expected = lm.generate(prompt, seed=3, max_new_tokens=41)
    assert capsys.readouterr().out == f"{prompt}{expected}\n"


@pytest.mark.slow
def test_int8_generates_the_text_of_the_quantized_model(run, capsys):
    arguments = ["--prompt=so it", "--length=5", "--temperature=0", "--precision=int8"]
    assert call(run, *arguments) == 0
    text = txl_tf.load(run, precision="int8").generate("so it", max_new_tokens=5, temperature=0)
    assert capsys.readouterr().out == f"so it{text}\n"


def test_the_prompt_may_come_by_standard_input(run, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("so it"))
    assert call(run, "--length=0") == 0
    assert capsys.readouterr().out == "so it\n"


def test_a_byte_order_mark_is_no_part_of_a_prompt(run, tmp_path, capsys, monkeypatch):
    text = "\ufeffso it".encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert call(run, "--length=0") == 0
    assert capsys.readouterr().out == "so it\n"
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text))
    assert call(run, f"--prompt_file={tmp_path}/a.txt.gz", "--length=0") == 0
    assert capsys.readouterr().out == "so it\n"


FIXED = ("--length=5", "--temperature=0")


def generate_fixed(lm, prompt):
    return lm.generate(prompt, max_new_tokens=5, temperature=0.0)


@pytest.mark.slow
def test_several_prompts_and_seeds_have_titles(run, lm, capsys):
    settings = ("--samples=2", "--length=5", "--temperature=0.5")
    assert call(run, "--prompt=so it", "--prompt=a", *settings) == 0

    def generate(prompt, seed):
        return lm.generate(prompt, max_new_tokens=5, temperature=0.5, seed=seed)

    expected = [
        f"--- prompt {index}, seed {seed}\n{prompt}{generate(prompt, seed)}\n"
        for index, prompt in enumerate(("so it", "a"), 1)
        for seed in (0, 1)
    ]
    assert capsys.readouterr().out == "".join(expected)


def test_a_line_of_json_holds_prompt_seed_and_text(run, hot_text, capsys):
    assert call(run, *HOT, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record == {"prompt": "so it", "seed": 3, "text": hot_text}


@pytest.mark.slow
def test_a_file_can_be_the_prompt_which_need_not_be_printed(run, lm, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("so it")
    assert call(run, f"--prompt_file={tmp_path / 'a.txt'}", "--no_prompt", *FIXED) == 0
    assert capsys.readouterr().out == generate_fixed(lm, "so it") + "\n"
    assert call(run, f"--prompt_file={tmp_path / 'b.txt'}") == 1
    assert "No such file" in capsys.readouterr().err


@pytest.mark.slow
def test_typed_lines_continue_one_text(run, lm, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("so it\nB\n is\n\n"))
    assert call(run, "--interactive", "--json=false", "--samples=1", *FIXED) == 0
    first = generate_fixed(lm, "so it")
    second = generate_fixed(lm, f"so it{first} is")
    third = generate_fixed(lm, f"so it{first} is{second}")
    printed = capsys.readouterr()
    assert printed.out == f"{first}\n{second}\n{third}\n"
    assert "'B'" in printed.err  # the model has no capital letters


@pytest.mark.slow
def test_an_interrupt_ends_the_answer_and_not_the_conversation(run, capsys, monkeypatch):
    stream = Session.stream

    def interrupt(self, length):
        for piece in stream(self, length):
            signal.raise_signal(signal.SIGINT)
            yield piece

    monkeypatch.setattr(Session, "stream", interrupt)
    monkeypatch.setattr("sys.stdin", io.StringIO("so it\n is\n"))
    assert call(run, "--interactive", "--length=97", "--temperature=0") == 0
    assert [len(line) for line in capsys.readouterr().out.splitlines()] == [32, 32]


@pytest.mark.slow
def test_a_line_that_is_not_utf_8_is_refused_and_not_the_next(tmp_path, capsys, monkeypatch):
    """Even by a model with a symbol for unknown characters."""
    vocabulary = Vocabulary("char", tuple("?iost "), unknown="?")
    make_model(6, vocabulary=vocabulary).save(tmp_path / "run")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\nso it\n"), "utf-8"))
    assert call(tmp_path / "run", "--interactive", *FIXED) == 0
    out, err = capsys.readouterr()
    assert out == generate_fixed(txl_tf.load(tmp_path / "run"), "so it") + "\n"
    assert err.startswith("the prompt is not UTF-8: byte 0xff at offset 0")


@pytest.fixture(scope="module")
def wikitext(tmp_path_factory):
    """A run of words of WikiText, the quotation mark among them."""
    folder = tmp_path_factory.mktemp("wikitext") / "run"
    make_model(4, vocabulary=Vocabulary("word", ("@-@", "@,@", '"', "a"))).save(folder)
    return folder


QUOTED = 'a " a'  # the next quotation mark closes
SPELLED = ("--length=20", "--temperature=9")


@pytest.fixture(scope="module")
def words(wikitext):
    """The words that the flags of `SPELLED` generate after `QUOTED`."""
    text = txl_tf.load(wikitext).generate(QUOTED, max_new_tokens=20, temperature=9.0)
    assert {"@-@", '"'} <= set(text.split())
    return text


@pytest.mark.slow
@pytest.mark.parametrize("raw", [False, True])
def test_answers_have_the_ordinary_spelling_of_wikitext_unless_raw(
    raw, wikitext, words, capsys, monkeypatch
):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{QUOTED}\n"))
    assert call(wikitext, "--interactive", f"--raw={str(raw).lower()}", *SPELLED) == 0
    expected = words if raw else detokenize_continuation(QUOTED, words)
    assert capsys.readouterr().out == f"{expected}\n"


@pytest.mark.slow
def test_a_text_without_its_prompt_is_spelled_as_after_it(wikitext, words, capsys):
    printed = []
    for more in ((), ("--no_prompt",)):
        assert call(wikitext, f"--prompt={QUOTED}", *SPELLED, *more) == 0
        printed.append(capsys.readouterr().out)
    whole, text = printed
    assert whole == detokenize_wikitext(QUOTED + words) + "\n"
    assert whole == detokenize_wikitext(QUOTED) + text


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """A run of characters, line breaks, commas, tabs and backslashes among them."""
    folder = tmp_path_factory.mktemp("lines") / "run"
    make_model(6, vocabulary=Vocabulary("char", tuple("\n\t\\,ab"))).save(folder)
    return folder


DRAWN = ["--prompt=ab", "--length=197", "--temperature=9"]


@pytest.fixture(scope="module")
def whole(lines):
    """The text that `DRAWN` asks for."""
    return txl_tf.load(lines).generate("ab", max_new_tokens=197, temperature=9.0, top_k=40)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "stops"),
    [
        ([r"--stop=a\n", "--stop", "ba,"], ["a\n", "ba,"]),
        ([r"--stop=\\"], ["\\"]),
        (["--stop=a,b"], ["a,b"]),
    ],
    ids=str,
)
def test_stops_are_texts(lines, whole, capsys, given, stops):
    assert call(lines, *DRAWN, *given) == 0
    end = min(whole.index(stop) + len(stop) for stop in stops)
    assert capsys.readouterr().out == f"ab{whole[:end]}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "banned"), [([r"--ban=\n"], "\n"), (["--ban=a", "--ban=b"], "ab")], ids=str
)
def test_bans_are_characters(lines, capsys, given, banned):
    assert call(lines, *DRAWN, *given) == 0
    assert not set(banned) & set(capsys.readouterr().out[2:-1])


@pytest.mark.slow
def test_stops_are_symbols(tmp_path, capsys):
    words = Vocabulary("word", ("<eos>", "the", "cat", "."), line_end="<eos>")
    make_model(4, vocabulary=words).save(tmp_path / "run")
    stops = ("--stop=<eos>", "--stop=.")
    assert call(tmp_path / "run", "--prompt=the", "--temperature=99", *stops) == 0
    assert re.fullmatch(r"the[^.\n]*[.\n]\n", capsys.readouterr().out)


@pytest.mark.slow
def test_characters_outside_the_terminals_encoding_are_replaced(tmp_path, capsys, monkeypatch):
    make_model(2, vocabulary=Vocabulary("char", ("\u00e9", "a"))).save(tmp_path / "run")
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert call(tmp_path / "run", "--prompt=a", "--length=5", "--ban=a") == 0
    assert written.getvalue() == b"a?????\n"


def test_an_interruption_ends_the_line(run, capsys, monkeypatch):
    def stream(*_, **__):
        yield "so"
        raise KeyboardInterrupt

    monkeypatch.setattr(txl_tf.LanguageModel, "stream", stream)
    assert call(run, "--prompt=a") == 130
    assert capsys.readouterr() == ("aso\n", "generate: interrupted\n")


def test_no_standard_input_is_one_line(run, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert call(run) == 1
    message = "generate: --prompt, --prompt_file or --interactive must be given\n"
    assert capsys.readouterr().err == message


def test_a_prompt_that_is_not_utf_8_is_one_line(run, capsys, monkeypatch):
    line = (
        "generate: the prompt is not UTF-8: byte 0xff at offset 3 (invalid start byte); if it is "
        "in LATIN1, iconv -f LATIN1 -t UTF-8 converts it\n"
    )
    assert call(run, "--prompt", os.fsdecode("é ".encode() + b"\xff")) == 1
    assert capsys.readouterr() == ("", line)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("é ".encode() + b"\xff")))
    assert call(run) == 1
    assert capsys.readouterr() == ("", line)


def test_a_model_without_memory_is_told(tmp_path, capsys):
    make_model(6, vocabulary=Vocabulary("char", tuple("\n\t\\,ab")), mem_len=0).save(
        tmp_path / "run"
    )
    assert call(tmp_path / "run", "--prompt=ab", "--length=3") == 0
    assert "mem_len 0: each new token will see only the one before" in capsys.readouterr().err
