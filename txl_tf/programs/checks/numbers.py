"""Whether products, terms, gradients and the memory are correct."""

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from txl_tf.config import AttentionSpan, ModelConfig
from txl_tf.programs.checks.backend import (
    Figures,
    SkippedError,
    full_float32,
    has_gpu,
    is_jax,
    measure_bandwidth,
    measure_peak,
    require,
)
from txl_tf.version import __version__

BYTES = ModelConfig(
    n_token=50,
    n_layer=2,
    d_model=32,
    d_embed=32,
    n_head=2,
    d_head=16,
    d_inner=64,
    init_std=0.1,
    dropout=0.0,
    dropatt=0.0,
)
WORDS = dataclasses.replace(BYTES, cutoffs=(10, 30), div_val=2, untie_r=True)
SPANS = (AttentionSpan(12), AttentionSpan(12, same_length=True, clamp_len=6))
MOST_NATS = 2e-5  # between losses in float32 that are computed in different ways
TF32_TOLERANCE = 5e-3  # it rounds the factors of a product to 10 bits, 5e-4
FLOAT32_TOLERANCE = 2e-6  # of a product of 512 terms, as a norm
GRADIENT_TOLERANCE = 1e-5  # along a random direction, relative to the norm
STEP = 1e-4  # of a difference quotient


def check_device() -> Figures:
    """The backend starts and sees its devices."""
    import keras

    figures: Figures = {"txl_tf": __version__, "keras": keras.__version__}
    if is_jax():
        import jax

        return figures | {
            "jax": jax.__version__,
            "devices": _count(d.device_kind for d in jax.devices()),
        }
    import tensorflow as tf

    names = []
    for device in tf.config.get_visible_devices():
        details = tf.config.experimental.get_device_details(device)
        names.append(details.get("device_name", device.device_type))
    return figures | {"tensorflow": tf.__version__, "devices": _count(names)}


def check_products() -> Figures:
    """Products have the requested precision; measures the speed of a large one and of a copy."""
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, 512, 512)).astype(np.float32)
    exact = left.astype(np.float64) @ right

    def measure_error(dtype: str) -> float:
        found = np.asarray(_multiply(left, right, dtype), np.float64)
        return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))

    figures: Figures = {"error of bfloat16": measure_error("bfloat16")}
    if has_gpu():
        figures["error of TF32"] = measure_error("float32")
    with full_float32():
        figures["error of float32"] = measure_error("float32")
    require(
        figures["error of float32"] < FLOAT32_TOLERANCE, "float32 is rounded: is TF32 on?", figures
    )
    require(figures["error of bfloat16"] < 1e-2, "bfloat16 is wrong", figures)
    for dtype in ("float32", "bfloat16"):
        figures[f"TFLOP/s {dtype}"] = measure_peak(dtype) / 1e12
    return figures | {"copy GB/s": measure_bandwidth() / 1e9}


def check_numbers() -> Figures:
    """All terms and gradients of the model agree with those of the 2019 code in float64."""
    with full_float32():
        return _compare_numbers(tolerance=None)


def check_tf32() -> Figures:
    """The same with TF32, which GPUs use by default in products of float32."""
    if not has_gpu():
        raise SkippedError("only GPUs have TF32")
    return _compare_numbers(tolerance=TF32_TOLERANCE)


def check_memory() -> Figures:
    """Segments with memory have the losses of one pass over the whole text.

    With `same_length`, each token sees the same number of tokens before it, whether in its segment
    or in the memory.
    """
    from txl_tf import CausalLM, Segments, TransformerXL

    figures: Figures = {}
    with full_float32():
        for name, config in (("bytes", BYTES), ("words", WORDS)):
            model, n_rows = TransformerXL(config, seed=0, dtype="float32"), 3
            ids = np.random.default_rng(0).integers(config.n_token, size=n_rows * 32 + 1)
            losses = []
            for tgt_len in (32, 8):
                span = AttentionSpan(24, same_length=True)
                lm = CausalLM(model, batch_size=n_rows, span=span)
                lm.compile()
                data = Segments(ids, batch_size=n_rows, tgt_len=tgt_len)
                losses.append(lm.evaluate(data, verbose=0, return_dict=True)["nats"])
            figures[name] = abs(losses[0] - losses[1])
            message = f"the memory is lost or wrong ({name})"
            require(figures[name] < MOST_NATS, message, figures)
    return figures


