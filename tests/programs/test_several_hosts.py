"""Several replicas and processes, as on several hosts: the same losses, also when one is lost."""

import json
import signal
import socket
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from forked_programs import FORKS, ForkedProgram, run_forked
from places import ROOT
from small_commands import make_arguments, read_log, write_data

from benchmarks.flag_texts import keep_last
from benchmarks.several_workers import make_environments, start_workers

PROGRAM = str(ROOT / "train_gpu.py")
MINUTE = 60.0


class Run:
    """A run of two processes, and what they print."""

    def __init__(self, data_dir, folder, *flags, steps):
        self.model_dir = folder / "run"
        self.logs = [folder / "chief.txt", folder / "worker.txt"]
        shape = ("--train_batch_size=12", f"--train_steps={steps}", "--iterations=1")
        self.arguments = make_arguments(data_dir, self.model_dir, *shape, *flags)

    def start_from_the_command_line(self):
        command = [sys.executable, PROGRAM, *self.arguments]
        self.processes = start_workers([command] * 2, self.logs)

    def start(self, chief=None, worker=None):
        """Starts both processes; with other arguments where they are given."""
        environments = make_environments(2)
        self.processes = [
            ForkedProgram(arguments or self.arguments, log, environment)
            for arguments, log, environment in zip(
                (chief, worker), self.logs, environments, strict=True
            )
        ]

    def start_alone(self, index):
        """Starts one of the two processes, and returns it."""
        return ForkedProgram(self.arguments, self.logs[index], make_environments(2)[index])

    def finish(self):
        """Waits for the end; returns the exit statuses and the outputs."""
        statuses = [process.wait(timeout=5 * MINUTE) for process in self.processes]
        outputs = [log.read_text() for log in self.logs]
        return SimpleNamespace(statuses=statuses, outputs=outputs)

    def send(self, index, number, *, at_step):
        """Sends a signal to a process once the run has logged a step; returns when."""
        while not any(line["step"] >= at_step for line in self._read_log()):
            if any(process.poll() is not None for process in self.processes):
                raise AssertionError(self.finish())
            time.sleep(0.01)
        self.processes[index].send_signal(number)
        return time.monotonic()

    def _read_log(self):
        try:
            return read_log(self.model_dir)
        except (FileNotFoundError, json.JSONDecodeError):  # a line is being written
            return []


def read_losses(model_dir):
    return [line["loss_nats"] for line in read_log(model_dir)]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data") / "data")


@pytest.fixture(scope="module")
def plain(data_dir, tmp_path_factory):
    """A run of two processes, and the same of one: no dropout, evaluated."""
    folder = tmp_path_factory.mktemp("plain")
    flags = ("--dropout=0", "--dropatt=0", "--eval_every=8", "--do_eval")
    two = Run(data_dir, folder, *flags, steps=20)
    two.start()
    end = two.finish()
    assert end.statuses == [0, 0], "\n".join(end.outputs)
    one = folder / "one"
    run_forked(keep_last([*two.arguments, f"--model_dir={one}"]), folder / "one.txt")
    return SimpleNamespace(two=two.model_dir, one=one, outputs=end.outputs)


@pytest.mark.slow
def test_two_processes_make_the_losses_of_one(plain):
    losses = [read_losses(folder) for folder in (plain.two, plain.one)]
    assert len(losses[0]) == 20
    # Sums in another order, float32, carried through 20 steps.
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.slow
def test_the_chief_alone_reports(plain):
    chief, worker = plain.outputs
    assert "Process 1 of 2, worker 0" in chief
    assert "lanes 0 to 5 of 12" in chief
    assert "step 20/20" in chief
    assert "valid at step 20" in chief
    assert "Process 2 of 2, worker 1" in worker
    assert "lanes 6 to 11 of 12" in worker
    assert "step 20/20" not in worker
    assert "valid at step" not in worker


@pytest.mark.slow
def test_each_process_saves_the_memory_of_its_lanes(plain):
    names = {path.name for path in plain.two.glob("checkpoints/ckpt-20.*")}
    assert {f"ckpt-20.memory-0000{index}-of-00002.index" for index in (0, 1)} <= names


STEPS = 120


