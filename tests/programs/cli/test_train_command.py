import dataclasses
import json
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from absl import flags

from benchmarks.flag_texts import keep_last
from txl_tf import LanguageModel, TransformerXL, presets
from txl_tf.config import EvalConfig, ModelConfig, TrainConfig
from txl_tf.data import RecordError, Vocabulary, open_records, write_records
from txl_tf.errors import StoppedError, UserError
from txl_tf.programs import train
from txl_tf.programs.cli import evaluation
from txl_tf.programs.cli.flags import parse_flags
from txl_tf.programs.cli.train_command import _evaluate, run
from txl_tf.programs.cli.train_flags import (
    define_flags,
    list_idle_flags,
    make_config,
    make_eval_config,
    make_job,
    read_settings,
)
from txl_tf.runs.folder import RunConfig, make_run_folder, read_run
from txl_tf.runs.lock import lock_run
from txl_tf.training import strategy

# The training program of the 2019 release; flags that concern TPUs alone are left out.
MODEL = ModelConfig(n_token=19, cutoffs=(5, 11))  # that of the records, by default
RELEASE_FLAGS = {
    "data_dir": None,
    "model_dir": None,
    "do_train": True,
    "do_eval": False,
    "eval_ckpt_path": None,
    "warm_start_path": None,
    "learning_rate": 2.5e-4,
    "clip": 0.25,
    "min_lr_ratio": 0.004,
    "warmup_steps": 0,
    "train_batch_size": 60,
    "eval_batch_size": 60,
    "train_steps": 100_000,
    "iterations": 500,
    "save_steps": 10_000,
    "max_eval_batch": -1,
    "do_eval_only": False,
    "start_eval_steps": 10_000,
    "eval_split": "valid",
    "tgt_len": 70,
    "mem_len": 70,
    "same_length": False,
    "clamp_len": -1,
    "n_layer": 6,
    "d_model": 500,
    "d_embed": 500,
    "n_head": 10,
    "d_head": 50,
    "d_inner": 1000,
    "dropout": 0.1,
    "dropatt": 0.1,
    "untie_r": False,
    "tie_weight": True,
    "div_val": 1,
    "proj_share_all_but_first": False,
    "proj_same_dim": True,
    "init": "normal",
    "init_std": 0.02,
    "proj_init_std": 0.01,
    "init_range": 0.1,
}


@pytest.fixture
def records(tmp_path):
    ids = np.arange(29) % 19
    write_records(
        tmp_path / "data",
        dataset="words",
        vocabulary=Vocabulary("word", tuple(f"w{index}" for index in range(19))),
        splits={"train": [ids], "valid": [ids]},
        cutoffs=(5, 11),
    )
    return open_records(tmp_path / "data")


def read_flags(*arguments, data_dir="data"):
    options = define_flags()
    given = keep_last([f"--data_dir={data_dir}", "--model_dir=run", *arguments])
    parse_flags(options, ["train.py", *given])
    return options


def make_configs(*arguments):
    """Returns the model, the training and the evaluation of a run."""
    config = make_config(*arguments)
    return config.model, config.training, config.evaluation


def configure(records, *arguments, preset=None, named=False):
    """Returns the configs of a new run on a command line, which may name the preset."""
    names = [f"--preset={preset}"] if named else []
    options = read_flags(*names, *arguments)
    return make_configs(options, records, preset and presets.get(preset))


def test_the_flags_of_the_release_have_its_defaults():
    defined = define_flags()
    found = {name: defined[name].default for name in RELEASE_FLAGS}
    assert found == RELEASE_FLAGS
    assert {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in RELEASE_FLAGS.items()
    }


@pytest.mark.parametrize("config", [ModelConfig, TrainConfig, EvalConfig])
def test_every_field_of_a_config_has_a_flag(config):
    names = {field.name for field in dataclasses.fields(config)} - {"n_token"}
    if config is EvalConfig:
        names = {name if name.startswith("eval_") else f"eval_{name}" for name in names}
    assert names <= set(define_flags())