def _compare_numbers(tolerance: float | None) -> Figures:
    """Compares a byte model and a word model with bins with the NumPy reference.

    With `tolerance=None`, each term must agree within the rounding of float32.
    """
    from txl_tf.lab.verify import comparison
    from txl_tf.models.transformer_xl import TransformerXL

    figures: Figures = {}
    for name, config in (("bytes", BYTES), ("words", WORDS)):
        model = TransformerXL(config, seed=0, dtype="float32")
        checks = comparison.compare_model(model, _read_variables(model), tgt_len=8, spans=SPANS)
        figures[name] = max(check.difference for check in checks)
        if tolerance is None:
            verdict = " ".join(comparison.describe_verdict(checks))
            require(comparison.find_first(checks) is None, f"{name}: {verdict}", figures)
        else:
            message = f"{name}: TF32 changes a term by more than {tolerance:g}"
            require(figures[name] < tolerance, message, figures)
        differences = dict(_compare_gradients(model))
        worst = max(differences, key=lambda weight: np.nan_to_num(differences[weight], nan=np.inf))
        figures[f"gradients of {name}"] = differences[worst]
        require(
            differences[worst] < (tolerance or GRADIENT_TOLERANCE),
            f"{name}: the gradient of {worst} is wrong",
            figures,
        )
    return figures


def _compare_gradients(model: Any) -> Iterator[tuple[str, float]]:
    """Yields the error of the gradient of each weight, relative to the norm of the gradient.

    Along a random direction, the compiled gradient is compared with a difference quotient of the
    reference. The segment is the second one, whose memory comes from the first.
    """
    from txl_tf.lab.verify import reference
    from txl_tf.release.names import SCOPE, list_entries

    span, variables, rng = SPANS[1], _read_variables(model), np.random.default_rng(1)
    text = rng.integers(model.config.n_token, size=(3, 17))
    memory = reference.make_empty_memory(model.config, 3, span.mem_len)
    first = reference.trace_segment(
        variables, model.config, text[:, :8], text[:, 1:9], memory, span
    )
    memory, ids, targets = first.new_memory, text[:, 8:16], text[:, 9:17]

    def compute_loss(name: str, change: np.ndarray) -> float:
        changed = dict(variables) | {name: variables[name].astype(np.float64) + change}
        trace = reference.trace_segment(changed, model.config, ids, targets, memory, span)
        return float(trace.nll.mean())

    weights = map(id, model.trainable_variables)
    found = _differentiate(model, ids, targets, memory, span)
    gradients: dict[int, Any] = dict(zip(weights, found, strict=True))
    for name, target in list_entries(model):
        gradient = np.asarray(gradients[id(target)], np.float64)
        direction = rng.normal(size=gradient.shape)
        direction *= STEP / float(np.linalg.norm(direction))
        rise = compute_loss(SCOPE + name, direction) - compute_loss(SCOPE + name, -direction)
        error = float(np.sum(gradient * direction)) - rise / 2
        yield name, abs(error) / STEP / max(float(np.linalg.norm(gradient)), 1e-3)


def _differentiate(model: Any, ids: Any, targets: Any, memory: Any, span: AttentionSpan) -> list:
    """Returns the compiled gradients of the mean loss, in the order of `trainable_variables`."""
    import keras

    ids, targets = (keras.ops.convert_to_tensor(x, dtype="int32") for x in (ids, targets))
    memory = tuple(keras.ops.convert_to_tensor(x, dtype="float32") for x in memory)
    if not is_jax():
        from txl_tf.models.compilation import compile_function
        from txl_tf.training.step import compute_gradients

        return compile_function(compute_gradients, "auto")(model, ids, targets, memory, span=span)[
            1
        ]
    import jax

    def compute_loss(weights: Any) -> Any:
        mapping = zip(model.trainable_variables, weights, strict=True)
        with keras.StatelessScope(state_mapping=mapping):
            hidden, _ = model(ids, memory, span=span, training=True)
            return keras.ops.mean(model.nll(hidden, targets))

    return jax.jit(jax.grad(compute_loss))([x.value for x in model.trainable_variables])


def _multiply(left: np.ndarray, right: np.ndarray, dtype: str) -> Any:
    from keras import ops

    product = ops.matmul(ops.cast(left, dtype), ops.cast(right, dtype))
    return ops.cast(product, "float32")


def _read_variables(model: Any) -> dict[str, np.ndarray]:
    """Returns the weights by their names in the 2019 release."""
    import keras

    from txl_tf.release.names import SCOPE, list_entries

    entries = list_entries(model)
    return {SCOPE + name: keras.ops.convert_to_numpy(target) for name, target in entries}


def _count(names: Any) -> str:
    """Returns the distinct names with their counts.

    >>> _count(["CPU", "NVIDIA H100", "NVIDIA H100"])
    '1 x CPU, 2 x NVIDIA H100'
    """
    counts = collections.Counter(names)
    return ", ".join(f"{count} x {name}" for name, count in counts.items())
