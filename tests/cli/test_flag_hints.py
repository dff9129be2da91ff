"""What unknown flags are answered with."""

import pytest

from txl_tf import generate, train_gpu
from txl_tf.cli.flag_hints import _OTHER_NAMES, suggest_flags
from txl_tf.cli.train_flags import define_flags


@pytest.mark.parametrize(
    ("unknown", "hint"),
    [
        ("batch_size", "Did you mean --train_batch_size or --eval_batch_size?"),
        ("batch", "Did you mean --train_batch_size or --eval_batch_size?"),
        ("lr", "Did you mean --learning_rate?"),
        ("steps", "Did you mean --train_steps?"),
        ("epochs", "Did you mean --train_steps? A run prints how many steps an epoch has."),
        ("seq_len", "Did you mean --tgt_len?"),
        ("memory", "Did you mean --mem_len?"),
        ("output_dir", "Did you mean --model_dir?"),
        ("hidden_size", "Did you mean --d_model?"),
        ("learning-rate", "Did you mean --learning_rate?"),
        ("n_layr", "Did you mean --n_layer?"),
    ],
)
def test_names_from_elsewhere_are_answered_with_those_here(unknown, hint, capsys):
    places = ["--data_dir=a", "--model_dir=b"]
    assert train_gpu.main(["train_gpu.py", *places, f"--{unknown}=3"]) == 2
    assert capsys.readouterr().err == f"train_gpu.py: unknown flag --{unknown}. {hint}\n"


def test_only_flags_that_a_program_has_are_named():
    known = list(generate.define_flags())
    assert suggest_flags("model_dir", known) == " Did you mean --run?"
    assert suggest_flags("max_new_tokens", known) == " Did you mean --length?"


@pytest.mark.parametrize("name", ["n_layer", "tgt_len", "learning_rate", "data_dir"])
def test_no_flag_is_taken_for_the_name_of_another(name):
    other = {other for names in _OTHER_NAMES.values() for other in names.split()}
    assert name not in other
    assert name in define_flags()
