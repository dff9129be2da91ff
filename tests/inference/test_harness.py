"""The adapter under the harness's own code, on a task of a few lines, without a network."""

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint

import pytest
from places import ROOT

import txl_tf
import txl_tf.harness
from txl_tf.config import EvalConfig
from txl_tf.data import Vocabulary
from txl_tf.errors import UserError

pytestmark = pytest.mark.slow

lm_eval = pytest.importorskip("lm_eval", reason="pip install -e '.[harness]'")
from lm_eval.api.instance import Instance  # noqa: E402  after what it needs
from lm_eval.api.registry import get_model  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from txl_tf.inference.harness import TxlLM, choose_prefix, read_settings  # noqa: E402

LETTERS = Vocabulary("char", tuple("\n abcdefgh."))
DOCUMENTS = [
    {"question": "abc", "choices": ["abba", "hag", "ce"], "answer": 1},
    {"question": "feed a bee", "choices": ["h", "dad", "egg ."], "answer": 0},
]
QUESTION = {"doc_to_text": "{{question}}", "doc_to_target": "{{choices[answer]}}"}


@pytest.fixture(scope="module")
def lm():
    config = txl_tf.ModelConfig(
        n_token=len(LETTERS), n_layer=2, d_model=6, d_embed=6, n_head=3, d_head=5, d_inner=7
    )
    model = txl_tf.TransformerXL(config, seed=1)
    for weight in model.trainable_variables:  # far from uniform, so that each token matters
        weight.assign(9 * weight)
    return txl_tf.LanguageModel(model, LETTERS, EvalConfig(tgt_len=5, mem_len=11, same_length=True))


@pytest.fixture(scope="module")
def adapter(lm):
    return TxlLM(lm, batch_size=2)


def ask(kind, *arguments):
    return [Instance(kind, {}, pair, index) for index, pair in enumerate(arguments)]


def sum_nats(lm, context, continuation):
    """Returns the loss of a continuation by the difference of two texts."""
    whole, part = lm.score([context + continuation, context])
    return whole.total_nats - part.total_nats


def run_task(adapter, folder, monkeypatch, **task):
    """Returns what the harness makes of the documents."""
    monkeypatch.setenv("HF_HOME", str(folder / "cache"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    path = folder / "documents.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    config = {
        "task": "letters",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path)}, "cache_dir": str(folder / "cache")},
        "test_split": "test",
        **QUESTION,
        **task,
    }
    found = lm_eval.simple_evaluate(
        model=adapter,
        tasks=[config],
        task_manager=TaskManager(include_defaults=False),  # thousands of files else
        bootstrap_iters=0,
        log_samples=True,
    )
    return found["results"]["letters"], found["samples"]["letters"]


def test_the_harness_finds_the_model_by_its_name():
    assert get_model("txl_tf") is TxlLM
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (name, value), *_ = project["entry-points"]["lm_eval.models"].items()
    assert EntryPoint(name, value, "lm_eval.models").load() is TxlLM


def test_the_likeliest_choice_is_the_answer_of_the_harness(adapter, lm, tmp_path, monkeypatch):
    task = {"output_type": "multiple_choice", "doc_to_choice": "choices", "doc_to_target": "answer"}
    result, _ = run_task(adapter, tmp_path, monkeypatch, **task)
    right = 0
    for document in DOCUMENTS:
        nats = [sum_nats(lm, document["question"], f" {c}") for c in document["choices"]]
        right += nats.index(min(nats)) == document["answer"]
    assert result["acc,none"] == right / len(DOCUMENTS)


def test_rolling_perplexity_is_that_of_all_bytes(adapter, lm, tmp_path, monkeypatch):
    task = {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}}",
    }
    task["metric_list"] = [{"metric": "bits_per_byte"}]
    result, _ = run_task(adapter, tmp_path, monkeypatch, **task)
    texts = [document["question"] for document in DOCUMENTS]
    nats = sum(score.total_nats for score in lm.score(texts, prefix="\n"))
    expected = nats / math.log(2) / sum(map(len, texts))
    assert result["bits_per_byte,none"] == pytest.approx(expected)


def test_generations_end_before_their_stop(adapter, lm, tmp_path, monkeypatch):
    settings = {"until": ["a", "\n"], "do_sample": False, "max_gen_toks": 41}
    task = {"output_type": "generate_until", "generation_kwargs": settings}
    task["metric_list"] = [{"metric": "exact_match"}]
    _, samples = run_task(adapter, tmp_path, monkeypatch, **task)
    for sample in samples:
        context = sample["doc"]["question"]
        text = lm.generate(context, max_new_tokens=41, temperature=0.0)
        ends = [text.find(stop) for stop in ("a", "\n") if stop in text]
        assert sample["resps"] == [[text[: min(ends, default=len(text))]]]