def test_without_flags_a_run_has_the_defaults(records):
    model, training, evaluation = configure(records)
    assert model == ModelConfig(n_token=19, cutoffs=(5, 11))
    assert training == TrainConfig()
    assert evaluation == EvalConfig()


def test_cutoffs_by_hand_win_over_those_of_the_records(records):
    assert configure(records, "--cutoffs=7,13")[0].cutoffs == (7, 13)
    assert configure(records, "--cutoffs=")[0].cutoffs == ()


def test_a_schedule_of_segment_lengths_leaves_the_evaluation_its_last_length(records):
    _, training, evaluation = configure(
        records, "--tgt_len_schedule=2000:32,6000:64", "--tgt_len=128"
    )
    assert training == TrainConfig(tgt_len=128, tgt_len_schedule=((2000, 32), (6000, 64)))
    assert evaluation == EvalConfig(tgt_len=128)


@pytest.mark.parametrize("text", ["2000:", "2000:32:1", "2e3:32"])
def test_a_malformed_schedule_of_lengths_is_refused(records, text):
    with pytest.raises(
        flags.Error, match=rf"--tgt_len_schedule must be pairs STEP:LENGTH, .*Received: {text}$"
    ):
        configure(records, f"--tgt_len_schedule={text}")


def test_a_preset_is_taken_whole_but_for_the_tokens(records):
    preset = presets.get("text8_large")
    model, training, evaluation = configure(records, preset="text8_large")
    assert model == dataclasses.replace(preset.model, n_token=19)
    assert (training, evaluation) == (preset.training, preset.evaluation)


def test_flags_by_hand_win_over_the_preset_and_leave_the_rest(records):
    preset = presets.get("text8_large")
    arguments = ("--n_layer=3", "--dropatt=0", "--tgt_len=31", "--seed=7", "--eval_mem_len=37")
    arguments += ("--dropout=0.1",)  # the default of the flag; the preset has 0.15
    model, training, evaluation = configure(records, *arguments, preset="text8_large")
    assert model == dataclasses.replace(
        preset.model, n_token=19, n_layer=3, dropatt=0.0, dropout=0.1
    )
    assert training == dataclasses.replace(preset.training, tgt_len=31, seed=7)
    assert evaluation == dataclasses.replace(preset.evaluation, mem_len=37)


def test_a_run_may_count_its_queries_and_have_another_epsilon(records):
    arguments = ("--same_length", "--counts_self", "--layer_norm_epsilon=1e-5")
    model, training, evaluation = configure(records, *arguments)
    assert model.layer_norm_epsilon == 1e-5
    assert training.counts_self
    assert evaluation.counts_self
    assert not configure(records, *arguments, "--eval_counts_self=false")[2].counts_self


def test_without_a_preset_a_run_is_evaluated_as_it_is_trained(records):
    arguments = ("--tgt_len=31", "--mem_len=37", "--same_length", "--clamp_len=41")
    _, _, evaluation = configure(records, *arguments)
    assert evaluation == EvalConfig(tgt_len=31, mem_len=37, same_length=True, clamp_len=41)


def test_evaluation_flags_change_the_evaluation_alone(records):
    arguments = (
        "--eval_tgt_len=31",
        "--eval_mem_len=37",
        "--eval_same_length",
        "--eval_clamp_len=41",
        "--eval_batch_size=43",
    )
    _, training, evaluation = configure(records, *arguments)
    assert training == TrainConfig()
    assert evaluation == EvalConfig(31, 37, True, 41, 43)


@pytest.mark.parametrize(
    ("arguments", "preset", "expected"),
    [
        (["--reset_at_documents"], None, (True, True)),
        (["--reset_at_documents"], "text8_base", (True, True)),
        (["--eval_reset_at_documents"], "text8_base", (False, True)),
        (["--reset_at_documents", "--noeval_reset_at_documents"], None, (True, False)),
    ],
)
def test_documents_are_reset_as_their_flags_say(records, arguments, preset, expected):
    _, training, evaluation = configure(records, *arguments, preset=preset)
    assert (training.reset_at_documents, evaluation.reset_at_documents) == expected


