"""The program that shows samples: what it reads, draws, prints and writes."""

import html.parser
import json
import re

import numpy as np
import pytest
from small_language_model import make_model

import txl_tf
from benchmarks.flag_texts import keep_last
from txl_tf.data import Vocabulary, open_records, write_records
from txl_tf.generation.session import Session
from txl_tf.lab.pages.html_page import escape
from txl_tf.models.quantization import get_kernel_dtype
from txl_tf.programs import samples
from txl_tf.programs.samples import Job, Sample, make_page
from txl_tf.runs.folder import VOCABULARY_NAME

MARKED = Vocabulary("word", ("<S>", "the", "cat", "sat", "on", "a"), line_start="<S>")
WIKITEXT = Vocabulary(
    "word", ("<eos>", "=", "cat", ",", '"', "(", ")", "@-@", "@,@", "5"), line_end="<eos>"
)
CHARACTERS = Vocabulary("char", tuple("\n<>&\"'/ \r\x1bpréab"))
CONTEXT_LEN, LENGTH, N_TEST = 13, 37, 83
SIZES = [f"--context_len={CONTEXT_LEN}", f"--length={LENGTH}"]


def make_run(folder, vocabulary, **splits):
    """Writes a run with random weights, with records of these splits in its folder."""
    n_token = len(vocabulary)
    make_model(n_token, vocabulary=vocabulary).save(folder)
    rng = np.random.default_rng(5)
    lengths = {"train": 101, "test": N_TEST} | splits
    write_records(
        folder / "records",
        dataset="tiny",
        vocabulary=vocabulary,
        splits={split: [rng.integers(0, n_token, length)] for split, length in lengths.items()},
        tokens_per_record=29,
    )
    return folder


@pytest.fixture(scope="module", params=[MARKED, CHARACTERS], ids=lambda v: v.symbols[1])
def run(request, tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("any") / "run", request.param)


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("marked") / "run", MARKED)


def call(run, *arguments):
    return samples.main(["samples.py", str(run), *keep_last([*SIZES, *map(str, arguments)])])


def draw(run, tmp_path, *arguments):
    """Returns the object that the program writes."""
    path = tmp_path / "samples.json"
    assert call(run, f"--json={path}", *arguments) == 0
    return json.loads(path.read_text())


def read(run, start, length, split="test"):
    return open_records(run / "records").split(split).read(start, start + length)


@pytest.mark.slow
def test_a_sample_continues_the_ids_of_its_context(marked, tmp_path):
    arguments = ("--samples=2", "--seed=7", "--temperature=9", "--top_k=2")
    lm = txl_tf.load(marked)
    for seed, sample in enumerate(draw(marked, tmp_path, *arguments)["samples"], 7):
        context = read(marked, sample["start"], CONTEXT_LEN)
        options = {"max_new_tokens": LENGTH, "temperature": 9.0, "top_k": 2, "seed": seed}
        expected = lm.generate(context, **options)
        assert sample["seed"] == seed
        assert sample["generated_ids"] == expected.tolist()
        assert sample["generated"] == MARKED.decode(expected)
        # Encoding its text again would add the mark of a line.
        assert MARKED.encode(sample["context"]).tolist() != context.tolist()


def test_context_and_reference_are_the_text_of_the_split(marked, tmp_path):
    for sample in draw(marked, tmp_path)["samples"]:
        start = sample["start"]
        assert 0 <= start <= N_TEST - CONTEXT_LEN - LENGTH
        assert sample["context"] == MARKED.decode(read(marked, start, CONTEXT_LEN))
        assert sample["reference"] == MARKED.decode(read(marked, start + CONTEXT_LEN, LENGTH))


@pytest.mark.slow
def test_settings_reach_the_model(marked, monkeypatch, tmp_path):
    start, seen = txl_tf.LanguageModel.start, []

    def look(lm, prompts, **options):
        seen.append((get_kernel_dtype(lm.model), options))
        return start(lm, prompts, **options)

    monkeypatch.setattr(txl_tf.LanguageModel, "start", look)
    path = marked / "checkpoints" / "ckpt-0"
    arguments = ("--top_k=0", "--precision=int8", f"--checkpoint={path}")
    draw(marked, tmp_path, *arguments, "--temperature=0.7", "--samples=1", "--length=3")
    options = {"seed": 0, "temperature": 0.7, "top_k": 0}
    assert seen == [("int8", options)]
    arguments = ("--top_k=2", f"--checkpoint={path}-missing-7")
    assert call(marked, *arguments) == 1


