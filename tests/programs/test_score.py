"""The scoring program from its command line to what it prints, on a tiny run of words."""

import gzip
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from called_programs import standard_input
from tables import slow_after

import txl_tf
from txl_tf.data import Vocabulary
from txl_tf.data.text.text_files import TextFile
from txl_tf.programs import score
from txl_tf.runs.checkpoint import CheckpointReader, write_checkpoint
from txl_tf.runs.folder import (
    CONFIG_NAME,
    VOCABULARY_NAME,
    read_run_config,
    read_run_vocabulary,
)
from txl_tf.scoring.text_chunks import _find_unknown

SAME = {"rel": 1e-5, "abs": 1e-5}  # float32


def write_run(level, run, parent):
    """Writes the run with another vocabulary and larger weights, and texts that lie beside it."""
    folder = parent / "run"
    (folder / "checkpoints").mkdir(parents=True)
    shutil.copy(run / CONFIG_NAME, folder)
    (folder / VOCABULARY_NAME).write_text(json.dumps(make_vocabulary(level).to_json()))
    reader = CheckpointReader(str(run / "checkpoints" / "ckpt-12"))
    names = reader.list_shapes("weights")
    # So large that each token matters.
    large = {name: tf.Variable(9 * reader.read("weights", name)) for name in names}
    path, config = str(folder / "checkpoints" / "ckpt-12"), read_run_config(str(run)).model
    write_checkpoint(path, {"weights": large}, config, reader.origin)
    rng = np.random.default_rng(5)
    symbols = [*"abcde", " ", "\n"] if level == "char" else [*"abcde", "\n", "\n\n"]
    join = "" if level == "char" else " "
    for name, length in (("one", 61), ("two", 97), ("three", 7)):
        text = join.join(rng.choice(symbols, length)).replace("\n ", "\n")
        (parent / f"{name}.txt").write_text(text + "\n")
    (parent / "empty.txt").touch()
    return folder


