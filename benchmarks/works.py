"""The models and batches that benchmarks measure, and the figures of other implementations."""

import multiprocessing
import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import flags

from txl_tf import presets
from txl_tf.config import ModelConfig, TrainConfig
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.quiet_start import quiet_start

LAWS = ("uniform", "zipf")
MATRIX = 2048  # rows and columns of the product that measures the peak
COPIED_BYTES = 2**28  # far more than caches hold


class Shape(NamedTuple):
    """A model and a batch.

    >>> Shape(6, 256, 8, 1024, 128, 128, 8, 20000, (2000, 10000)).spec
    '6,256,8,1024,128,128,8,20000:2000,10000/1'
    """

    n_layer: int
    d_model: int
    n_head: int
    d_inner: int
    tgt_len: int
    mem_len: int
    batch_size: int
    n_token: int
    cutoffs: tuple[int, ...] = ()
    div_val: int = 1

    @classmethod
    def from_preset(cls, name: str) -> "Shape":
        """Returns the shape that a preset trains."""
        preset = presets.get(name)
        model, training = preset.model, preset.training
        return cls(
            *(model.n_layer, model.d_model, model.n_head, model.d_inner),
            *(training.tgt_len, training.mem_len, training.train_batch_size),
            *(model.n_token, model.cutoffs, model.div_val),
        )

    @property
    def spec(self) -> str:
        """The shape as a text: eight numbers, and cutoffs and `div_val` where there are any."""
        numbers = ",".join(map(str, self[:8]))
        cutoffs = ",".join(map(str, self.cutoffs))
        return f"{numbers}:{cutoffs}/{self.div_val}" if cutoffs else numbers

    def make_configs(self, dropout: float) -> tuple[ModelConfig, TrainConfig]:
        """Returns model and training; `dropout` is the rate of the attention weights, too."""
        model = ModelConfig(
            n_token=self.n_token,
            n_layer=self.n_layer,
            d_model=self.d_model,
            d_embed=self.d_model,
            n_head=self.n_head,
            d_head=self.d_model // self.n_head,
            d_inner=self.d_inner,
            dropout=dropout,
            dropatt=dropout,
            untie_r=True,
            cutoffs=self.cutoffs,
            div_val=self.div_val,
        )
        training = TrainConfig(
            train_batch_size=self.batch_size, tgt_len=self.tgt_len, mem_len=self.mem_len
        )
        return model, training

    def list_bin_shares(self, law: str) -> tuple[float, ...]:
        """Returns the share of tokens in each bin, where they are drawn by a law."""
        model, _ = self.make_configs(0.0)
        if law == "zipf":
            from benchmarks.step_costs import estimate_bin_shares  # imports TensorFlow

            return estimate_bin_shares(model)
        return tuple((high - low) / model.n_token for low, high in model.bins)


BYTES = Shape(6, 256, 8, 1024, 128, 128, 8, 27)
SHAPES = {
    "bytes": BYTES,
    "bytes_large": Shape(12, 512, 8, 2048, 128, 128, 2, 205),
    "words": BYTES._replace(n_token=20_000, cutoffs=(2000, 10_000)),
    "words_divided": BYTES._replace(n_token=60_000, cutoffs=(5000, 10_000, 40_000), div_val=4),
    "wt103_base": Shape.from_preset("wt103_base"),
}


def draw_ids(n_token: int, law: str, size: int | tuple[int, ...]) -> np.ndarray:
    """Returns ids, int32, the same ones at every call.

    Args:
        n_token: The size of the vocabulary.
        law: "uniform", or "zipf": id k comes in proportion to 1 / (k + 1).
        size: Their number, or the shape of the array.
    """
    generator = np.random.default_rng(0)
    if law == "uniform":
        return generator.integers(0, n_token, size, np.int32)
    bounds = np.cumsum(1 / np.arange(1, n_token + 1))
    return np.searchsorted(bounds, generator.random(size) * bounds[-1]).astype(np.int32)


def measure_peak(dtype: str = "float32", seconds: float = 1.0) -> float:
    """Returns the best FLOP/s of a large matrix product in some runs."""
    import tensorflow as tf

    matrix = tf.cast(tf.random.stateless_normal((MATRIX, MATRIX), seed=(0, 1)), dtype)
    multiply = tf.function(lambda left, right: tf.matmul(left, right))
    return 2 * MATRIX**3 / min(repeat(lambda: multiply(matrix, matrix).numpy(), seconds))


def measure_bandwidth(seconds: float = 1.0) -> float:
    """Returns the best bytes/s, read and written, of a copy in which all cores take part."""
    n_threads = os.cpu_count() or 1
    source = np.ones((n_threads, COPIED_BYTES // 8 // n_threads))
    target = np.zeros_like(source)

    def copy() -> None:
        rows = zip(target, source, strict=True)
        threads = [threading.Thread(target=np.copyto, args=pair) for pair in rows]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return 2 * source.nbytes / min(repeat(copy, seconds))


def measure_apart(function: Any, *arguments: Any) -> Any:
    """Returns the result of a function that runs in a new process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def measure_machine() -> dict[str, float]:
    """Returns the peaks of the machine: FLOP/s of large products, and bytes/s of a copy."""
    with quiet_start():
        import tensorflow  # noqa: F401
    peaks = {f"{dtype}_flops_per_second": measure_peak(dtype) for dtype in ("float32", "bfloat16")}
    return {**peaks, "copied_bytes_per_second": measure_bandwidth()}


def repeat(call: Callable[[], object], seconds: float) -> list[float]:
    """Calls twice to warm up, then for some seconds; returns how long each call took."""
    call()
    call()
    durations: list[float] = []
    while sum(durations) < seconds or len(durations) < 5:
        start = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start)
    return durations


def read_peers(path: str | None) -> dict[str, dict[str, float]]:
    """Reads the speeds of other implementations on this machine, tokens per second.

    Args:
        path: A file with lines such as "2019 train:6,256,8,1024,128,128,8,27: median 2,427.9", with
            the implementation, the kind of work and the shape's `spec`; `None` for no file.

    Returns:
        For each work, "train:6,256,...", the median of each implementation by its name.

    Raises:
        UserError: the file cannot be read, or holds no such line.
    """
    if path is None:
        return {}
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"`{path}`: {error}") from error
    found = parse_peers(text)
    if not found:
        raise UserError(f"`{path}` has no line such as '2019 train:{BYTES.spec}: median 1,234.5'")
    return found


def parse_peers(text: str) -> dict[str, dict[str, float]]:
    """Returns the speeds in the lines of a text, as `read_peers`.

    >>> parse_peers("2019 train:6,256,8,1024,128,128,8,27: median 2,427.9, best 2,500.1 tokens/s")
    {'train:6,256,8,1024,128,128,8,27': {'2019': 2427.9}}
    """
    found: dict[str, dict[str, float]] = {}
    for name, work, speed in re.findall(r"^(\S+) (\w+:\S+): median ([\d,.]+)", text, flags=re.M):
        found.setdefault(work, {})[name] = float(speed.rstrip(",").replace(",", ""))
    return found


def define_peers_flag(options: flags.FlagValues) -> None:
    """Defines the flag of the file that `read_peers` reads."""
    text = "File with the speeds of other implementations. [default: none]"
    define_flag(options, "peers", str, None, text, is_path=True)


def format_times(speed: float, peers: dict[str, float]) -> str:
    """Returns how many times as fast as others a speed is, such as "1.8 x 2019"."""
    return ", ".join(f"{speed / other:.2f} x {name}" for name, other in peers.items())