@pytest.mark.slow
def test_the_texts_are_printed_and_on_the_page(run, tmp_path, capsys):
    path = tmp_path / "page.html"
    found = draw(run, tmp_path, "--samples=2", f"--html={path}")
    out = capsys.readouterr().out
    head, *parts = re.split(r"\n=== Sample \d: ", out)
    assert "generation  37 tokens, top_k 40, temperature 1, float32\n" in head
    assert len(parts) == 2
    for seed, (part, sample) in enumerate(zip(parts, found["samples"], strict=True)):
        assert part.strip("\n") == (
            f"from token {sample['start']:,} of 83 of split test, seed {seed}\n"
            f"--- Context, 13 tokens\n{sample['context']}\n"
            f"--- Generated, 37 tokens\n{sample['generated']}\n"
            f"--- What really followed, 37 tokens\n{sample['reference']}".rstrip("\n")
        )
    names = ("context", "generated", "reference")
    pictures = str.maketrans({"\r": "␍", "\x1b": "␛"})
    texts = [sample[name].translate(pictures) for sample in found["samples"] for name in names]
    shown = Page(path.read_text(encoding="utf-8"))
    assert shown.texts == texts
    assert shown.tags.count("section") == 2


def test_words_of_wikitext_are_readable_and_headings_stay():
    context, generated, reference = (
        WIKITEXT.encode(text)
        for text in ('= cat , 5 =\n5 @,@ 5 cat " 5', '5 " , 5\n= 5 @-@ 5 =\n', "cat , cat\n")
    )
    sample = samples.make_sample(WIKITEXT, 3, 5, context, generated, reference)
    assert sample == Sample(
        start=3,
        seed=5,
        context='= cat , 5 =\n5,5 cat "5',
        generated='5", 5\n= 5 @-@ 5 =\n',
        reference="cat, cat\n",
        generated_ids=generated.tolist(),
    )


class Page(html.parser.HTMLParser):
    """The elements of a page, and the texts in its columns."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts = [], [], []
        self._is_text = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self._is_text = (dict(attrs).get("class") or "").startswith("text ")
        if self._is_text:
            self.texts.append("")

    def handle_endtag(self, tag):
        self._is_text = False

    def handle_data(self, data):
        if self._is_text:
            self.texts[-1] += data


def make_job(**fields):
    settings = {"length": 7, "temperature": 0.5, "top_k": 0, "seed": 3}
    settings |= {"precision": "int8"}
    job = Job("r<u>n", 1500, "tgt_len 5", "tiny", "byte", "test", 9000, 13, settings)
    return job._replace(**fields)


def test_the_page_loads_nothing_and_runs_nothing():
    hostile = "</div></style><script src=\"http://a/b.js\">x</script><img onerror='y' src=z>&amp;"
    text = make_page(make_job(run=hostile), [Sample(0, 0, hostile, hostile, hostile, [1])])
    page = Page(text)
    assert page.texts == [hostile] * 3
    assert set(page.tags) == {
        *("html", "head", "meta", "title", "style", "body", "h1", "dl", "dt", "dd"),
        *("section", "h2", "small", "div", "article", "h3"),
    }
    assert not {"src", "href", "onerror", "style"} & {name for name, _ in page.attributes}
    assert not re.search(r"url\(|@import|https?://", text.replace("http://a/b.js", ""))


def test_characters_without_a_shape_are_seen():
    assert escape("\x00\t\n\x1f\x7f\x85é<") == "␀\t\n␟␡\ufffdé&lt;"


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C comes in the second sample, after its first piece."""
    draw_pieces, n_calls = Session.draw_pieces, []

    def stop(session, max_new_tokens):
        n_calls.append(1)
        for _ in draw_pieces(session, max_new_tokens):
            yield
            if len(n_calls) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(Session, "draw_pieces", stop)


@pytest.mark.slow
def test_samples_that_are_drawn_stay_after_an_interrupt(marked, tmp_path, capsys, interrupted):
    places = [f"--{name}={tmp_path}/samples.{name}" for name in ("json", "html")]
    assert call(marked, *places) == 130
    out, err = capsys.readouterr()
    assert err == "samples.py: interrupted\n"
    (sample,) = json.loads((tmp_path / "samples.json").read_text())["samples"]
    assert len(sample["generated_ids"]) == LENGTH
    assert out.count("=== Sample") == 1
    page = Page((tmp_path / "samples.html").read_text())
    assert page.texts[1:] == [sample["generated"], sample["reference"]]


@pytest.mark.slow
def test_a_run_without_a_vocabulary_takes_that_of_the_records(tmp_path):
    run = make_run(tmp_path / "run", MARKED)
    expected = draw(run, tmp_path)
    (run / VOCABULARY_NAME).unlink()
    assert draw(run, tmp_path) == expected
