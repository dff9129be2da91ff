"""The reference in NumPy beside the 2019 code."""

import numpy as np
import pytest
import tensorflow as tf
from golden_cases import EVALUATIONS, NAMES, load_case, parse_evaluation
from small_model import LOSS_TOLERANCE

from txl_tf.config import AttentionSpan, ModelConfig
from txl_tf.lab.verify import reference


def read_variables(case):
    reader = tf.train.load_checkpoint(case.checkpoint)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def trace(case, tgt_len, span):
    """Returns the traces of all segments of the text of a case."""
    variables, traces = read_variables(case), []
    memory = reference.make_empty_memory(case.config, len(case.golden["tokens"]), span.mem_len)
    for ids, targets in case.cut(tgt_len):
        traces.append(reference.trace_segment(variables, case.config, ids, targets, memory, span))
        memory = traces[-1].new_memory
    return traces


@pytest.mark.parametrize("name", NAMES)
def test_segments_of_the_reference_are_those_of_the_2019_code(name):
    case, computed = load_case(name), {}
    for index, segment in enumerate(trace(case, case.tgt_len, case.span)):
        computed[f"nll_{index}"] = segment.nll
        for layer, states in enumerate(segment.new_memory):
            computed[f"mem_{index}_{layer}"] = states
    prefixes = ("nll_", "mem_")
    assert computed.keys() == {key for key in case.golden if key.startswith(prefixes)}
    for key, value in computed.items():
        expected = case.golden[key]
        np.testing.assert_allclose(value, expected, rtol=0, atol=LOSS_TOLERANCE, err_msg=key)


@pytest.mark.parametrize(("name", "key"), EVALUATIONS)
def test_evaluations_of_the_reference_are_those_of_the_2019_code(name, key):
    case, (tgt_len, span) = load_case(name), parse_evaluation(key)
    nll = np.concatenate([segment.nll for segment in trace(case, tgt_len, span)], axis=1)
    np.testing.assert_allclose(nll, case.golden[key], rtol=0, atol=LOSS_TOLERANCE)


@pytest.mark.parametrize(
    ("span", "keys"),
    [
        (AttentionSpan(2), [[0, 1, 2], [0, 1, 2, 3]]),
        (AttentionSpan(2, same_length=True), [[0, 1, 2], [1, 2, 3]]),
        (AttentionSpan(2, same_length=True, counts_self=True), [[1, 2], [2, 3]]),
    ],
)
def test_a_query_sees_the_memory_and_itself(span, keys):
    seen = [[key for key in range(4) if reference.sees(query, key, span)] for query in range(2)]
    assert seen == keys


def test_an_id_that_is_in_no_bin_is_refused():
    config = ModelConfig(n_token=11, cutoffs=(3, 7))
    assert [reference.find_bin(config, token) for token in (2, 3, 10)] == [(0, 0), (1, 3), (2, 7)]
    with pytest.raises(IndexError, match=r"id 11 is not in \[0, 11\)"):
        reference.find_bin(config, 11)
