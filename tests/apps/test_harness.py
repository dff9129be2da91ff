"""The adapter of the harness, and the harness on a task of a few lines, without a network."""

import dataclasses
import functools
import json
import logging
import re
import sys
import tomllib
from importlib.metadata import EntryPoint

import numpy as np
import pytest
from called_programs import forbid_network
from places import ROOT
from small_language_model import make_model

import txl_tf
import txl_tf.programs.harness
from txl_tf.data import Vocabulary
from txl_tf.errors import UserError

pytest.importorskip("lm_eval", reason="pip install -e '.[harness]'")
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from txl_tf.apps.lm_eval import TxlLM, read_settings

LETTERS = Vocabulary("char", tuple("\n abcdefgh."))
DOCUMENTS = [
    {"question": "abc", "choices": ["abba", "hag", "ce"], "answer": 1},
    {"question": "feed a bee", "choices": ["h", "dad", "egg ."], "answer": 0},
]


@pytest.fixture(scope="module")
def lm():
    return make_model(len(LETTERS), vocabulary=LETTERS, same_length=True)


@pytest.fixture(scope="module")
def adapter(lm):
    return TxlLM(lm, batch_size=2)


def ask(kind, *arguments):
    return [Instance(kind, {}, pair, index) for index, pair in enumerate(arguments)]


def sum_nats(lm, context, continuation):
    """Returns the loss of a continuation by the difference of two texts."""
    whole, part = lm.score([context + continuation, context], jit="none")
    return whole.total_nats - part.total_nats


def test_the_harness_finds_the_model_by_its_name():
    assert get_model("txl_tf") is TxlLM
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (name, value), *_ = project["entry-points"]["lm_eval.models"].items()
    assert EntryPoint(name, value, "lm_eval.models").load() is TxlLM


def test_rolling_losses_are_those_of_all_characters(adapter, lm):
    texts = ["abc", "feed a bee"]
    found = adapter.loglikelihood_rolling(ask("loglikelihood_rolling", *((t,) for t in texts)))
    expected = [-score.total_nats for score in lm.score(texts, prefix="\n", jit="none")]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
def test_generations_end_before_their_stop(adapter, lm):
    settings = {"until": ["a", "\n"], "do_sample": False, "max_gen_toks": 41}
    contexts = ["abc", "feed a bee"]
    found = adapter.generate_until(ask("generate_until", *((each, settings) for each in contexts)))
    for context, generated in zip(contexts, found, strict=True):
        text = lm.generate(context, max_new_tokens=41, temperature=0.0)
        ends = [text.find(stop) for stop in ("a", "\n") if stop in text]
        assert generated == text[: min(ends, default=len(text))]


@pytest.mark.slow
def test_continuations_have_the_temperature_of_the_run(lm):
    evaluation = dataclasses.replace(lm.evaluation, temperature=1.7)
    hot = txl_tf.LanguageModel(lm.model, lm.vocabulary, evaluation)
    pair = ("feed a", " bee bag.")
    ((found, _),) = TxlLM(hot).loglikelihood(ask("loglikelihood", pair))
    assert found == pytest.approx(-sum_nats(hot, *pair), abs=1e-4)
    assert abs(found + sum_nats(lm, *pair)) > 0.1


def test_a_text_without_context_comes_after_the_prefix(adapter):
    pairs = [("", "bee"), ("\n", "bee")]
    empty, line = adapter.loglikelihood(ask("loglikelihood", *pairs))
    (rolling,) = adapter.loglikelihood_rolling(ask("loglikelihood_rolling", ("bee",)))
    assert empty[0] == pytest.approx(line[0], rel=1e-6)  # two rows of a batch, float32
    assert empty[1] == line[1]
    assert rolling == pytest.approx(empty[0], abs=1e-4)


def test_settings_say_whether_to_sample():
    assert read_settings({"until": "a", "temperature": 0.7})["temperature"] == 0.7
    sampled = read_settings({"do_sample": True, "top_k": 3, "max_gen_toks": 5})
    assert sampled == {"until": [], "max_new_tokens": 5, "temperature": 1.0, "top_k": 3}
    greedy = read_settings({"do_sample": False, "temperature": 0.7, "top_p": 0.5})
    assert greedy == {"until": [], "max_new_tokens": 256, "temperature": 0.0}
    for every in ({}, {"top_k": 0}):
        assert read_settings({"do_sample": True} | every)["top_k"] is None


def test_stops_are_lowered_like_the_text():
    words = Vocabulary("word", ("<unk>", "red", "blue"), unknown="<unk>", lower_case=True)
    adapter = TxlLM(make_model(3, vocabulary=words))
    settings = {"until": ["Red"], "do_sample": True, "max_gen_toks": 23}
    (found,) = adapter.generate_until(ask("generate_until", ("blue", settings)))
    assert "red" not in found