def test_without_training_the_flags_of_training_are_for_the_evaluation():
    found = EvalConfig(eval_batch_size=3, tgt_len=5, mem_len=7)
    flags = ("--tgt_len=31", "--mem_len=37", "--eval_mem_len=43", "--same_length", "--clamp_len=41")
    options = read_flags("--do_train=false", *flags)
    assert make_eval_config(options, found) == EvalConfig(31, 43, True, 41, 3)
    options = read_flags(*flags)  # trains
    assert make_eval_config(options, found).tgt_len == 5


def test_an_evaluation_by_a_preset_keeps_the_model_of_the_run(records, tmp_path, monkeypatch):
    preset = presets.get("wt103_base")
    model = dataclasses.replace(preset.model, n_token=19, cutoffs=(5, 11), layer_norm_epsilon=1e-5)
    config = RunConfig("words", model, TrainConfig(), EvalConfig())
    make_run_folder(str(tmp_path / "run"), config, records.vocabulary)
    seen, counted = [], []
    evaluate = "txl_tf.programs.cli.evaluation.evaluate_checkpoints"
    monkeypatch.setattr(evaluate, lambda job, **_: seen.append(job.config))
    arguments = ("--do_train=false", "--do_eval", f"--model_dir={tmp_path / 'run'}")
    options = read_flags(*arguments, "--preset=wt103_base", data_dir=records.data_dir)
    # An evaluation needs no lock: one may train meanwhile.
    with lock_run(str(tmp_path / "run")):
        run(options, fail_to_make_strategy, counted.append)
    assert [config.model for config in seen] == [model]
    assert counted == [options]  # which hides other GPUs


def fail_to_make_strategy(options):
    raise AssertionError("nothing may start")


@pytest.mark.parametrize(("text", "cutoffs"), [("1,2,14", (1, 2, 14)), ("", ())])
def test_cutoffs_by_hand_stand_in_for_those_of_a_preset(text, cutoffs, records):
    model, _, _ = configure(records, f"--cutoffs={text}", preset="wt103_base", named=True)
    preset = presets.get("wt103_base")
    assert model == dataclasses.replace(preset.model, n_token=19, cutoffs=cutoffs)


def test_a_run_that_is_there_stands_in_for_the_defaults(records):
    found = RunConfig(
        "words",
        ModelConfig(n_token=19, n_layer=3, dropout=0.2),
        TrainConfig(learning_rate=0.3, tgt_len=7),
        EvalConfig(tgt_len=11, mem_len=13),
    )
    options = read_flags("--train_steps=17", "--eval_batch_size=5")
    model, training, evaluation = make_configs(options, records, None, found)
    assert model == found.model
    assert training == dataclasses.replace(found.training, train_steps=17)
    assert evaluation == dataclasses.replace(found.evaluation, eval_batch_size=5)


@pytest.mark.parametrize(("arguments", "jit"), [((), "chains"), (("--jit=auto",), "auto")])
def test_a_preset_leaves_what_xla_compiles_to_the_run(arguments, jit, records):
    preset = presets.get("text8_base")
    model = dataclasses.replace(preset.model, n_token=19)
    training = dataclasses.replace(preset.training, jit="chains")
    found = RunConfig("words", model, training, preset.evaluation)
    options = read_flags("--preset=text8_base", *arguments)
    _, training, _ = make_configs(options, records, preset, found)
    assert training == dataclasses.replace(preset.training, jit=jit)


def test_each_flag_without_effect_prints_what_replaces_it(records, capsys):
    arguments = ("--num_core_per_host=4", "--record_info_dir=x", "--corpus_info_path=y")
    options = read_flags(*arguments, "--do_eval", "--eval_split=test", data_dir=records.data_dir)
    with pytest.raises(RecordError, match="no split 'test'"):
        run(options, fail_to_make_strategy)
    assert capsys.readouterr().out.splitlines() == [
        "--num_core_per_host=4: all are used; train_gpu.py --num_gpus limits GPUs.",
        "--record_info_dir=x: not needed, as the records describe themselves.",
        "--corpus_info_path=y: not needed, as the records describe themselves.",
    ]


