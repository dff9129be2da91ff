"""The page of a text: its numbers beside the model's, and the page in a browser."""

import base64
import html
import html.parser
import json
import math
import os
import re
import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from called_programs import standard_input
from small_language_model import WORDS, make_model
from tables import slow_after

import txl_tf
from txl_tf.config import EvalConfig
from txl_tf.data import Vocabulary, write_records
from txl_tf.errors import UserError
from txl_tf.lab.pages.text_page import make_text_page
from txl_tf.lab.shown_tokens import name_symbol, show_tokens
from txl_tf.lab.text_attention import Head, read_attention
from txl_tf.lab.text_trace import TextTracer
from txl_tf.programs import page

BYTES = Vocabulary("byte", tuple(map(str, range(256))))
TEXT = "the cat sat on the mat\na cat\n" * 3
N_HEADS, TGT_LEN, MEM_LEN = 6, 5, 11
HOSTILE = Vocabulary("word", ("<eos>", "</script>", "<b>", "&amp;", '"x"'), line_end="<eos>")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


class Page(html.parser.HTMLParser):
    """The tokens, the numbers and the policy of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.tokens, self.classes = [], [], [], []
        self.elements, self.policy = {}, ""
        self._id, self._in_token = None, False
        self.feed(text)
        self.facts = json.loads(self.elements["facts"])

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.tags.append(tag)
        self.attributes += attrs
        self.policy = named.get("content") if "http-equiv" in named else self.policy
        if tag == "div":
            self._id = named.get("id")
        if tag == "span" and self._id == "text":
            self.tokens.append("")
            self.classes.append(named["class"])
            self._in_token = True
        if tag == "script":
            self._id = named.get("id", "script")

    def handle_endtag(self, tag):
        self._in_token = False
        if tag in ("div", "script"):
            self._id = None

    def handle_data(self, data):
        if self._in_token:
            self.tokens[-1] += data
        elif self._id not in (None, "text"):
            self.elements[self._id] = self.elements.get(self._id, "") + data

    def read(self, name, *shape):
        dtypes = {"Uint8Array": "u1", "Uint16Array": "<u2", "Uint32Array": "<u4"}
        dtype = dtypes.get(self.facts["arrays"][name], "<f4")
        content = base64.b64decode(self.elements[name])
        return np.frombuffer(content, dtype).reshape(shape or -1)

    def read_weights(self, name, *shape):
        return (self.read(name, *shape) / 255.0) ** 2


def make_run(folder, vocabulary, **fields):
    make_model(len(vocabulary), vocabulary=vocabulary, **fields).save(folder)
    return folder


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("words") / "run", WORDS)


@pytest.fixture(scope="module")
def of_bytes(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("bytes") / "run", BYTES)


def write(run, folder, text, *arguments):
    """Returns the page that the program writes for a text."""
    file, out = folder / "text.txt", folder / "page.html"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert page.main(["page.py", f"--run={run}", str(file), f"--out={out}", *arguments]) == 0
    return Page(out.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_losses_ranks_and_alternatives_are_those_of_the_model(words, tmp_path):
    found = write(words, tmp_path, TEXT, "--alternatives=3")
    lm = txl_tf.load(words)
    (score,) = lm.score([TEXT])
    n = len(score.ids) - 1
    np.testing.assert_allclose(found.read("nats"), score.nats, rtol=1e-5, atol=1e-5)
    log_probs = compute_log_probs(lm, score.ids)  # (n, V)
    order = np.argsort(-log_probs, axis=1, kind="stable")
    expected = np.take_along_axis(log_probs, order[:, :3], axis=1)
    np.testing.assert_allclose(found.read("log_probs", n, 3), expected, rtol=1e-5, atol=1e-5)
    symbols = found.facts["symbols"]
    names = [[symbols[i] for i in row] for row in found.read("alternatives", n, 3).tolist()]
    assert names == [[WORDS.symbols[i] for i in row] for row in order[:, :3].tolist()]
    ranks = 1 + np.argmax(order == score.ids[1:, None], axis=1)
    assert found.read("ranks").tolist() == ranks.tolist()
    assert [symbols[i] for i in found.read("ids")] == [WORDS.symbols[i] for i in score.ids]


def compute_log_probs(lm, ids, **options):
    """Returns the log-probabilities (n - 1, V) by scoring every token after every prefix."""
    rows = []
    for stop in range(1, len(ids)):
        texts = [np.append(ids[:stop], token) for token in range(lm.config.n_token)]
        rows.append([-score.nats[-1] for score in lm.score(texts, **options)])
    return np.array(rows)


@pytest.mark.slow
def test_an_adaptive_softmax_has_the_same_losses_and_alternatives(tmp_path):
    config = txl_tf.ModelConfig(
        **{"n_token": 23, "n_layer": 2, "d_model": 6, "d_embed": 6, "n_head": 3, "d_head": 5},
        **{"d_inner": 7, "cutoffs": (5, 11), "div_val": 2},
    )
    vocabulary = Vocabulary("char", tuple("abcdefghijklmnopqrstuvw"))
    model = txl_tf.TransformerXL(config, seed=1)
    for weight in model.trainable_variables:
        weight.assign(9 * weight)
    lm = txl_tf.LanguageModel(model, vocabulary, EvalConfig(tgt_len=TGT_LEN, mem_len=MEM_LEN))
    lm.save(tmp_path / "run")
    text = "abwuvjklhgc"
    found = write(tmp_path / "run", tmp_path, text, "--alternatives=23")
    (score,) = lm.score([text])
    np.testing.assert_allclose(found.read("nats"), score.nats, rtol=1e-5, atol=1e-5)
    expected = -np.sort(-compute_log_probs(lm, score.ids), axis=1)
    np.testing.assert_allclose(found.read("log_probs", 10, 23), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("span", "masks"),
    slow_after(1, [({"same_length": True}, False), ({}, True), ({"mem_len": 0}, True)]),
    ids=str,
)
def test_keys_and_weights_are_the_strongest_of_the_attention(span, masks, tmp_path):
    lm = make_model(len(WORDS), vocabulary=WORDS, **span)
    lm.save(tmp_path / "run")
    n_keys = 4
    arguments = (f"--keys={n_keys}", f"--mask_empty_memory={str(masks).lower()}")
    found = write(tmp_path / "run", tmp_path, TEXT, *arguments)
    attention = read_attention(lm, TEXT, mask_empty_memory=masks)
    n = len(attention.ids) - 1
    of_heads = attention.weights.reshape(N_HEADS, n + 1, n + 1)[:, :n, :n]
    expected = np.concatenate([of_heads.mean(0, keepdims=True), of_heads]).swapaxes(0, 1)
    shape = (n, 1 + N_HEADS, n_keys)
    weights, distances = found.read_weights("weights", *shape), found.read("distances", *shape)
    assert found.facts["heads"] == ["mean", "0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    largest = -np.sort(-expected, axis=-1)[..., :n_keys]
    np.testing.assert_allclose(weights, largest, atol=1 / 255)  # quantized
    keys = np.arange(n)[:, None, None] - distances.astype(int)
    assert keys.min() >= 0
    own = np.take_along_axis(expected, keys, axis=-1)
    np.testing.assert_allclose(weights, np.where(weights > 0, own, 0), atol=1 / 255)
    begins = np.arange(n) // TGT_LEN * TGT_LEN
    in_memory = np.where(np.arange(n) < begins[:, None, None], expected, 0).sum(-1)
    assert in_memory.max() > 0 or span == {"mem_len": 0}
    memory = found.read_weights("in_memory", n, 1 + N_HEADS)
    np.testing.assert_allclose(memory, in_memory, atol=1 / 255)
    assert ("empty" in found.facts["arrays"]) is not masks
    if not masks:
        empty = found.read_weights("empty", n, 1 + N_HEADS)
        np.testing.assert_allclose(empty, 1 - expected.sum(-1), atol=1 / 255)
    assert found.facts["tgt_len"] == TGT_LEN


@pytest.mark.slow
def test_heads_may_be_chosen_and_the_mean_is_still_of_all(words, tmp_path):
    everything = write(words, tmp_path, TEXT)
    found = write(words, tmp_path, TEXT, "--heads=1.2,0.1,1.2", "--keys=2")
    assert found.facts["heads"] == ["mean", "0.1", "1.2"]
    n = len(found.read("nats"))
    expected = everything.read("weights", n, 7, 8)[:, [0, 2, 6], :2]
    np.testing.assert_array_equal(found.read("weights", n, 3, 2), expected)


def test_every_token_is_shown_in_the_color_of_its_surprisal(words, tmp_path):
    found = write(words, tmp_path, "the cat\na mat\n")
    assert found.tokens == ["the", "cat", "↵\n", "a", "mat", "↵\n"]
    steps = [min(int(nats / math.log(2) / 2), 8) for nats in found.read("nats").tolist()]
    assert found.classes == ["none", *(f"s{step}" for step in steps)]


def test_bytes_show_characters_and_marks():
    text = "é\t\n".encode() + b"\xff\x00 " + "\U0001f600".encode()
    shown = [text for text, _ in show_tokens(BYTES, BYTES.encode(text))]
    assert shown == ["é", "", "⇥\t", "↵\n", "\\xff", "\x00", " ", "\U0001f600", "", "", ""]
    names = [name_symbol(BYTES, token) for token in (10, 32, 0xC3, 65)]
    assert names == ["\\n", "␣", "\\xc3", "A"]


def test_a_middle_dot_is_a_character_of_its_own(of_bytes, tmp_path):
    found = write(of_bytes, tmp_path, "a\u00b7\u00e9")
    assert found.tokens == ["a", "\u00b7", "\u00b7", "\u00e9", "\u00b7"]
    assert ["more" in each.split() for each in found.classes] == [False, False, True, False, True]


def test_characters_words_and_ids_are_shown():
    spaced = Vocabulary("char", ("_", "a", "\n", "\udc80"), space="_")
    assert [text for text, _ in show_tokens(spaced, np.arange(4))] == [" ", "a", "↵\n", "?"]
    assert [name_symbol(spaced, token) for token in range(3)] == ["␣", "a", "\\n"]
    marked = Vocabulary("word", ("<S>", "a", "b"), line_start="<S>")
    shown = show_tokens(marked, np.array([0, 1, 2, 0, 1]))
    assert "".join(text + after for text, after in shown) == "<S> a b\n<S> a "
    assert [text for text, _ in show_tokens(None, np.array([7, 11]))] == ["7", "11"]


def test_subwords_show_their_spaces_and_bytes():
    vocabulary = Vocabulary.learn("subword", ["a cat sat on a mat\n" * 9], max_symbols=275)
    ids = vocabulary.encode("a cat é\n")
    shown = [text for text, _ in show_tokens(vocabulary, ids)]
    assert "".join(shown) == "a cat é↵\n"
    names = [name_symbol(vocabulary, token) for token in ids.tolist()]
    assert "".join(names) == r"a␣cat␣\xc3\xa9\n"


def test_the_page_runs_only_its_script_and_loads_nothing(tmp_path):
    run = make_run(tmp_path / "<i>run", HOSTILE)
    found = write(run, tmp_path, '</script> <b> &amp; "x"\n' * 3)
    assert found.tokens[:5] == ["</script>", "<b>", "&amp;", '"x"', "↵\n"]
    assert "</script>" in found.facts["symbols"]
    digest = re.fullmatch(
        r"default-src 'none'; style-src 'unsafe-inline'; script-src '(sha256-[\w+/=]+)'",
        found.policy,
    )
    assert digest
    assert not {"b", "i", "img", "link", "iframe"} & set(found.tags)
    names = {name for name, _ in found.attributes}
    assert not {"src", "href", "style"} & names
    assert not {name for name in names if name.startswith("on")}
    text = (tmp_path / "page.html").read_text()
    assert not re.search(r"url\(|@import|https?://|innerHTML|eval\(", text)


@pytest.mark.slow
def test_a_stretch_is_read_with_an_empty_memory(words, tmp_path, capsys):
    ids = np.random.default_rng(5).integers(0, len(WORDS), 61)
    write_records(
        tmp_path / "records",
        dataset="tiny",
        vocabulary=WORDS,
        splits={"train": [ids], "test": [ids[::-1]]},
        tokens_per_record=29,
    )
    out = tmp_path / "page.html"
    arguments = ["--split=test", f"--data_dir={tmp_path}/records", "--start=13", "--tokens=17"]
    assert page.main(["page.py", f"--run={words}", f"--out={out}", *arguments]) == 0
    assert f"Wrote {out}, 0.0 MB\n" in capsys.readouterr().out
    text = out.read_text()
    assert "<dd>tiny, split test, tokens 13 to 29 of 61</dd>" in text
    (score,) = txl_tf.load(words).score([ids[::-1][13:30]])
    np.testing.assert_allclose(Page(text).read("nats"), score.nats, rtol=1e-5, atol=1e-5)
    found = write(words, tmp_path, TEXT, "--start=3", "--tokens=7")
    (score,) = txl_tf.load(words).score([WORDS.encode(TEXT)[3:10]])
    np.testing.assert_allclose(found.read("nats"), score.nats, rtol=1e-5, atol=1e-5)
    assert "text.txt, tokens 3 to 9</dd>" in out.read_text()


def test_a_file_whose_name_is_not_utf_8_is_read(words, tmp_path):
    file, out = tmp_path / os.fsdecode(b"caf\xe9.txt"), tmp_path / "page.html"
    file.write_text("the cat\n")
    assert page.main(["page.py", f"--run={words}", str(file), f"--out={out}"]) == 0
    assert "caf?.txt" in out.read_text(encoding="utf-8")


def test_the_size_of_a_page_counts_its_alternatives(words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(page, "_MAX_BYTES", len(WORDS.encode(TEXT)) * 50 * 4 // 3)
    (tmp_path / "text.txt").write_text(TEXT)
    arguments = [f"{tmp_path}/text.txt", f"--out={tmp_path}/page.html", "--keys=1"]
    assert page.main(["page.py", f"--run={words}", *arguments, "--alternatives=99"]) == 1
    assert "--alternatives or --tokens" in capsys.readouterr().err
    assert page.main(["page.py", f"--run={words}", *arguments, "--alternatives=2"]) == 0
    # Where a token sees fewer, no more keys are stored.
    monkeypatch.setattr(page, "_MAX_BYTES", 10**6)
    assert page.main(["page.py", f"--run={words}", *arguments[:2], "--keys=99999"]) == 0


def test_full_memory_before_the_text_is_read_is_explained(monkeypatch):
    def fail(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr("txl_tf.lab.attention_reader.make_cached", fail)
    lm = make_model(len(WORDS), vocabulary=WORDS)
    with pytest.raises(UserError, match="too little memory to read the text: try a smaller --tgt"):
        TextTracer(lm, [Head(1, 2)])


@pytest.mark.slow
def test_standard_input_is_read(words, tmp_path):
    out = tmp_path / "page.html"
    with standard_input(TEXT.encode()):
        assert page.main(["page.py", f"--run={words}", f"--out={out}"]) == 0
    (score,) = txl_tf.load(words).score([TEXT])
    found = Page(out.read_text())
    np.testing.assert_allclose(found.read("nats"), score.nats, rtol=1e-5, atol=1e-5)


def open_in_browser(path, fragment, *options):
    """Returns the DOM after the script of the page has run."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *options]
    command += ["--virtual-time-budget=4000", "--dump-dom", f"file://{path}#{fragment}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return ran.stdout


def run_steps(path, steps, *options):
    """Returns `seen` after a script has run at the end of a page."""
    # The page would not run a second script.
    source = re.sub('<meta http-equiv="[^>]*>', "", path.read_text())
    steps += "document.title = JSON.stringify(seen);"
    path.write_text(source.replace("</body>", f"<script>{{{steps}}}</script></body>"))
    title = re.search("<title>(.*?)</title>", open_in_browser(path, "", *options))[1]
    return json.loads(html.unescape(title))


@pytest.mark.slow
@needs_chromium
def test_a_chosen_token_shows_alternatives_and_marks_its_keys(of_bytes, tmp_path):
    text = "Là-bas, the cat sat\n"
    found = write(of_bytes, tmp_path, text, "--alternatives=3", "--keys=4")
    chosen, head = 14, 5
    dom = open_in_browser(
        tmp_path / "page.html", f"token={chosen}&head={found.facts['heads'][head]}"
    )
    assert "<h2>Token 14</h2>" in dom
    bits = found.read("nats")[chosen - 1] / math.log(2)
    rank = found.read("ranks")[chosen - 1]
    assert f"{bits:.2f} bits" in dom
    assert f"rank {rank} of 256" in dom
    panel = dom[dom.index('id="panel"') :]
    names = [found.facts["symbols"][i] for i in found.read("alternatives", -1, 3)[chosen - 1]]
    assert re.findall(r'<td class="symbol">(.*?)</td>', panel) == [html.escape(n) for n in names]
    n = len(found.read("nats"))
    shape = (n, 1 + N_HEADS, 4)
    weights = found.read_weights("weights", *shape)[chosen - 1, head]
    keys = (
        chosen - 1 - found.read("distances", *shape)[chosen - 1, head][weights >= 0.001].astype(int)
    )
    begin = (chosen - 1) // TGT_LEN * TGT_LEN
    tokens = re.findall(r'<span class="([^"]*)"[^>]*>', dom[dom.index('id="text"') :])[: n + 1]
    marked = {i: name.split() for i, name in enumerate(tokens) if "key" in name.split()}
    assert set(marked) == set(keys.tolist())
    assert {i for i, names in marked.items() if "old" in names} == {i for i in marked if i < begin}
    assert "current" in tokens[chosen]
    assert panel.count('aria-pressed="true"') == 1
    assert 'data-head="5" aria-pressed="true"' in panel


@pytest.mark.slow
@needs_chromium
def test_mouse_and_keys_choose_tokens_and_heads(of_bytes, tmp_path):
    found = write(of_bytes, tmp_path, "one line\nanother line\n")
    steps = """
      const text = document.getElementById("text"), spans = text.querySelectorAll("span");
      const seen = [], panel = document.getElementById("panel");
      const see = () => seen.push(Array.from(spans).findIndex((s) => s.matches(".current")));
      const press = (key) => {
        text.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true })); see();
      };
      spans[3].click(); see();
      for (const key of ["ArrowRight", "ArrowDown", "ArrowUp", "ArrowLeft"]) press(key);
      panel.querySelector('[data-head="2"]').click();
      seen.push(panel.querySelectorAll('.on [data-head="2"]').length, location.hash);
      press("Escape");
      seen.push(text.querySelectorAll(".key").length, location.hash);
      spans[5].dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
      seen.push(document.getElementById("tip").textContent);
    """
    *seen, tip = run_steps(tmp_path / "page.html", steps)
    # Token 4 is the i of the first line, below which is the h of the second one.
    assert seen == [3, 4, 13, 4, 3, 1, "#token=3&head=0.1", -1, 0, ""]
    names = [found.facts["symbols"][i] for i in found.read("alternatives", -1, 5)[4]]
    assert tip.startswith("i ")
    assert re.sub(r"[\d.<%]", "", tip).endswith("".join(re.sub(r"[\d.<%]", "", n) for n in names))


@pytest.mark.slow
@needs_chromium
def test_a_page_without_an_address_opens_with_its_choice(of_bytes, tmp_path):
    lm = txl_tf.load(of_bytes)
    ids, choice = BYTES.encode("the cat"), (5, Head(1, 2))
    tracer = TextTracer(lm, [Head(1, 2)])
    _, page = make_text_page(lm, "run", tracer, ids, "text", choice=choice, is_framed=True)
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    dom = open_in_browser(tmp_path / "page.html", "")
    assert "<h2>Token 5</h2>" in dom
    assert 'data-head="1" aria-pressed="true">1.2<' in dom
    assert "<h2>Token 3</h2>" in open_in_browser(tmp_path / "page.html", "token=3&head=mean")


@pytest.mark.slow
def test_a_page_has_the_softmax_temperature_of_the_run():
    lm = make_model(len(WORDS), vocabulary=WORDS, temperature=1.7)
    ids = WORDS.encode("the cat sat on the mat\na cat")
    tracer = TextTracer(lm, [Head(1, 2)])
    found, page = make_text_page(lm, "run", tracer, ids, "text")
    assert found.total_nats == pytest.approx(lm.score([ids])[0].total_nats, rel=1e-5)
    assert "temperature 1.7" in page
