"""Whether training is correct: in all precisions and modes, resumed, and on two replicas."""

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from txl_tf.config import ModelConfig, TrainConfig
from txl_tf.data.text.vocabulary import Vocabulary
from txl_tf.programs.checks.backend import CheckFailedError, Figures, is_jax, require
from txl_tf.programs.checks.numbers import BYTES

TRAINING = TrainConfig(
    tgt_len=16, mem_len=16, train_batch_size=4, train_steps=20, learning_rate=3e-3
)
# The fields of `BYTES` and `TRAINING` that are flags of the resumed run, which has dropout.
SIZES = ("n_layer", "d_model", "d_embed", "n_head", "d_head", "d_inner")
LENGTHS = ("tgt_len", "mem_len", "train_batch_size", "train_steps")
PRECISIONS = {"bfloat16": 0.02, "float16": 0.01}  # largest relative difference of the loss


def check_training() -> Figures:
    """The loss falls, and a step is traced and compiled only once."""
    losses, n_compiled = _train("float32")
    figures: Figures = {"first loss": losses[0], "last loss": losses[-1]}
    require(losses[-1] < losses[0] - 1, "the loss does not fall", figures)
    require(n_compiled == 0, "the step is compiled again in the second call", figures)
    return figures


def check_precisions() -> Figures:
    """Losses in bfloat16, and in float16 with loss scaling, are close to those in float32."""
    expected = np.mean(_train("float32")[0][-5:])
    figures: Figures = {}
    for precision, most in PRECISIONS.items():
        losses, _ = _train(precision)
        figures[precision] = float(np.mean(losses[-5:]) / expected - 1)
        require(abs(figures[precision]) < most, f"{precision} trains differently", figures)
    return figures


def check_jit() -> Figures:
    """All modes of `--jit` except `kernels`, which is for TPUs, train alike."""
    figures: Figures = {}
    expected, _ = _train("float32")
    for jit in ("whole", "chains", "none"):
        losses, _ = _train("float32", jit=jit)
        figures[jit] = float(np.max(np.abs(np.subtract(losses, expected))))
        require(figures[jit] < 1e-2, f"--jit={jit} trains differently", figures)
    return figures


def check_replicas() -> Figures:
    """Two replicas, on two parts of one device, take the same steps as a single one."""
    import tensorflow as tf

    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    device = tf.config.list_physical_devices(kind)[0]
    # A GPU is divided by its memory.
    part = tf.config.LogicalDeviceConfiguration(2048 if kind == "GPU" else None)
    if kind == "GPU":
        tf.config.experimental.set_memory_growth(device, False)
    tf.config.set_logical_device_configuration(device, [part, part])
    one, two = (_train("float32", devices=[f"{kind}:{k}" for k in range(n)])[0] for n in (1, 2))
    figures = {"largest difference": float(np.max(np.abs(np.subtract(one, two))))}
    require(figures["largest difference"] < 1e-2, "two replicas train differently", figures)
    return figures


def check_resume() -> Figures:
    """A run resumed from its files at step 10 equals an uninterrupted one at step 20, bit for bit.

    On TensorFlow, another process resumes it.
    """
    if is_jax():
        differing = _resume_by_fit()
        require(not differing, f"they differ: {', '.join(differing)}", {})
        return {"20 steps": "equal to the bit"}
    differing = _resume_by_program()
    if not differing:
        return {"20 steps": "equal to the bit"}
    names = f"{len(differing)} variables differ, such as {differing[0]}"
    require(not _resume_by_program("--deterministic"), f"{names}, also with --deterministic", {})
    return {"with --deterministic": "equal to the bit", "without": names}


def _resume_by_program(*more: str) -> list[str]:
    """Returns the names of the variables that differ after `txl train` resumed a run."""
    import tensorflow as tf

    from txl_tf.data import write_records

    with tempfile.TemporaryDirectory() as folder:
        data, whole, killed = (os.path.join(folder, name) for name in ("data", "whole", "killed"))
        vocabulary = Vocabulary("word", tuple(map(str, range(BYTES.n_token))))
        write_records(
            data, dataset="pattern", vocabulary=vocabulary, splits={"train": [_make_pattern()]}
        )
        options = {"data_dir": data, "save_steps": 10, "iterations": 5, "seed": 1}
        options |= {name: getattr(BYTES, name) for name in SIZES}
        options |= {name: getattr(TRAINING, name) for name in LENGTHS}
        arguments = [f"--{name}={value}" for name, value in options.items()]
        n_gpus = min(len(tf.config.list_physical_devices("GPU")), 1)
        first = f"--num_gpus={n_gpus}"  # the batch need not be divisible by the number of all
        _run_program("train", f"--run={whole}", first, *arguments, *more)
        shutil.copytree(whole, killed)
        checkpoints = os.path.join(killed, "checkpoints")
        for name in os.listdir(checkpoints):  # like a run that was killed after step 10
            if "ckpt-20" in name:
                os.remove(os.path.join(checkpoints, name))
        _run_program("train", f"--run={killed}", first)
        found = [
            tf.train.load_checkpoint(os.path.join(run, "checkpoints", "ckpt-20"))
            for run in (whole, killed)
        ]
        types = found[0].get_variable_to_dtype_map()
        return [
            name
            for name in sorted(types)
            if types[name] != tf.string
            and found[0].get_tensor(name).tobytes() != found[1].get_tensor(name).tobytes()
        ]


