"""The command lines of the 2019 release are understood."""

import pytest

from txl_tf.programs import prepare
from txl_tf.programs.cli.flags import parse_flags
from txl_tf.programs.cli.legacy_flags import (
    PREPARATION_FLAGS,
    TRAINING_FLAGS,
    describe_legacy_flags,
)
from txl_tf.programs.cli.train_flags import define_flags

# All flags of its programs that ours do without, with the release's defaults.
TRAINING_DEFAULTS = {
    "num_hosts": 1,
    "num_core_per_host": 8,
    "use_tpu": True,
    "master": None,
    "track_mean": True,
    "do_test": False,
}
PREPARATION_DEFAULTS = {
    "tgt_len": 70,
    "per_host_train_bsz": 60,
    "per_host_valid_bsz": 60,
    "per_host_test_bsz": 0,
    "num_core_per_host": 8,
    "num_procs": 1,
    "num_passes": 10,
    "num_shuffle": 4,
    "max_batch": -1,
    "debug": False,
    "use_tpu": True,
}


@pytest.mark.parametrize(
    ("defined", "defaults"),
    [
        (define_flags(), TRAINING_DEFAULTS),
        (prepare.define_flags(), PREPARATION_DEFAULTS),
    ],
    ids=["training", "preparation"],
)
def test_flags_without_effect_have_the_defaults_of_the_release(defined, defaults):
    assert {name: defined[name].default for name in defaults} == defaults


@pytest.mark.parametrize(
    ("define", "legacy"),
    [(define_flags, TRAINING_FLAGS), (prepare.define_flags, PREPARATION_FLAGS)],
    ids=["training", "preparation"],
)
def test_every_flag_that_is_given_has_a_line_and_no_other(define, legacy):
    options = define()
    assert list(describe_legacy_flags(options, legacy)) == []
    for flag in legacy:
        options = define()
        value = {int: 3, bool: False, str: "name"}[flag.kind]
        needed = [
            f"--{name}=text" for name in ("data_dir", "model_dir", "dataset") if name in options
        ]
        parse_flags(options, ["x", f"--{flag.name}={value}", *needed])
        (line,) = describe_legacy_flags(options, legacy)
        assert line.startswith(f"--{flag.name}={str(value).lower()}: ")
        assert len(line) > 40


def test_the_program_for_gpus_answers_the_flag_for_tpus():
    options = define_flags()
    parse_flags(options, ["x", "--data_dir=x", "--model_dir=x", "--use_tpu=True"])
    (line,) = describe_legacy_flags(options, TRAINING_FLAGS)
    assert line == "--use_tpu=true: train_tpu.py trains on TPUs, train_gpu.py on GPUs or the CPU."


def test_the_number_of_orders_has_its_name_of_2019():
    options = prepare.define_flags()
    parse_flags(options, ["x", "--dataset=lm1b", "--data_dir=d", "--num_shuffle=3"])
    assert prepare.make_options(options).num_shuffles == 3