def test_a_run_that_reads_as_a_number_is_a_name(lm, monkeypatch):
    monkeypatch.setattr(txl_tf.LanguageModel, "load", lambda run, **_: run == "2024" and lm)
    assert TxlLM.create_from_arg_string("run=2024,prefix=1").prefix == "1"


def test_an_unknown_setting_is_refused():
    with pytest.raises(UserError, match=r"top_p, num_beams=1\. Received: num_beams"):
        read_settings({"num_beams": 4})


def test_a_run_without_vocabulary_is_refused(lm):
    with pytest.raises(UserError, match=r"`run` must have a vocabulary"):
        TxlLM(txl_tf.LanguageModel(lm.model, None, lm.evaluation))


@pytest.mark.parametrize(
    "model_args", ["run=there,batch_size=3", {"run": "there", "batch_size": 3}], ids=type
)
def test_model_args_go_before_what_the_harness_adds(model_args, lm, monkeypatch):
    monkeypatch.setattr(txl_tf.LanguageModel, "load", lambda *_, **__: lm)
    added = {"batch_size": "1", "max_batch_size": None, "device": "cuda:0"}
    is_text = isinstance(model_args, str)
    make = TxlLM.create_from_arg_string if is_text else TxlLM.create_from_arg_obj
    assert make(model_args, added).batch_size == 3
    assert make("run=there" if is_text else {"run": "there"}, added).batch_size == 1


@pytest.mark.parametrize(("given", "received"), [("", "none"), ("run=there,dtype=float", "run, d")])
def test_model_args_that_are_missing_or_unknown_are_refused(given, received):
    with pytest.raises(UserError, match=rf"`model_args` must be run=FOLDER.* Received: {received}"):
        TxlLM.create_from_arg_string(given)


TASK = """
task: letters
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/documents.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: answer
"""


@pytest.fixture
def no_other_tasks(monkeypatch):
    """The harness does not list its own tasks, which takes ten seconds."""
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr(
        TaskManager,
        "__init__",
        functools.partialmethod(TaskManager.__init__, include_defaults=False),
    )


def run_task(folder, run, *arguments):
    """Runs the command of docs/lm-evaluation-harness.md on a task that lies in a folder."""
    (folder / "documents.jsonl").write_text("".join(json.dumps(d) + "\n" for d in DOCUMENTS))
    (folder / "letters.yaml").write_text(TASK.replace("FOLDER", str(folder)))
    model = ["--model", "txl_tf", "--model_args", f"run={run}", *arguments]
    task = ["--tasks", "letters", "--include_path", str(folder)]
    return txl_tf.programs.harness.main(["harness", *model, *task])


@pytest.mark.slow
@pytest.mark.usefixtures("no_other_tasks")
def test_the_command_runs_a_task(lm, tmp_path, monkeypatch, capsys):
    import datasets

    forbid_network(monkeypatch)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    lm.save(tmp_path / "run")
    assert run_task(tmp_path, tmp_path / "run", "--batch_size", "2") == 0
    out = capsys.readouterr().out
    right = 0
    for document in DOCUMENTS:
        nats = [sum_nats(lm, document["question"], f" {c}") for c in document["choices"]]
        right += nats.index(min(nats)) == document["answer"]
    row = next(line for line in out.splitlines() if line.startswith("|letters|"))
    assert float(row.split("|")[7]) == right / len(DOCUMENTS)


@pytest.mark.slow
@pytest.mark.usefixtures("no_other_tasks")
def test_the_command_says_in_a_line_that_there_is_no_run(tmp_path, monkeypatch, capsys):
    # The harness goes on to write its log to the standard error of the first test.
    monkeypatch.setattr(logging, "raiseExceptions", False)
    assert run_task(tmp_path, tmp_path / "none") == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert re.match(r"harness: `.*none` does not exist", error.splitlines()[-1])


def test_help_is_shown_without_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lm_eval", None)  # as if it were not installed
    assert txl_tf.programs.harness.main(["harness", "--help"]) == 0
    assert "installed:\npip install -e '.[harness]'\n" in capsys.readouterr().out


def test_a_batch_size_that_is_no_number_is_refused(lm):
    with pytest.raises(UserError, match=r"`batch_size` must be .* batch_size='auto'"):
        TxlLM(lm, batch_size="auto")


@pytest.mark.parametrize(
    "settings",
    [{"num_beams": 1, "max_new_tokens": 32}, {"max_tokens": 7, "max_gen_toks": 32}],
)
def test_the_length_has_several_names_in_tasks(settings):
    assert read_settings(settings)["max_new_tokens"] == 32