@pytest.fixture(scope="module")
def words(run, tmp_path_factory):
    return write_run("word", run, tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module", params=slow_after(1, ["word", "char"]))
def folder(request, run, words, tmp_path_factory):
    """A run of each level."""
    if request.param == "word":
        return words
    return write_run("char", run, tmp_path_factory.mktemp("characters"))


def make_vocabulary(level):
    if level == "char":
        return Vocabulary("char", (*"abcde \nfghi",))
    return Vocabulary("word", ("<eos>", *"abcdefghij"), line_end="<eos>")


def call(*arguments):
    return score.main(["score.py", *map(str, arguments), "--jit=none"])


def score_as_json(capsys, folder, *arguments, names=("one", "two", "three")):
    """Returns the objects of the texts, and that of all."""
    capsys.readouterr()
    paths = [folder.parent / f"{name}.txt" for name in names]
    assert call("--run", folder, *paths, "--json", *arguments) == 0
    *texts, total = map(json.loads, capsys.readouterr().out.splitlines())
    assert total["kind"] == "total"
    assert total["texts"] == len(texts)
    for name in ("tokens", "total_nats", "bytes", "words"):
        assert total[name] == pytest.approx(sum(text[name] for text in texts))
    return texts, total


def read_text(folder, name):
    return (folder.parent / f"{name}.txt").read_text()


def approximate(value):
    """Returns the JSON of a mean, which is null if there is nothing to average."""
    return None if value is None or np.isnan(value) else pytest.approx(value, **SAME)


def test_a_file_has_the_score_of_its_text(folder, capsys):
    names = ("one", "empty", "two")
    found, _ = score_as_json(capsys, folder, names=names)
    expected = txl_tf.load(folder).score([read_text(folder, name) for name in names])
    for record, name, text in zip(found, names, expected, strict=True):
        assert record == {
            "kind": "file",
            "source": str(folder.parent / f"{name}.txt"),
            "number": 1,
            "tokens": text.tokens,
            "unknown_tokens": 0,
            "unknown_share": 0.0 if text.tokens else None,
            "total_nats": pytest.approx(text.total_nats, **SAME),
            "nats_per_token": approximate(text.nats_per_token),
            "bpc" if text.level == "char" else "bits_per_token": approximate(text.bits_per_token),
            "perplexity": approximate(text.perplexity),
            "bytes": text.n_bytes,
            "bits_per_byte": approximate(text.bits_per_byte),
            "words": text.n_words,
            "word_perplexity": approximate(text.word_perplexity),
        }


@pytest.mark.slow
def test_lines_are_texts_of_their_own(folder, capsys):
    found, _ = score_as_json(capsys, folder, "--by=line", "--per_token")
    lines = [line for name in ("one", "two", "three") for line in read_lines(folder, name)]
    expected = txl_tf.load(folder).score([line for _, line in lines])
    for record, (number, _), text in zip(found, lines, expected, strict=True):
        assert record["number"] == number
        n_unscored = len(text.ids) - text.tokens
        assert record["nats"][:n_unscored] == [None] * n_unscored
        assert record["nats"][n_unscored:] == pytest.approx(text.nats.tolist(), **SAME)
        symbols = txl_tf.load(folder).vocabulary.symbols if number == 1 else None
        assert symbols is None or record["symbols"] == [symbols[i] for i in text.ids]
        assert (record["bytes"], record["words"]) == (text.n_bytes, text.n_words)


def read_lines(folder, name):
    return list(enumerate(read_text(folder, name).splitlines(keepends=True), 1))


@pytest.mark.parametrize("by", slow_after(1, ["document", "line"]))
def test_with_the_context_of_a_file_its_texts_add_up_to_it(folder, capsys, by):
    files, _ = score_as_json(capsys, folder)
    texts, _ = score_as_json(capsys, folder, f"--by={by}", "--context=file")
    assert len(texts) > len(files)
    for file in files:
        of_file = [text for text in texts if text["source"] == file["source"]]
        assert [text["number"] for text in of_file] == list(range(1, len(of_file) + 1))
        for name in ("tokens", "total_nats", "bytes", "words"):
            assert sum(text[name] for text in of_file) == pytest.approx(file[name], **SAME)


def test_a_memory_that_is_carried_makes_all_files_one_text(words, capsys):
    found, total = score_as_json(capsys, words, "--carry_memory")
    texts = [read_text(words, name) for name in ("one", "two", "three")]
    (whole,) = txl_tf.load(words).score(["".join(texts)])
    assert total["total_nats"] == pytest.approx(whole.total_nats, **SAME)
    assert total["tokens"] == whole.tokens
    assert len(found) == 3


def test_flags_change_what_the_model_sees(words, capsys):
    arguments = ["--tgt_len=3", "--mem_len=2", "--same_length", "--clamp_len=1"]
    (found,), _ = score_as_json(capsys, words, *arguments, "--nomask_empty_memory", names=["one"])
    lm = txl_tf.load(words)
    lm.evaluation = txl_tf.EvalConfig(tgt_len=3, mem_len=2, same_length=True, clamp_len=1)
    (text,) = lm.score([read_text(words, "one")], mask_empty_memory=False)
    assert found["total_nats"] == pytest.approx(text.total_nats, **SAME)
    (masked,), _ = score_as_json(capsys, words, *arguments, names=["one"])
    assert masked["total_nats"] != pytest.approx(text.total_nats, **SAME)


def test_the_table_has_a_row_for_each_text_and_one_for_all(folder, capsys):
    path = folder.parent / "one.txt"
    assert call("--run", folder, "--by", "line", path) == 0
    head, *rows, total = capsys.readouterr().out.splitlines()
    bits = "bpc" if txl_tf.load(folder).vocabulary.level == "char" else "bits/token"
    names = f"tokens nats nats/token {bits} perplexity bits/byte word perplexity"
    assert head.split() == [*names.split(), "line"]
    n_lines = len(read_lines(folder, "one"))
    assert [row.split()[-1] for row in rows] == [f"{path}:{n}" for n in range(1, n_lines + 1)]
    assert total.endswith(f"  total (lines: {n_lines})")


def write_vocabulary(folder, tmp_path, vocabulary):
    """Returns the run with another vocabulary of the same size."""
    shutil.copytree(folder, tmp_path / "other")
    (tmp_path / "other" / VOCABULARY_NAME).write_text(json.dumps(vocabulary.to_json()))
    return tmp_path / "other"


@pytest.fixture
def unknown_folder(folder, tmp_path):
    """A run whose vocabulary has the symbol ? for unknown ones, and texts with some and without."""
    level = read_run_vocabulary(str(folder)).level
    symbols = {"word": ("<eos>", *"abcdefghi?"), "char": (*"abcde \nfg?h",)}[level]
    marks = {"line_end": "<eos>"} if level == "word" else {}
    vocabulary = Vocabulary(level, symbols, unknown="?", **marks)
    (tmp_path / "some.txt").write_text("a x b\n")  # 3 words and a line end
    (tmp_path / "none.txt").write_text("a b c\n")
    (tmp_path / "first.txt").write_text("x b c\n")
    return write_vocabulary(folder, tmp_path, vocabulary)


def test_texts_with_unknown_tokens_have_no_bits_per_byte(unknown_folder, capsys):
    texts, total = score_as_json(capsys, unknown_folder, names=("some", "none", "first"))
    assert [text["unknown_tokens"] for text in (*texts, total)] == [1, 0, 0, 1]
    shares = [1 / texts[0]["tokens"], 0, 0, 1 / total["tokens"]]
    assert [text["unknown_share"] for text in (*texts, total)] == pytest.approx(shares)
    assert [text["bits_per_byte"] is None for text in (*texts, total)] == [True, False, False, True]
    if txl_tf.load(unknown_folder).vocabulary.level == "char":
        assert [text["bpc"] is None for text in (*texts, total)] == [True, False, False, True]


def test_unknown_tokens_are_warned_of_once(unknown_folder, capsys):
    arguments = [unknown_folder.parent / f"{name}.txt" for name in ("some", "some", "none")]
    assert call("--run", unknown_folder, *arguments) == 0
    out, err = capsys.readouterr()
    head, some, _, none, total = out.splitlines()
    n_tokens = 3 if txl_tf.load(unknown_folder).vocabulary.level == "word" else 5
    assert head.split()[:2] == ["tokens", "unknown"]
    assert some.split()[:3] == [str(n_tokens), "1", f"({1 / n_tokens:.2%})"]
    assert "- unknown" in some
    assert "- unknown" not in none
    assert "- unknown" in total
    (line,) = err.splitlines()
    assert line.startswith(
        f"warning: 2 ({2 / 3 / n_tokens:.2%}) of {3 * n_tokens} scored tokens are ?: "
    )
    assert call("--run", unknown_folder, arguments[-1]) == 0
    assert capsys.readouterr().err == ""


def test_the_language_model_warns_of_unknown_tokens(unknown_folder):
    lm = txl_tf.load(unknown_folder)
    with pytest.warns(UserWarning, match=r"^1 \(.*%\) of \d+ scored tokens are \?: ") as warned:
        some, none = lm.score(["a x b\n", "a b c\n"])
    assert warned[0].filename == __file__
    assert (some.n_unknown, none.n_unknown) == (1, 0)
    assert some.unknown_share == 1 / some.tokens
    assert (some.bits_per_byte, some.bpc) == (None, None)
    assert none.bits_per_byte > 0


def test_bytes_are_shown_as_characters_and_escapes(words, tmp_path, capsys):
    codes = [ord(symbol) for symbol in "a0 \\\n\r\t"] + [0, 127, 195, 169]
    vocabulary = Vocabulary("byte", tuple(map(str, codes)))
    other = write_vocabulary(words, tmp_path, vocabulary)
    (tmp_path / "bytes.txt").write_bytes(bytes(codes))
    (found,), _ = score_as_json(capsys, other, "--per_token", names=["bytes"])
    assert found["symbols"] == [
        *("a", "0", " ", "\\", r"\n", r"\r", r"\t"),
        *(r"\x00", r"\x7f", r"\xc3", r"\xa9"),
    ]


@pytest.mark.slow
def test_packed_files_and_the_standard_input_are_read(run, tmp_path, capsys):
    text = b"w1 w2 w10 w3\n" * 13
    packed = tmp_path / "packed.txt.gz"
    packed.write_bytes(gzip.compress(text))
    with standard_input(text):
        assert call("--run", run, "-", packed, "--format=jsonl") == 0
    first, second, _ = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["source"], second["source"]) == ("standard input", str(packed))
    assert first["total_nats"] == pytest.approx(second["total_nats"], **SAME)
    assert first["bytes"] == second["bytes"] > 0


