import json

import numpy as np
import pytest
import tensorflow as tf

from txl_tf.errors import UserError
from txl_tf.training import workers as workers_module
from txl_tf.training.cluster import read_cluster
from txl_tf.training.workers import Workers


@pytest.fixture
def alone(two_replicas):
    return Workers(two_replicas)


@pytest.fixture
def second_of_three(monkeypatch, two_replicas):
    """A process of three, as far as it can tell without the others."""
    jobs = {"chief": ["a:1"], "worker": ["b:2", "c:3"]}
    text = json.dumps({"cluster": jobs, "task": {"type": "worker", "index": 0}})
    monkeypatch.setenv("TF_CONFIG", text)
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", type(two_replicas))
    return Workers(two_replicas)


def test_one_process_hears_itself(alone):
    assert (alone.index, alone.count, alone.is_chief) == (0, 1, True)
    np.testing.assert_array_equal(alone.gather([3.0, 5.0]), [[3.0, 5.0]])
    assert alone.broadcast([7.0]) == [7.0]
    alone.wait()


def test_a_process_knows_its_place(second_of_three):
    assert (second_of_three.index, second_of_three.count) == (1, 3)
    assert not second_of_three.is_chief
    assert second_of_three.name(2) == "worker 1 (c:3)"


def test_a_process_that_ends_with_the_values_keeps_them_from_no_other(second_of_three, monkeypatch):
    answers = [tf.ones((3, 2)), tf.errors.UnavailableError(None, None, "Socket closed")]

    def add(_):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(second_of_three, "_add", add)
    np.testing.assert_array_equal(second_of_three.gather([1.0, 1.0]), np.ones((3, 2)))
    assert not answers


@pytest.mark.parametrize(
    "message",
    [
        "x /job:worker/replica:0/task:0 aborted by: Error reported from /job:worker/task:1: gone",
        "Collective ops is aborted by: reset\nfrom remote target /job:worker/replica:0/task:1 y",
    ],
)
def test_a_process_that_is_gone_is_named(second_of_three, message):
    match = r"no answer from worker 1 \(c:3\): start all processes again"
    with pytest.raises(UserError, match=match), second_of_three.explain_losses():
        raise tf.errors.UnavailableError(None, None, message)


def test_a_failure_that_names_no_process_may_be_of_any(second_of_three):
    with (
        pytest.raises(UserError, match="this process or another one of the run failed: nobody"),
        second_of_three.explain_losses(),
    ):
        raise tf.errors.AbortedError(None, None, "nobody knows")


def test_other_errors_are_none_of_a_process_that_is_gone(second_of_three):
    assert tf.errors.NotFoundError not in workers_module.LOSSES
    with pytest.raises(tf.errors.NotFoundError), second_of_three.explain_losses():
        raise tf.errors.NotFoundError(None, None, "a file")


def test_the_cluster_counts_for_its_strategy_alone(monkeypatch, one_replica):
    jobs = {"worker": ["b:2", "c:3"]}
    text = json.dumps({"cluster": jobs, "task": {"type": "worker", "index": 1}})
    monkeypatch.setenv("TF_CONFIG", text)
    assert read_cluster().index == 1
    assert Workers(one_replica).count == 1