def test_a_continuation_is_what_the_whole_costs_beyond_its_context(adapter, lm):
    pairs = [("feed a", " bee bag."), ("a", "b"), ("bad cafe had a cab\n", "egg")]
    for (found, _), pair in zip(
        adapter.loglikelihood(ask("loglikelihood", *pairs)), pairs, strict=True
    ):
        assert found == pytest.approx(-sum_nats(lm, *pair), abs=1e-4)


def test_continuations_have_the_temperature_of_the_run(lm):
    evaluation = dataclasses.replace(lm.evaluation, temperature=1.7)
    hot = txl_tf.LanguageModel(lm.model, lm.vocabulary, evaluation)
    pair = ("feed a", " bee bag.")
    ((found, _),) = TxlLM(hot).loglikelihood(ask("loglikelihood", pair))
    assert found == pytest.approx(-sum_nats(hot, *pair), abs=1e-4)
    assert abs(found + sum_nats(lm, *pair)) > 0.1


def test_what_is_generated_greedily_is_greedy(adapter):
    settings = {"until": [], "max_gen_toks": 7}
    (text,) = adapter.generate_until(ask("generate_until", ("bad", settings)))
    other = text[:-1] + ("a" if text[-1] != "a" else "b")
    pairs = [("bad", text), ("bad", other)]
    found = adapter.loglikelihood(ask("loglikelihood", *pairs))
    assert [is_greedy for _, is_greedy in found] == [True, False]


def test_a_text_without_context_comes_after_the_prefix(adapter):
    pairs = [("", "bee"), ("\n", "bee")]
    empty, line = adapter.loglikelihood(ask("loglikelihood", *pairs))
    (rolling,) = adapter.loglikelihood_rolling(ask("loglikelihood_rolling", ("bee",)))
    assert empty == line
    assert rolling == pytest.approx(empty[0], abs=1e-4)


def test_the_prefix_is_what_the_vocabulary_has():
    assert choose_prefix(LETTERS) == "\n"
    assert choose_prefix(Vocabulary("char", ("_", "a"), space="_")) == " "
    assert choose_prefix(Vocabulary("word", ("a", "b"))) == ""


def test_settings_say_whether_to_sample():
    assert read_settings({"until": "a", "temperature": 0.7})["temperature"] == 0.7
    sampled = read_settings({"do_sample": True, "top_k": 3, "max_gen_toks": 5})
    assert sampled == {"until": [], "max_new_tokens": 5, "temperature": 1.0, "top_k": 3}
    greedy = read_settings({"do_sample": False, "temperature": 0.7, "top_p": 0.5})
    assert greedy == {"until": [], "max_new_tokens": 256, "temperature": 0.0}


def test_an_unknown_setting_is_refused():
    with pytest.raises(UserError, match=r"top_k, top_p\. Received: num_beams"):
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


def call_program(folder, *arguments):
    """Runs the command of docs/harness.md in a process of its own, without a network."""
    offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, "-m", "txl_tf.harness", *map(str, arguments)],
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_runs_a_task(lm, tmp_path):
    lm.save(tmp_path / "run")
    (tmp_path / "documents.jsonl").write_text("".join(json.dumps(d) + "\n" for d in DOCUMENTS))
    (tmp_path / "letters.yaml").write_text(TASK.replace("FOLDER", str(tmp_path)))
    model = ["--model", "txl_tf", "--model_args", f"run={tmp_path}/run", "--batch_size", 2]
    ran = call_program(tmp_path, *model, "--tasks", "letters", "--include_path", tmp_path)
    assert ran.returncode == 0, ran.stderr
    right = 0
    for document in DOCUMENTS:
        nats = [sum_nats(lm, document["question"], f" {c}") for c in document["choices"]]
        right += nats.index(min(nats)) == document["answer"]
    row = next(line for line in ran.stdout.splitlines() if line.startswith("|letters|"))
    assert float(row.split("|")[7]) == right / len(DOCUMENTS)


def test_the_command_says_in_a_line_that_there_is_no_run(tmp_path, capsys):
    (tmp_path / "letters.yaml").write_text(TASK.replace("FOLDER", str(tmp_path)))
    model = ["--model", "txl_tf", "--model_args", f"run={tmp_path}/none"]
    task = ["--tasks", "letters", "--include_path", str(tmp_path)]
    assert txl_tf.harness.main(["harness", *model, *task]) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert re.match(r"harness: `.*none` holds no run", error.splitlines()[-1])


def test_help_is_shown_without_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lm_eval", None)  # as if it were not installed
    assert txl_tf.harness.main(["harness", "--help"]) == 0
    assert "installed:\npip install -e '.[harness]'\n" in capsys.readouterr().out


@pytest.mark.parametrize("batch_size", [0, "auto"])
def test_a_batch_size_that_is_no_number_is_refused(lm, batch_size):
    with pytest.raises(UserError, match=rf"`batch_size` must be .* batch_size={batch_size!r}"):
        TxlLM(lm, batch_size=batch_size)