def start_training(records, model_dir, monkeypatch):
    """Begins a run; returns whether its folder was locked when it was opened and trained."""
    seen = []

    def try_lock(*_, **__):
        try:
            with lock_run(str(model_dir)):
                seen.append(False)
        except UserError:
            seen.append(True)

    def open_training(*_, **__):
        try_lock()
        return SimpleNamespace(run=try_lock)

    monkeypatch.setattr("txl_tf.training.job.open_training", open_training)
    options = read_flags(f"--model_dir={model_dir}", data_dir=records.data_dir)
    run(options, lambda options: None)
    return seen == [True, True]


@pytest.mark.parametrize("index", [0, 1])
def test_of_several_processes_the_chief_locks(index, records, tmp_path, monkeypatch):
    task = {"type": "worker", "index": index}
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": task}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    assert start_training(records, tmp_path / "run", monkeypatch) is (index == 0)


def test_the_config_of_a_run_serves_as_settings(records, tmp_path):
    model, training, evaluation = configure(records, "--d_model=32", "--tgt_len=3", "--clip=2")
    config = RunConfig("words", model, training, evaluation)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_json()))
    options = read_flags(f"--config={path}", "--seed=5")
    found = make_configs(options, records, read_settings(options, MODEL))
    assert found == (model, dataclasses.replace(training, seed=5), evaluation)


