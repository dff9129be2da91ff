"""Views of a model in HTML: what they show is what the model computes."""

import functools
import html
import json
import re
import threading

import pytest
from model_views import ModelViews, cut_text
from small_language_model import WORDS, make_model
from small_lstm import make_model as make_lstm
from tables import slow_after

import txl_tf
from txl_tf.config import EvalConfig
from txl_tf.data import Vocabulary
from txl_tf.lab.shown_tokens import show_controls
from txl_tf.models.cached_model import CachedModel

pytestmark = pytest.mark.slow

BYTES = Vocabulary("byte", tuple(map(str, range(256))))
CHARS = Vocabulary("char", tuple("abcdefghijklm_"), space="_")
MAX_TOKENS, MEM_LEN = 53, 11
TEXT = "the cat sat on the mat\na cat"
SETTINGS = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "seed": 3}


@functools.cache
def make_views(vocabulary):
    lm = make_model(len(vocabulary), vocabulary=vocabulary, mem_len=MEM_LEN)
    return lm, ModelViews(lm, "runs/<i>", max_tokens=MAX_TOKENS)


def read_text(view):
    """Returns the text of a view."""
    grown = view[view.index('<div class="grown') :]
    return html.unescape(re.sub("<[^>]*>", "", grown))


def read_page(frame):
    """Returns the page in a frame, and its record."""
    page = html.unescape(re.search('srcdoc="([^"]*)"', frame)[1])
    record = re.search('<script type="application/json" id="facts">(.*?)</script>', page)[1]
    return page, json.loads(record)


@pytest.mark.parametrize("vocabulary", slow_after(1, [WORDS, BYTES]), ids=lambda v: v.level)
def test_a_view_shows_the_generated_text_while_it_grows(vocabulary, monkeypatch):
    monkeypatch.setattr("model_views._SHOW_SECONDS", -1)
    lm, views = make_views(vocabulary)
    seen = list(views.start_text("the cat", 40, **SETTINGS))
    assert len(seen) == 4  # the prompt, two calls, the end
    assert read_text(seen[0][1]) == "the cat"
    *_, (text, view) = seen
    added = lm.generate("the cat", max_new_tokens=40, **SETTINGS)
    assert read_text(view) == show_controls("the cat" + added)
    *_, (_, view) = views.continue_text(text, 6)
    added = lm.generate("the cat", max_new_tokens=46, **SETTINGS)
    assert read_text(view) == show_controls("the cat" + added)


def test_the_memory_is_told():
    _, views = make_views(WORDS)
    *_, (_, view) = views.start_text("the cat", 5, **SETTINGS)
    assert "memory: 7 of 11 tokens" in view
    assert "text: 7 tokens, 0 of them no longer in the memory" in view
    *_, (text, view) = views.start_text("the cat", 17, **SETTINGS)
    assert "memory: 11 of 11 tokens" in view
    assert "text: 19 tokens, 8 of them no longer in the memory" in view
    assert re.findall('<span class="([^"]+)"', view) == ["old prompt", "old", "memory"]
    *_, (_, view) = views.continue_text(text, 53)
    assert "[19 earlier tokens]" in view


def test_a_text_is_cut_at_its_prompt_and_its_memory():
    lm, _ = make_views(CHARS)
    text = lm.start([CHARS.encode("a cab")])

    def cut(length, max_tokens=1000):
        """Returns the parts after so many more tokens, and all of the text."""
        text.draw(length)
        return cut_text(text, CHARS, max_tokens), CHARS.decode(text.ids[0])

    assert cut(0) == ([("memory prompt", "a cab")], "a cab")
    parts, whole = cut(3)
    assert parts == [("memory prompt", "a cab"), ("memory", whole[5:])]
    parts, whole = cut(4)  # 12 tokens: the memory begins within the prompt
    assert parts == [("old prompt", "a"), ("memory prompt", whole[1:5]), ("memory", whole[5:])]
    parts, whole = cut(7)  # 19 tokens
    assert parts == [("old prompt", "a cab"), ("old", whole[5:8]), ("memory", whole[8:])]
    assert cut(0, 13) == ([("old", whole[6:8]), ("memory", whole[8:])], whole)
    assert cut(0, 2) == ([("memory", whole[17:])], whole)


