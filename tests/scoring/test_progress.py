import math
import types

import pytest

import txl_tf.progress
from txl_tf.scoring import progress
from txl_tf.scoring.metrics import Score
from txl_tf.scoring.progress import ScoreBar

BITS = math.log(2)


def show(reports):
    with ScoreBar("test") as bar:
        for report in reports:
            bar.show(*report)
    return bar


@pytest.fixture
def terminal(monkeypatch):
    """Stands for a wide terminal that shows every bar, each after two more seconds."""
    monkeypatch.setenv("COLUMNS", "200")  # tqdm reads both, and cuts what is wider
    monkeypatch.setenv("LINES", "24")
    stream = types.SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(txl_tf.progress, "sys", types.SimpleNamespace(stderr=stream))
    clock = iter(range(100, 997, 2))
    watch = types.SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr(progress, "time", watch)


@pytest.mark.parametrize(
    ("level", "measure"),
    [
        ("byte", "bpc 3.0000"),
        ("char", "bpc 3.0000"),
        ("subword", "bits per token 3.0000"),
        ("word", "perplexity 8"),
    ],
)
def test_a_bar_shows_the_score_in_the_unit_of_the_data(terminal, capsys, level, measure):
    show([(3, 7, Score(30 * BITS, 10, level))])
    assert f"{measure}, 5 tokens/s" in capsys.readouterr().err


def test_a_bar_counts_segments_that_warm_as_work_but_not_as_tokens(terminal, capsys):
    nothing = Score(0.0, 0, "byte")
    show([(1, 7, nothing), (2, 7, nothing)])
    assert "2/7 " in (shown := capsys.readouterr().err)
    assert "filling the memory" in shown
    assert "tokens/s" not in shown
    show([(1, 7, nothing), (2, 7, Score(600 * BITS, 200, "byte"))])
    assert "bpc 3.0000, 50 tokens/s" in capsys.readouterr().err  # 200 in 2 reports of 2 seconds


def test_a_bar_knows_the_seconds_up_to_the_last_segment(terminal):
    assert show([(1, 2, Score(30.0, 10)), (2, 2, Score(60.0, 20))]).seconds == 4


def test_there_is_no_bar_in_a_pipe(capsys):
    assert show([(1, 2, Score(30.0, 10)), (2, 2, Score(60.0, 20))]).disable
    assert capsys.readouterr().err == ""