def _run_program(*arguments: str) -> None:
    """Runs a program of the package in a separate process."""
    command = [sys.executable, "-m", "txl_tf", *arguments, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it printed nothing"]
        message = f"txl {arguments[0]} ended with {done.returncode}: {lines[-1]}"
        raise CheckFailedError(message, {})


def _resume_by_fit() -> list[str]:
    """Returns the names of the weights that differ after `fit` resumed from a saved file."""
    import keras

    from txl_tf import CausalLM, Segments

    def fit(lm: Any, first: int, stop: int) -> None:
        lm.fit(
            (data[index] for index in range(first, stop)), steps_per_epoch=stop - first, verbose=0
        )

    data = Segments(_make_pattern(), batch_size=4, tgt_len=16)
    config = dataclasses.replace(BYTES, dropout=0.1, dropatt=0.1)
    lm = CausalLM(config, batch_size=4, span=TRAINING.span, seed=0)
    lm.compile(CausalLM.make_optimizer(TRAINING))
    fit(lm, 0, 10)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "lm.keras")
        lm.save(path)
        resumed = keras.saving.load_model(path)
    fit(lm, 10, 20)
    fit(resumed, 10, 20)
    pairs = zip(lm.weights, resumed.weights, strict=True)
    return [
        a.path for a, b in pairs if np.asarray(a.value).tobytes() != np.asarray(b.value).tobytes()
    ]


def _make_pattern() -> np.ndarray:
    """Returns ids that a model learns within a few steps."""
    return np.arange(4 * 16 * 20 + 1, dtype=np.int32) * 7 % BYTES.n_token


def _train(
    precision: str, *, jit: str = "auto", devices: Sequence[str] = ()
) -> tuple[list[float], int]:
    """Trains 20 steps in two calls; returns the losses, and the compilations of the second call."""
    training = dataclasses.replace(TRAINING, precision=precision, jit=jit)
    ids = _make_pattern()[: 4 * 16 * 20].reshape(4, 20, 16).transpose(1, 0, 2)
    following = _make_pattern()[1:].reshape(4, 20, 16).transpose(1, 0, 2)
    if is_jax():
        return _train_by_fit(training, ids, following)
    from txl_tf.training.trainer import CallSegments

    segments = np.concatenate([ids, following[..., -1:]], axis=-1)
    trainer = make_trainer(BYTES, training, devices)
    parts = [trainer.run(CallSegments(segments[:10]))]
    before = _count_traces(trainer)
    parts.append(trainer.run(CallSegments(segments[10:])))
    losses = np.concatenate([part.nats / part.tokens for part in parts])
    return losses.tolist(), _count_traces(trainer) - before


def make_trainer(model: ModelConfig, training: TrainConfig, devices: Sequence[str] = ()) -> Any:
    """Returns the trainer of `txl train`, on the given devices or the first one."""
    import tensorflow as tf

    from txl_tf.training.strategy import make_device_strategy
    from txl_tf.training.trainer import Trainer
    from txl_tf.training.workers import Workers

    devices = devices or ["GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"]
    return Trainer(Workers(make_device_strategy(devices)), model, training)


def _count_traces(trainer: Any) -> int:
    functions = (trainer.run_steps, trainer.train_step.compute)
    return sum(function.experimental_get_tracing_count() for function in functions)


def _train_by_fit(
    training: TrainConfig, ids: np.ndarray, following: np.ndarray
) -> tuple[list[float], int]:
    import jax
    import keras

    from txl_tf import CausalLM

    is_mixed = training.precision != "float32"
    policy = f"mixed_{training.precision}" if is_mixed else "float32"
    lm = CausalLM(BYTES, batch_size=4, span=training.span, seed=0, dtype=policy)
    lm.compile(keras.optimizers.Adam(training.learning_rate))
    losses, compiled = [], []

    def note(event: str, *_: Any, **__: Any) -> None:
        compiled.extend([event] if "backend_compile" in event else [])

    jax.monitoring.register_event_duration_secs_listener(note)
    for index, (x, y) in enumerate(zip(ids, following, strict=True)):
        if index == 10:
            compiled.clear()
        losses.append(float(lm.train_on_batch(x, y)[0]))
    return losses, len(compiled)
