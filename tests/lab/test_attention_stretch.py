"""Single heads over a stretch of a split, beside the whole text read at once."""

import numpy as np
import pytest
from numpy_models import trace_text
from small_language_model import SPANS, make_transformer
from small_runs import Text
from tables import slow_after

from txl_tf.config import EvalConfig
from txl_tf.errors import UserError
from txl_tf.lab.text_attention import Head, parse_heads, place_stretch, read_stretch
from txl_tf.language_model import LanguageModel

TGT_LEN = 5
TEXT = Text(np.random.default_rng(5).integers(0, 13, 90), [9, 66, 71])
HEADS = [Head(1, 2), Head(0, 0)]


def read(span, *, start, length, resets=False):
    evaluation = EvalConfig(tgt_len=TGT_LEN, reset_at_documents=resets, **vars(span))
    lm = LanguageModel(make_transformer(), None, evaluation)
    return read_stretch(lm, TEXT, HEADS, start=start, length=length)


@pytest.mark.parametrize(
    ("span", "start", "resets"),
    slow_after(2, [(SPANS[3], 70, True), (SPANS[0], 13, True), (SPANS[4], 1, False)]),
    ids=str,
)
def test_a_stretch_is_a_part_of_the_text(span, start, resets):
    stretch = read(span, start=start, length=19, resets=resets)
    starts = np.isin(np.arange(len(TEXT)), TEXT.document_starts) if resets else None
    trace = trace_text(make_transformer(), TEXT.ids, span, TGT_LEN, document_starts=starts)
    rows = slice(start - 1, start + 18)  # the tokens before the targets
    columns = slice(span.mem_len + stretch.first_key, span.mem_len + start + 18)
    visible = (trace.mask & trace.is_token)[rows]
    np.testing.assert_array_equal(stretch.visible, visible[:, columns])
    assert not visible[:, : columns.start].any()
    np.testing.assert_array_equal(stretch.ids, TEXT.ids[stretch.first_key : start + 19])
    for index, (layer, head) in enumerate(HEADS):
        expected = (trace.weights[layer, head, rows] * visible)[:, columns]
        np.testing.assert_allclose(stretch.weights[index], expected, rtol=0, atol=1e-5)
        expected = (trace.terms[:, layer, head, rows] * visible)[..., columns]
        found = stretch.terms[:, index]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_heads_are_named_by_layer_and_head():
    config = make_transformer().config
    assert parse_heads(["0.0", " 1.2"], config) == [Head(0, 0), Head(1, 2)]
    assert str(Head(1, 2)) == "1.2"


@pytest.mark.parametrize("text", ["1.3", "1", "-1.0", "1.2.0"])
def test_a_head_that_is_not_there_is_refused(text):
    message = f"`heads` must be LAYER.HEAD, from 0.0 to 1.2. Received: {text}$"
    with pytest.raises(UserError, match=message):
        parse_heads(["0.0", text], make_transformer().config)


def test_a_stretch_is_in_the_middle_unless_it_is_placed():
    assert place_stretch(100, None, 10) == 45
    assert place_stretch(11, None, 10) == 1
    assert place_stretch(100, 90, 10) == 90


@pytest.mark.parametrize(("start", "length"), [(None, 100), (91, 10), (100, 1)])
def test_a_stretch_that_is_longer_than_the_split_is_refused(start, length):
    message = "the stretch must be within the targets of the split, 1 to 99. Received: "
    with pytest.raises(UserError, match=message):
        place_stretch(100, start, length)
