"""The models and batches that benchmarks measure, and how reading and generation are measured."""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.peers.protocol import Shape, repeat
from txl_tf import presets
from txl_tf.config import EvalConfig, ModelConfig

LAWS = ("uniform", "zipf")
MATRIX = 2048  # rows and columns of the product that measures the peak
COPIED_BYTES = 2**28  # far more than caches hold
# Shorter texts may be read without the memory.
READ_WITHOUT_MEMORY = 2048
DRAWN = 32  # tokens that a call draws


def take_preset(name: str) -> Shape:
    """Returns the shape that a preset trains."""
    preset = presets.get(name)
    model, training = preset.model, preset.training
    return Shape(
        *(model.n_layer, model.d_model, model.n_head, model.d_inner),
        *(training.tgt_len, training.mem_len, training.train_batch_size),
        *(model.n_token, model.cutoffs, model.div_val),
    )


BYTES = Shape(6, 256, 8, 1024, 128, 128, 8, 27)
SHAPES = {
    "bytes": BYTES,
    "bytes_large": Shape(12, 512, 8, 2048, 128, 128, 2, 205),
    "words": BYTES._replace(n_token=20_000, cutoffs=(2000, 10_000)),
    "words_divided": BYTES._replace(n_token=60_000, cutoffs=(5000, 10_000, 40_000), div_val=4),
    "wt103_base": take_preset("wt103_base"),
}


def make_config(shape: Shape, dropout: float) -> ModelConfig:
    """Returns the model of a shape; `dropout` is also the rate of the attention weights."""
    return ModelConfig(
        **{name: getattr(shape, name) for name in ("n_token", "n_layer", "d_model", "n_head")},
        d_embed=shape.d_model,
        d_head=shape.d_model // shape.n_head,
        d_inner=shape.d_inner,
        dropout=dropout,
        dropatt=dropout,
        untie_r=True,
        cutoffs=shape.cutoffs,
        div_val=shape.div_val,
    )


def draw_ids(n_token: int, law: str, size: int | tuple[int, ...]) -> np.ndarray:
    """Returns random ids, int32, which are the same in every call.

    Args:
        n_token: The size of the vocabulary.
        law: "uniform", or "zipf": the frequency of id k is proportional to 1 / (k + 1).
        size: Their number, or the shape of the array.
    """
    generator = np.random.default_rng(0)
    if law == "uniform":
        return generator.integers(0, n_token, size, np.int32)
    bounds = np.cumsum(1 / np.arange(1, n_token + 1))
    return np.searchsorted(bounds, generator.random(size) * bounds[-1]).astype(np.int32)


def make_language_model(shape: Shape, precision: str = "float32") -> Any:
    """Returns a `LanguageModel` with random weights and kernels in one of `KERNEL_DTYPES`."""
    from txl_tf import LanguageModel, TransformerXL

    mem_len = shape.mem_len
    evaluation = EvalConfig(tgt_len=shape.tgt_len, mem_len=mem_len, same_length=mem_len > 0)
    model = TransformerXL(make_config(shape, 0.0), seed=0)
    lm = LanguageModel(model, None, evaluation)
    if precision != "float32":
        lm.quantize(precision)
    return lm


def prepare_reading(shape: Shape, precision: str, jit: str) -> tuple[Callable[[], Any], int]:
    """Returns a call that scores texts longer than the memory, and the number of their tokens."""
    lm = make_language_model(shape, precision)
    length = shape.mem_len + READ_WITHOUT_MEMORY + shape.tgt_len
    texts = list(draw_ids(shape.n_token, "uniform", (shape.batch_size, length)))
    options = {"batch_size": shape.batch_size, "jit": jit}
    return lambda: lm.score(texts, **options), shape.batch_size * length


def prepare_drawing(shape: Shape, precision: str) -> tuple[Callable[[], Any], int]:
    """Returns a call that continues one text, and how many tokens it draws."""
    lm = make_language_model(shape._replace(tgt_len=64), precision)
    session = lm.start([np.zeros(1, np.int32)], temperature=1.0, top_k=None)
    return lambda: session.draw(DRAWN), DRAWN


def measure_reading(shape: Shape, precision: str, jit: str, seconds: float) -> float:
    """Returns the tokens per second of `LanguageModel.score`."""
    call, n_tokens = prepare_reading(shape, precision, jit)
    return n_tokens / repeat(call, seconds, warm=1, least=2)


def measure_drawing(shape: Shape, precision: str, seconds: float) -> float:
    """Returns the tokens per second at which `LanguageModel.start` continues one text."""
    call, n_tokens = prepare_drawing(shape, precision)
    return n_tokens / repeat(call, seconds)


def measure_apart(function: Any, *arguments: Any) -> Any:
    """Runs a function in a new process and returns its result."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def measure_machine(seconds: float = 1.0) -> dict[str, float]:
    """Returns the peak speeds of the machine: FLOP/s of large products, and bytes/s of a copy."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    multiply = tf.function(lambda left, right: tf.matmul(left, right))

    def measure_peak(dtype: str) -> float:
        matrix = tf.cast(tf.random.stateless_normal((MATRIX, MATRIX), seed=(0, 1)), dtype)
        return 2 * MATRIX**3 / repeat(lambda: multiply(matrix, matrix).numpy(), seconds)

    n_threads = os.cpu_count() or 1
    source = np.ones((n_threads, COPIED_BYTES // 8 // n_threads))
    target = np.zeros_like(source)
    with ThreadPoolExecutor(n_threads) as pool:
        copy_seconds = repeat(lambda: list(pool.map(np.copyto, target, source)), seconds)
    return {
        "float32_flops_per_second": measure_peak("float32"),
        "bfloat16_flops_per_second": measure_peak("bfloat16"),
        "copied_bytes_per_second": 2 * source.nbytes / copy_seconds,
    }
