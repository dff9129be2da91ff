"""The files and the table of an analysis of the attention."""

import itertools
import json
import warnings

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread
from tables import slow_after

from txl_tf.data import Vocabulary
from txl_tf.lab.attention_average import AttentionAverages
from txl_tf.lab.attention_reader import TERMS
from txl_tf.lab.attention_report import (
    AttentionReport,
    choose_labels,
    draw_stretch,
    mark_top,
)
from txl_tf.lab.text_attention import Head, HeadAttention

SETTINGS = {"run": "runs/x", "dataset": "words", "split": "valid"}
# A font lacks the last two; between dollars, matplotlib would read mathematics.
WORDS = Vocabulary("word", ("a", "$x_{$", "</s>", "\x01", "\u7a7a", "\U0001f40d"))


def make_report(*, n_layer=2, n_head=3, n_keys=9, vocabulary=WORDS):
    rng = np.random.default_rng(3)
    weights = rng.dirichlet(np.ones(12), size=(5, n_layer, n_head))[..., :11]
    averages = AttentionAverages(77, 4, weights[0], dict(zip(TERMS, weights[1:], strict=True)))
    visible = np.tri(5, n_keys, n_keys - 5, dtype=bool)
    scores = rng.normal(size=(4, 2, 5, n_keys)).astype("float32") * visible
    weights = rng.uniform(size=(2, 5, n_keys)) * visible
    ids = rng.integers(0, len(WORDS), n_keys + 1)
    heads = [Head(1, 2), Head(0, 0)]
    stretch = HeadAttention(heads, 20 - n_keys + 5, ids, visible, weights, scores)
    return AttentionReport(SETTINGS, averages, stretch, vocabulary)


@pytest.mark.parametrize(
    "fields",
    slow_after(1, [{}, {"vocabulary": None, "n_layer": 16, "n_head": 10}, {"n_keys": 301}]),
    ids=["words", "ids of many heads", "many tokens"],
)
def test_figures_are_png_files(tmp_path, fields):
    folder = tmp_path / "new" / "folder"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = make_report(**fields).write(str(folder))
    assert {path.name for path in folder.iterdir()} == set(names)
    figures = [name for name in names if name.endswith(".png")]
    assert len(figures) == 3
    for name in figures:
        height, width, _ = imread(folder / name).shape
        assert min(height, width) > 300
        assert max(height, width) < 5000


def draw_axes(symbols, are_characters):
    """Returns the axes of a rendered figure of 41 targets."""
    visible = np.tri(41, len(symbols) - 1, len(symbols) - 42, dtype=bool)
    ids = np.arange(len(symbols))
    stretch = HeadAttention([Head(0, 0)], 0, ids, visible, visible[None] / 7, visible[None])
    figure = draw_stretch(stretch, symbols, len(symbols), "", are_characters=are_characters)
    FigureCanvasAgg(figure).draw()
    return figure.axes[0]


@pytest.mark.parametrize("level", slow_after(1, ["char", "word"]))
def test_labels_of_a_stretch_do_not_overlap(level):
    words = ["a", "surprisingly", "readable", "I", "label", "of", "tokens"] * 29
    symbols = "\u2423".join(words)[-173:] if level == "char" else words[-173:]
    axes = draw_axes(symbols, level == "char")
    for axis in (axes.xaxis, axes.yaxis):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        assert len(boxes) > 5
        assert not any(first.overlaps(second) for first, second in itertools.pairwise(boxes))


def test_characters_are_labeled_as_words_and_breaks():
    symbols = [*"an\u2423\u2423ox", "\\n", *"eats"]
    assert choose_labels(symbols, True, gap=1) == {0: "an", 4: "ox", 6: "\\n", 7: "eats"}
    assert choose_labels(symbols, True, gap=5) == {0: "an", 6: "\\n"}


def test_labels_of_words_are_left_out_or_cut_without_room():
    words = ["an", "ox", "internationalization", "eats"]
    assert choose_labels(words, False, gap=2) == {0: "an", 2: "international\u2026"}


def test_the_numbers_are_written(tmp_path):
    report = make_report()
    report.write(str(tmp_path), max_distance=1)  # which cuts the figures alone
    record = json.loads((tmp_path / "attention.json").read_text())
    assert record.items() >= SETTINGS.items()
    assert record["targets"] == 77
    assert [row["head"] for row in record["heads"]] == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    averages = report.averages
    assert record["heads"][5] == {
        "head": "1.2",
        "mean_distance": pytest.approx(averages.mean_distance[1, 2]),
        "distance_of_50_percent": averages.find_distance(0.5)[1, 2],
        "distance_of_90_percent": averages.find_distance(0.9)[1, 2],
        "beyond_segment": pytest.approx(averages.beyond_segment[1, 2]),
        "empty": pytest.approx(averages.empty[1, 2]),
    }
    assert record["stretch"] == {
        "start": 21,
        "length": 5,
        "first_key": 16,
        "heads": ["1.2", "0.0"],
        "symbols": [WORDS.symbols[i] for i in report.stretch.ids],
    }
    arrays = np.load(tmp_path / "attention.npz")
    np.testing.assert_array_equal(arrays["weights"], averages.weights)
    np.testing.assert_array_equal(arrays["term_d"], averages.terms["d"])
    np.testing.assert_array_equal(arrays["stretch_b"], report.stretch.terms[1])
    assert arrays["stretch_heads"].tolist() == [[1, 2], [0, 0]]


def test_a_fifth_of_the_visible_tokens_is_marked_rounded_up():
    weights = np.array([[0.1, 0.5, 0.2, 0.9, 0.15, 0.05, 0.9], [0.3, 0.7, 0, 0, 0, 0, 0]])
    visible = np.array([[True] * 6 + [False], [True] * 2 + [False] * 5])
    marked = [np.flatnonzero(row).tolist() for row in mark_top(weights, visible)]
    assert marked == [[1, 3], [1]]
