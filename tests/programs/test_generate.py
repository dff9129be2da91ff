import io
import os
import re

import pytest
from small_release import make_release

import txl_tf
from txl_tf import generate, import_release
from txl_tf.config import EvalConfig
from txl_tf.data import Vocabulary


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of characters with random weights."""
    folder = tmp_path_factory.mktemp("generating")
    make_release(folder / "source", dataset="text8")
    spans = ["--eval_tgt_len=5", "--eval_mem_len=11"]
    argv = [f"--source={folder}/source", f"--out={folder}/run", *spans]
    assert import_release.main(["import_release", *argv]) == 0
    return folder / "run"


def call(*arguments):
    return generate.main(["generate", *map(str, arguments)])


def test_the_text_is_printed_after_its_prompt(run, capsys):
    arguments = ["--prompt=so it", "--length=9", "--temperature=2", "--top_k=0", "--seed=3"]
    assert call(run, *arguments) == 0
    text = txl_tf.load(run).generate("so it", max_new_tokens=9, temperature=2.0, top_k=None, seed=3)
    assert capsys.readouterr().out == f"so it{text}\n"


@pytest.mark.slow
def test_defaults_draw_the_text_of_the_python_defaults(run, capsys):
    prompt = "so it"
    assert call(run, f"--prompt={prompt}", "--seed=3", "--length=41") == 0
    expected = txl_tf.load(run).generate(prompt, seed=3, max_new_tokens=41)
    assert capsys.readouterr().out == f"{prompt}{expected}\n"


@pytest.mark.slow
def test_int8_generates_the_text_of_the_quantized_model(run, capsys):
    arguments = ["--prompt=so it", "--length=5", "--temperature=0", "--precision=int8"]
    assert call(run, *arguments) == 0
    text = txl_tf.load(run, precision="int8").generate("so it", max_new_tokens=5, temperature=0)
    assert capsys.readouterr().out == f"so it{text}\n"


@pytest.mark.slow
def test_drafts_give_the_same_text(run, capsys):
    arguments = ["--prompt=so it so it so it", "--length=12", "--temperature=0.3"]
    texts = []
    for draft_len in (0, 5):
        assert call(run, *arguments, f"--draft_len={draft_len}") == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


def test_the_prompt_may_come_by_standard_input(run, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("so it"))
    assert call(run, "--length=0") == 0
    assert capsys.readouterr().out == "so it\n"


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """A run of characters, line breaks, commas, tabs and backslashes among them."""
    vocabulary = Vocabulary("char", tuple("\n\t\\,ab"))
    config = txl_tf.ModelConfig(
        n_token=6, n_layer=2, d_model=6, d_embed=6, n_head=3, d_head=5, d_inner=7
    )
    model = txl_tf.TransformerXL(config, seed=1)
    for weight in model.trainable_variables:  # far from uniform, so that each token matters
        weight.assign(9 * weight)
    folder = tmp_path_factory.mktemp("lines") / "run"
    txl_tf.LanguageModel(model, vocabulary, EvalConfig(tgt_len=5, mem_len=11)).save(folder)
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
def test_a_stop_with_a_comma_is_one_text(lines, capsys):
    assert call(lines, *DRAWN, "--stop=a,b") == 0
    out = capsys.readouterr().out
    assert out.endswith("a,b\n")
    assert out.count("a,b") == 1


@pytest.mark.slow
def test_stops_are_symbols(tmp_path, capsys):
    words = Vocabulary("word", ("<eos>", "the", "cat", "."), line_end="<eos>")
    config = txl_tf.ModelConfig(
        n_token=4, n_layer=2, d_model=6, d_embed=6, n_head=3, d_head=5, d_inner=7
    )
    model = txl_tf.TransformerXL(config, seed=1)
    lm = txl_tf.LanguageModel(model, words, EvalConfig(tgt_len=5, mem_len=11))
    lm.save(tmp_path / "run")
    assert (
        call(tmp_path / "run", "--prompt=the", "--temperature=9", "--stop=<eos>", "--stop=.") == 0
    )
    assert re.fullmatch(r"the[^.\n]*[.\n]\n", capsys.readouterr().out)


@pytest.mark.slow
def test_what_the_terminal_cannot_write_is_replaced(tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    config = txl_tf.ModelConfig(
        n_token=2, n_layer=2, d_model=6, d_embed=6, n_head=3, d_head=5, d_inner=7
    )
    vocabulary = Vocabulary("char", ("\u00e9", "a"))
    lm = txl_tf.LanguageModel(
        txl_tf.TransformerXL(config, seed=1), vocabulary, EvalConfig(tgt_len=5, mem_len=11)
    )
    lm.save(run)
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert call(run, "--prompt=a", "--length=5", "--ban=a") == 0
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
    message = "generate: --prompt must be given if there is no standard input\n"
    assert capsys.readouterr().err == message


def test_a_prompt_that_is_not_utf_8_is_one_line(run, capsys, monkeypatch):
    line = "generate: the prompt is not UTF-8: byte 0xff at offset 3\n"
    assert call(run, "--prompt", os.fsdecode("é ".encode() + b"\xff")) == 1
    assert capsys.readouterr() == ("", line)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("é ".encode() + b"\xff")))
    assert call(run) == 1
    assert capsys.readouterr() == ("", line)