def test_a_cut_character_is_shown_once():
    lm, _ = make_views(BYTES)
    text = lm.start([BYTES.encode("ééééééé")])  # 14 bytes: the memory begins within a character
    assert cut_text(text, BYTES, 1000) == [("old prompt", "é"), ("memory prompt", "éééééé")]


def test_the_surprisal_is_that_of_score():
    lm, views = make_views(WORDS)
    page, record = read_page(views.show_surprisal(TEXT))
    (score,) = lm.score([TEXT])
    assert f"<dd>{html.escape(score.describe())}</dd>" in page
    assert "<h1>" not in page
    assert record["heads"] == ["mean"]
    assert "choice" not in record


def test_the_attention_is_that_of_the_chosen_head():
    _, views = make_views(WORDS)
    _, record = read_page(views.show_attention(TEXT, 1, 2, 0))
    assert record["heads"] == ["mean", "1.0", "1.1", "1.2"]
    assert record["choice"] == "token=8&head=1.2"
    _, record = read_page(views.show_attention(TEXT, 0, 1, 5))
    assert (record["heads"][1], record["choice"]) == ("0.0", "token=5&head=0.1")


def test_texts_of_several_users_are_not_mixed():
    lm, views = make_views(WORDS)
    found = {}

    def grow(seed):
        *_, (_, view) = views.start_text("the cat", 50, 1.0, 0, 1.0, seed)
        found[seed] = read_text(view)

    threads = [threading.Thread(target=grow, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(3):
        added = lm.generate("the cat", max_new_tokens=50, temperature=1.0, top_k=None, seed=seed)
        assert found[seed] == "the cat" + added


NOTHING = {"length": 5, **SETTINGS}


@pytest.mark.parametrize(
    ("show", "message"),
    [
        (lambda v: next(v.start_text("the dog", **NOTHING)), "1 unknown ('dog')"),
        (lambda v: next(v.start_text("", **NOTHING)), "`prompt` must hold at least one token"),
        (
            lambda v: next(v.start_text("the", **NOTHING | {"length": 54})),
            "`length` must be from 1 to 53. Received: 54",
        ),
        (lambda v: next(v.continue_text(None, 5)), "there is no text to continue: start one"),
        (lambda v: v.show_surprisal("the " * 54), "at most 53 tokens. Received: 54 tokens"),
        (lambda v: v.show_attention(TEXT, 2, 0, 1), "`heads` must be LAYER.HEAD"),
        (lambda v: v.show_attention(TEXT, 1, 0, 9), "`token` must be from 0 to 8. Received: 9"),
    ],
)
def test_wrong_input_is_one_line(show, message):
    _, views = make_views(WORDS)
    with pytest.raises(txl_tf.UserError, match=re.escape(message)) as found:
        show(views)
    assert "\n" not in str(found.value)


def test_models_that_cannot_be_shown_are_refused():
    with pytest.raises(txl_tf.UserError, match="`runs/a` has no vocabulary"):
        ModelViews(make_model(7), "runs/a", max_tokens=MAX_TOKENS)
    lm = txl_tf.LanguageModel(make_lstm(), None, EvalConfig(tgt_len=5, mem_len=0))
    with pytest.raises(txl_tf.UserError, match="an analysis of attention needs"):
        ModelViews(lm, "runs/a", max_tokens=MAX_TOKENS)


def test_texts_of_all_lengths_share_a_graph(monkeypatch):
    traces, read = [], CachedModel.read

    def count(self, ids, *arguments, **options):
        traces.append(ids.shape)
        return read(self, ids, *arguments, **options)

    monkeypatch.setattr(CachedModel, "read", count)
    views = ModelViews(make_views(WORDS)[0], "run", max_tokens=MAX_TOKENS)
    for text in ("the cat", TEXT, f"{TEXT}\n{TEXT}"):
        views.show_surprisal(text)
    assert len(traces) == 1
