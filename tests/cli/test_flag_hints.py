"""What unknown flags are answered with."""

import pytest

from txl_tf import generate
from txl_tf.cli.flag_hints import _OTHER_NAMES, suggest_flags
from txl_tf.cli.train_flags import define_flags


def test_only_flags_that_a_program_has_are_named():
    known = list(generate.define_flags())
    assert suggest_flags("model_dir", known) == " Did you mean --run?"
    assert suggest_flags("max_new_tokens", known) == " Did you mean --length?"


@pytest.mark.parametrize("name", ["n_layer", "tgt_len", "learning_rate", "data_dir"])
def test_no_flag_is_taken_for_the_name_of_another(name):
    other = {other for names in _OTHER_NAMES.values() for other in names.split()}
    assert name not in other
    assert name in define_flags()
