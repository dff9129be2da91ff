import json

import pytest
import tensorflow as tf

from txl_tf.errors import UserError
from txl_tf.training.strategy import count_replicas, make_gpu_strategy


@pytest.mark.parametrize("count", [1, 2])
def test_the_cpu_is_divided_into_replicas(count):
    strategy = make_gpu_strategy(num_gpus=0, cpu_replicas=count)
    assert strategy.num_replicas_in_sync == count


def test_a_cpu_in_use_cannot_be_divided_further():
    tf.config.list_logical_devices("CPU")  # now it is
    with pytest.raises(UserError, match="the CPU can no longer be divided: "):
        make_gpu_strategy(num_gpus=0, cpu_replicas=5)


def test_replicas_on_the_cpu_are_for_one_process(monkeypatch):
    cluster = {"worker": ["a:1", "b:1"]}
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    with pytest.raises(UserError, match="`cpu_replicas`=2 is only for a run of one process"):
        make_gpu_strategy(num_gpus=0, cpu_replicas=2)


def test_gpus_that_are_not_chosen_are_hidden(monkeypatch):
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{n}", "GPU") for n in range(3)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", list)
    visible = []
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *args: visible.append(args))
    assert make_gpu_strategy(num_gpus=2) == ["GPU:0", "GPU:1"]
    assert count_replicas(num_gpus=1) == 1
    assert visible == [(gpus[:2], "GPU"), (gpus[:1], "GPU")]