@pytest.fixture(scope="module")
def lives(data_dir, tmp_path_factory):
    """A run with dropout left alone; the same one, losing a process, asked to stop, and ended.

    The last part is one process of two replicas: they do what two processes do.
    """
    flags = ("--deterministic", "--save_steps=20")
    whole, broken = (
        Run(data_dir, tmp_path_factory.mktemp(name), *flags, steps=STEPS)
        for name in ("whole", "broken")
    )
    whole.start()
    assert whole.finish().statuses == [0, 0]
    broken.start_from_the_command_line()
    killed_at = broken.send(1, signal.SIGKILL, at_step=25)
    lost = broken.finish()
    lost.seconds = time.monotonic() - killed_at
    broken.start()
    broken.send(1, signal.SIGTERM, at_step=60)
    stopped = broken.finish()
    ended = run_forked([*broken.arguments, "--cpu_replicas=2"], broken.logs[0])
    return SimpleNamespace(
        whole=whole.model_dir, broken=broken.model_dir, lost=lost, stopped=stopped, ended=ended
    )


@pytest.mark.slow
def test_a_process_that_dies_stops_the_others_within_a_minute(lives):
    assert lives.lost.statuses == [1, -signal.SIGKILL]
    assert lives.lost.seconds < MINUTE  # what is promised, not a measure of speed
    last = lives.lost.outputs[0].splitlines()[-1]
    assert last.startswith("train_gpu.py: no answer from worker 1 (127.0.0.1:")


@pytest.mark.slow
def test_all_processes_save_and_stop_when_one_is_asked_to(lives):
    assert lives.stopped.statuses == [128 + signal.SIGTERM] * 2
    for output in lives.stopped.outputs:
        assert "stopped by SIGTERM at step" in output.splitlines()[-1]
    step = read_stop(lives.stopped.outputs[0])
    assert f"Resuming from step {step}." in lives.ended
    assert read_stop(lives.stopped.outputs[1]) == step


def read_stop(output):
    return int(output.rpartition("at step ")[2].partition(",")[0])


@pytest.mark.slow
def test_a_run_that_lost_processes_resumes_bit_for_bit(lives):
    losses = [read_losses(folder) for folder in (lives.whole, lives.broken)]
    assert len(losses[0]) == STEPS
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_processes_with_different_flags_are_told(data_dir, tmp_path):
    run = Run(data_dir, tmp_path, steps=50)
    run.start(worker=keep_last([*run.arguments, "--learning_rate=0.02"]))
    end = run.finish()
    assert end.statuses == [1, 1]
    for output in end.outputs:
        assert "was started with other flags, or on other records" in output.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_ctrl_c_ends_a_process_that_waits_for_others(index, data_dir, tmp_path):
    run = Run(data_dir, tmp_path, steps=50)
    process, log = run.start_alone(index), run.logs[index]
    while not log.exists() or "Waiting for the other processes" not in log.read_text():
        assert process.poll() is None
        time.sleep(0.1)
    other = 1 - index
    assert f"processes of the run: worker {other} (127.0.0.1:" in log.read_text()
    time.sleep(2)  # it says so before it waits
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=MINUTE) == -signal.SIGINT


@pytest.mark.slow
def test_a_port_in_use_is_told(data_dir, tmp_path):
    run, (environment, _) = Run(data_dir, tmp_path, steps=50), make_environments(2)
    address = json.loads(environment["TF_CONFIG"])["cluster"]["worker"][0]
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        process = ForkedProgram(run.arguments, run.logs[0], environment)
        assert process.wait(timeout=MINUTE) == 1
    *_, line = run.logs[0].read_text().splitlines()
    assert line.startswith(
        f"train_gpu.py: the processes of the run cannot be joined at {address}: "
    )


@pytest.mark.slow
def test_sigterm_ends_a_process_that_has_joined_the_others():
    """tensorflow would take it for itself, and do nothing."""
    code = (
        "import os, signal, time; os.environ.update(environment); "
        "from txl_tf.training.strategy import make_gpu_strategy; "
        "strategy = make_gpu_strategy(num_gpus=0); print(strategy.num_replicas_in_sync); "
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)"
    )
    processes = [
        FORKS.Process(target=exec, args=(code, {"environment": environment}), daemon=True)
        for environment in make_environments(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(MINUTE)
    assert [process.exitcode for process in processes] == [-signal.SIGTERM] * 2