def test_settings_may_be_a_few_fields_of_toml(records, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[model]\nd_model = 32\ncutoffs = [7]\n[training]\ntgt_len = 5\nmem_len = 3\n")
    options = read_flags(f"--config={path}")
    model, training, evaluation = make_configs(options, records, read_settings(options, MODEL))
    assert model == ModelConfig(n_token=19, d_model=32, cutoffs=(7,))
    assert training == TrainConfig(tgt_len=5, mem_len=3)
    assert evaluation == EvalConfig(tgt_len=5, mem_len=3)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "[model\n", "holds no valid settings: Expected"),
        ("a.toml", "[model]\nwidth = 3\n", "ModelConfig has no field `width`"),
        ("a.toml", "[modell]\n", "unknown section modell, not one of model"),
        ("a.json", "[]", "holds no valid settings: it is not an object"),
        ("a.json", "null", "holds no valid settings: it is not an object"),
    ],
)
def test_a_file_that_holds_no_settings_is_named(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        read_settings(read_flags(f"--config={tmp_path / name}"), MODEL)


def test_settings_without_an_evaluation_evaluate_as_they_train(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text("[training]\ntgt_len = 5\nmem_len = 3\nreset_at_documents = true\n")
    preset = read_settings(read_flags(f"--config={path}"), MODEL)
    assert preset.evaluation == EvalConfig(tgt_len=5, mem_len=3, reset_at_documents=True)
    flags = read_flags(f"--config={path}", "--mem_len=9")
    assert read_settings(flags, MODEL).evaluation.mem_len == 9


def test_what_a_file_of_settings_leaves_out_is_that_of_the_records_or_the_start(records, tmp_path):
    path = tmp_path / "few.toml"
    path.write_text("[model]\nn_layer = 2\n[training]\nclip = 1\n")
    options = read_flags(f"--config={path}", f"--model_dir={tmp_path / 'run'}")
    options["data_dir"].value = str(records.data_dir)
    model = make_job(options, None).config.model
    assert (model.n_layer, model.cutoffs) == (2, (5, 11))
    start = tmp_path / "start"
    small = ModelConfig(n_token=19, n_layer=3, d_model=8, d_embed=8, n_head=2, d_head=4, d_inner=8)
    LanguageModel(TransformerXL(small), records.vocabulary, EvalConfig()).save(start)
    (checkpoint,) = (start / "checkpoints").glob("*.index")
    options["warm_start_path"].value = str(checkpoint.with_suffix(""))
    assert make_job(options, None).config.model == dataclasses.replace(small, n_layer=2)


def test_cutoffs_of_a_file_that_are_too_large_are_told_without_a_size(records, tmp_path):
    path = tmp_path / "large.toml"
    path.write_text("[model]\ncutoffs = [50]\n")
    options = read_flags(f"--config={path}")
    with pytest.raises(
        UserError,
        match=r"the cutoffs 50, but these records have 19 symbols. Pass "
        r"--cutoffs too: --cutoffs= makes one plain softmax$",
    ):
        make_configs(options, records, read_settings(options, MODEL))


def test_a_signal_at_the_end_of_the_training_skips_the_evaluation(records, tmp_path, monkeypatch):
    loop = SimpleNamespace(run=lambda: signal.SIGTERM)
    monkeypatch.setattr("txl_tf.training.job.open_training", lambda *_, **__: loop)
    monkeypatch.setattr("txl_tf.programs.cli.train_command._evaluate", pytest.fail)
    options = read_flags(f"--model_dir={tmp_path / 'run'}", "--do_eval", data_dir=records.data_dir)
    with pytest.raises(StoppedError, match="SIGTERM after the training, before the eval") as caught:
        run(options, lambda options: None)
    assert caught.value.status == 128 + signal.SIGTERM


def test_cutoffs_of_a_file_may_be_those_of_a_large_vocabulary(tmp_path):
    path = tmp_path / "large.toml"
    path.write_text("[model]\ncutoffs = [60000, 1100000]\n")
    settings = read_settings(read_flags(f"--config={path}"), ModelConfig(n_token=1_500_000))
    assert settings.model.cutoffs == (60_000, 1_100_000)


def test_flags_of_training_are_told_if_nothing_is_trained():
    given = ["--precision=bfloat16", "--max_hours=1", "--mem_len=5", "--dropout=0", "--jit=none"]
    assert list_idle_flags(read_flags(*given)) == []
    options = read_flags(*given, "--do_train=false", "--do_eval")
    assert set(list_idle_flags(options)) == {"--precision", "--max_hours"}


def test_settings_of_evaluations_without_effect_are_told(records, tmp_path, capsys):
    def describe(*arguments):
        path = str(tmp_path / "run")
        options = read_flags(f"--model_dir={path}", *arguments, data_dir=records.data_dir)
        job = make_job(options, read_run(path, needs_data=False))
        make_run_folder(path, job.config, records.vocabulary)
        return capsys.readouterr().out

    told = "The run keeps its own evaluation settings"
    assert told not in describe("--eval_mem_len=30")  # makes the run
    assert told in describe("--eval_mem_len=31")
    assert told not in describe("--eval_mem_len=31", "--eval_every=5")
    assert told not in describe("--eval_mem_len=31", "--do_eval")
    assert told not in describe()


@pytest.mark.parametrize(("flag", "jit"), [((), "auto"), (("--jit=none",), "none")])
def test_an_evaluation_does_not_keep_the_kernels_of_a_tpu(flag, jit, monkeypatch):
    given = {}
    monkeypatch.setattr(
        evaluation, "evaluate_checkpoints", lambda job, **others: given.update(others)
    )
    options = train.define_gpu_flags()
    parse_flags(options, ["train", "--do_train=false", "--do_eval", *flag])
    training = TrainConfig(jit="kernels")
    _evaluate(SimpleNamespace(config=SimpleNamespace(training=training)), options)
    assert given["jit"] == jit


def test_without_training_no_replicas_are_made_on_the_cpu(monkeypatch):
    monkeypatch.setattr(strategy, "count_replicas", lambda **given: given["cpu_replicas"])
    for do_train, expected in ((False, 1), (True, 3)):
        options = train.define_gpu_flags()
        parse_flags(options, ["train", f"--do_train={do_train}", "--do_eval", "--cpu_replicas=3"])
        assert train.count_replicas(options) == expected
