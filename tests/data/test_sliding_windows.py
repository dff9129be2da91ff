import numpy as np
import pytest
from small_language_model import make_transformer
from small_runs import Text

from txl_tf.config import EvalConfig
from txl_tf.data.lanes.evaluation_lanes import SlidingWindows
from txl_tf.errors import UserError
from txl_tf.lab.context_losses import ContextReader
from txl_tf.language_model import LanguageModel
from txl_tf.scoring.evaluator import Evaluator

TEXT = Text(np.random.default_rng(3).integers(0, 13, 53), [0, 17, 40])


@pytest.mark.parametrize(
    ("n_tokens", "stride", "n_lanes"),
    [(53, 5, 4), (2, 1, 1), (11, 3, 4), (12, 11, 1), (13, 1, 4), (53, 11, 4)],
)
def test_every_token_but_the_first_counts_once_after_enough_context(n_tokens, stride, n_lanes):
    text = Text(np.arange(n_tokens))
    windows = SlidingWindows(text, n_lanes=n_lanes, tgt_len=11, stride=stride)
    segments = list(windows)
    assert len(segments) == len(windows)
    counted = np.concatenate([segment.targets[segment.mask] for segment in segments])
    assert sorted(counted) == list(range(1, n_tokens))
    assert windows.n_targets == n_tokens - 1
    for segment in segments:
        places = np.broadcast_to(np.arange(1, 12), segment.mask.shape)
        contexts = np.where(segment.mask, places, 99)
        is_first = segment.ids[:, :1] == 0  # of the text; padding has no mask
        assert (contexts[~is_first[:, 0]] >= 11 - stride + 1).all()
        is_next = segment.targets == segment.ids + 1
        assert is_next[segment.mask].all()
        assert segment.begins.all()


def test_documents_begin_where_they_do_in_the_text():
    windows = SlidingWindows(TEXT, n_lanes=3, tgt_len=11, stride=5)
    for index, segment in enumerate(windows):
        for row, starts in enumerate(segment.document_starts):
            start = (index * 3 + row) * 5
            found = [start + place for place in np.flatnonzero(starts)]
            assert found == [at for at in (0, 17, 40) if start <= at < min(start + 11, 52)]


@pytest.mark.slow
def test_a_stride_of_one_gives_each_target_a_window_of_its_own():
    model, n_known = make_transformer(), 7
    config = EvalConfig(tgt_len=n_known, mem_len=0, eval_batch_size=4)
    evaluator = Evaluator(model, config)
    found = evaluator.score_lanes(evaluator.cut_lanes(TEXT, stride=1))
    reader = ContextReader(LanguageModel(model, None, config), n_known, jit="none")
    nats = reader.read(TEXT, np.arange(n_known, 53), n_known).sum()
    for at in range(1, n_known):
        nats += reader.read(TEXT, np.array([at]), at).sum()
    assert found.tokens == 52
    assert found.total_nats == pytest.approx(nats, rel=1e-6)


def test_a_stride_of_a_window_gives_segments_without_memory():
    model = make_transformer()
    config = EvalConfig(tgt_len=5, mem_len=0, eval_batch_size=1)
    evaluator = Evaluator(model, config)
    found = evaluator.score_lanes(evaluator.cut_lanes(TEXT, stride=5))
    expected = evaluator.score_lanes(evaluator.cut_lanes(TEXT))
    assert found.total_nats == pytest.approx(expected.total_nats, rel=1e-6)


def test_a_stride_that_leaves_out_tokens_or_needs_memory_is_refused():
    with pytest.raises(UserError, match=r"`stride` must be at most `tgt_len`.*stride=6, tgt_len=5"):
        SlidingWindows(TEXT, n_lanes=1, tgt_len=5, stride=6)
    with pytest.raises(UserError, match="at least 2 tokens"):
        SlidingWindows(Text([3]), n_lanes=1, tgt_len=5, stride=5)
    with pytest.raises(UserError, match="`stride` needs a `mem_len` of 0"):
        Evaluator(make_transformer(), EvalConfig(tgt_len=5, mem_len=3)).cut_lanes(TEXT, stride=5)
