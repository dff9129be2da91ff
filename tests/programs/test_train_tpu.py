"""The program for TPUs, with the chip replaced by logical devices of the CPU."""

import socket
import urllib.error

import numpy as np
import pytest
from places import ROOT
from small_commands import make_arguments, read_log, write_data

import txl_tf
from txl_tf.programs import train, train_tpu
from txl_tf.training import strategy


@pytest.fixture
def data_dir(tmp_path):
    return write_data(tmp_path / "data")


def run_main(data_dir, model_dir, *more):
    arguments = make_arguments(data_dir, model_dir, "--tpu=v5", "--dropout=0", "--dropatt=0", *more)
    return train_tpu.main(["train_tpu.py", *arguments])


def test_a_tpu_trains_as_a_gpu_does(data_dir, tmp_path, monkeypatch, two_replicas):
    """The resolver and the strategy are replaced: everything but the chip."""
    asked = []

    def make(tpu, *, zone, project, cpu_replicas):
        asked.append((tpu, zone, project, cpu_replicas))
        return two_replicas

    monkeypatch.setattr(strategy, "make_tpu_strategy", make)
    batch = ("--train_batch_size=6", "--tgt_len=3")
    cloud = ("--tpu_zone=us-a", "--gcp_project=mine")
    assert run_main(data_dir, tmp_path / "tpu", *batch, *cloud) == 0
    arguments = make_arguments(data_dir, tmp_path / "gpu", "--dropout=0", "--dropatt=0", *batch)
    assert train.main(["train_gpu.py", *arguments]) == 0
    assert asked == [("v5", "us-a", "mine", 0)]
    losses = [[line["loss_nats"] for line in read_log(tmp_path / name)] for name in ("tpu", "gpu")]
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("the name cannot be resolved\nmore lines"), "the name cannot be resolved"),
        (
            urllib.error.URLError("[Errno -2] Name or service not known"),
            "this machine is not in Google Cloud, or has no network",
        ),
    ],
    ids=["resolver", "no cloud"],
)
def test_a_missing_tpu_is_one_line_with_what_was_tried(
    data_dir, tmp_path, capsys, monkeypatch, error, reason
):
    monkeypatch.chdir(ROOT)

    def fail(*_):
        raise error

    monkeypatch.setattr("tensorflow.distribute.cluster_resolver.TPUClusterResolver", fail)
    assert run_main(data_dir, tmp_path / "run") == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"train_tpu.py: no TPU was found with tpu='v5', tpu_zone=None, gcp_project=None: {reason}. "
        "txl train trains on GPUs or the CPU; --cpu_replicas=2 tries this command on the "
        "CPU"
    )


def test_an_address_without_a_tpu_is_not_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # nobody listens there once it is closed
    with pytest.raises(txl_tf.UserError, match=r"no TPU was found with .*: Connection refused"):
        strategy.make_tpu_strategy(f"grpc://127.0.0.1:{port}")


def test_replicas_on_the_cpu_stand_in_for_a_tpu(
    data_dir, tmp_path, capsys, monkeypatch, two_replicas
):
    # Two strategies over the same devices in one process would disturb each other.
    monkeypatch.setattr(strategy, "_make_cpu_strategy", {2: two_replicas}.__getitem__)
    arguments = ("--cpu_replicas=2", "--train_batch_size=6", "--train_steps=4", "--eval_every=4")
    assert run_main(data_dir, tmp_path / "run", *arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "2 replicas on this machine's CPU (MirroredStrategy) stand in for the TPU v5: "
    )
    assert "No samples: TPUs are not suited to generating one token at a time.\n" in out
    assert [line["step"] for line in read_log(tmp_path / "run")] == [4]


def test_both_programs_have_the_same_flags_but_for_the_devices():
    gpu, tpu = set(train.define_gpu_flags()), set(train_tpu.define_tpu_flags())
    assert tpu - gpu == {"tpu", "tpu_zone", "gcp_project"}
    assert gpu - tpu == {"num_gpus"}