MEANS = ("unknown_share", "nats_per_token", "perplexity", "bits_per_byte", "word_perplexity")


def test_files_without_text_have_no_mean_loss(words, capsys):
    texts, total = score_as_json(capsys, words, "--by=line", names=["empty"])
    assert texts == []
    assert (total["tokens"], total["total_nats"]) == (0, 0.0)
    assert [total[name] for name in MEANS] == [None] * len(MEANS)


def test_a_text_of_one_unscored_token_has_no_mean_loss(words, capsys):
    path = words.parent / "one_token.txt"
    path.write_text("\n")
    assert call("--run", words, path, "--format=jsonl") == 0
    for record in map(json.loads, capsys.readouterr().out.splitlines()):
        assert [record[name] for name in MEANS] == [None] * len(MEANS)
    assert call("--run", words, path) == 0
    _, row, total = capsys.readouterr().out.splitlines()
    assert row.split()[:7] == total.split()[:7] == ["0", "0.00", *"-----"]
    path.unlink()


def test_a_word_of_ten_megabytes_is_one_clear_line(words, capsys):
    path = words.parent / "long.txt"
    path.write_bytes(b"a b " + b"z" * 10**7)
    assert call("--run", words, path) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"score.py: `{path}`, line 1, byte offset 4: 'z")
    assert len(line) < 300
    path.unlink()


def test_an_unknown_word_is_found_beside_one_of_another_case():
    vocabulary = Vocabulary("word", ("us", "and"))
    text = b"us and US"
    encoded = vocabulary.codec.encode(text)
    assert _find_unknown(vocabulary, encoded, text) == (1, 7, "'US'")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a b\nc \xff\n", r"`{}`, line 2, byte offset 6: byte 0xff, which is not UTF-8"),
        ("a b\n\nd\n a \u00e9\n".encode(), "`{}`, line 4, byte offset 10: 'é'"),
    ],
    ids=["utf8", "unknown"],
)
def test_bad_texts_are_named_with_line_and_offset(words, capsys, monkeypatch, content, message):
    monkeypatch.setattr(TextFile.iterate_blocks, "__defaults__", (5,))
    path = words.parent / "bad.txt"
    path.write_bytes(content)
    assert call("--run", words, path) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message.format(path) in line


def test_a_prefix_that_is_not_utf_8_is_one_line(words, capsys):
    assert call("--run", words, "--prefix=\udcff", words.parent / "one.txt") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("score.py: --prefix: ")
