import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from small_runs import make_trainer, read_variables

from txl_tf.training import trainer as trainer_module
from txl_tf.training.strategy import measure_peak_memory


def test_the_norm_is_that_of_all_weights(two_replicas):
    trainer = make_trainer(two_replicas)
    values = read_variables(trainer)
    squares = sum(np.sum(values[each.path] ** 2) for each in trainer.model.trainable_variables)
    # Sums in another order, float32.
    assert trainer.read_gauges()["parameter_norm"] == pytest.approx(np.sqrt(squares), rel=1e-5)


def test_memory_on_a_cpu_is_that_of_the_process(one_replica):
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    # The kernel counts some pages late.
    assert measure_peak_memory(one_replica) == pytest.approx(1024 * int(line), rel=0.05)


def test_memory_of_a_device_elsewhere_is_left_out(one_replica, monkeypatch):
    class Remote:
        extended = type("", (), {"worker_devices": ("/job:worker/task:0/device:TPU:0",)})

    assert measure_peak_memory(Remote()) is None
    trainer = make_trainer(one_replica)
    monkeypatch.setattr(trainer_module, "measure_peak_memory", lambda _: None)
    assert set(trainer.read_gauges()) == {"parameter_norm"}


def test_memory_on_gpus_is_that_of_the_fullest(monkeypatch):
    class Strategy:
        extended = type("", (), {"worker_devices": ("/device:GPU:0", "/device:GPU:1")})

    peaks = {"/device:GPU:0": 3, "/device:GPU:1": 5}
    monkeypatch.setattr(
        tf.config.experimental, "get_memory_info", lambda name: {"peak": peaks[name], "current": 1}
    )
    assert measure_peak_memory(Strategy()) == 5
