"""Speed of training and reading on an accelerator, by the JAX backend of Keras.

KERAS_BACKEND=jax python -m benchmarks.accelerator
KERAS_BACKEND=jax python -m benchmarks.accelerator --works base:192:32,large:384:8 --json gpu.json

It needs jax, keras, absl-py and tqdm, but no TensorFlow: layers and model run on any backend.
A work is a preset of WikiText-103 (base or large), the segment length T = M, and the number of rows
B. A training step is forward and backward pass, clipping and Adam, with dropout; "read" is a
segment and its losses with the memory of hidden states. The share is that of the peak that a large
matrix product of the same precision reaches in the same run. The limits of a training step are the
operations and bytes that the compiler counts in it, at that peak and at the speed of a copy.
"""

import os
import statistics
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from absl import flags

from benchmarks.step_costs import count_step_flops
from benchmarks.tables import define_json_flag, write_json
from benchmarks.works import Shape, draw_ids, repeat
from txl_tf.config import AttentionSpan
from txl_tf.errors import UserError
from txl_tf.layers.fused.fusion import PLAIN, Engine, use_engine
from txl_tf.layers.fused.tpu_attention import TPU
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

MATRIX = 8192  # rows and columns of the product that measures the peak
COPIED = 2**28  # numbers of the copy that measures the bandwidth
STEPS_PER_CALL = 4
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


class Work(NamedTuple):
    """A preset with another segment length and batch size.

    Args:
        size: "base" or "large", of WikiText-103.
        tgt_len: Segment and memory length T = M.
        batch_size: Number of rows B.
    """

    size: str
    tgt_len: int
    batch_size: int

    @classmethod
    def parse(cls, text: str) -> "Work":
        """Returns the work of a text such as "base:192:32".

        Raises:
            UserError: If the text is not of this form.
        """
        size, _, numbers = text.partition(":")
        lengths = numbers.split(":")
        if size not in ("base", "large") or len(lengths) != 2 or not all(map(str.isdigit, lengths)):
            raise UserError(f"`works` must be such as base:192:32. Received: {text}")
        return cls(size, *map(int, lengths))

    @property
    def shape(self) -> Shape:
        """The model and the batch."""
        shape = Shape.from_preset(f"wt103_{self.size}")
        return shape._replace(
            tgt_len=self.tgt_len, mem_len=self.tgt_len, batch_size=self.batch_size
        )


class Steps:
    """Training steps of a model, several in a compiled call.

    Args:
        work: The preset and its batch.
        precision: "float32" or "bfloat16".
        dropout: The rate of all dropout.
        remat: Whether the backward pass computes the layers again.
        engine: What computes the attention.
    """

    def __init__(self, work: Work, precision: str, dropout: float, *, remat: bool, engine: Engine):
        from txl_tf.models.transformer_xl import TransformerXL

        self.work, shape = work, work.shape
        self._engine = engine
        self.costs: dict[str, float] = {}
        config, _ = shape.make_configs(dropout)
        self.model = TransformerXL(config, seed=0, remat=remat, dtype=POLICIES[precision])
        self.span = AttentionSpan(shape.mem_len)
        size = (STEPS_PER_CALL, shape.batch_size, shape.tgt_len + 1)
        self.ids = draw_ids(shape.n_token, "zipf", size)

    def make_training_call(self) -> Callable[[], object]:
        """Returns a call that makes `STEPS_PER_CALL` steps."""
        import jax
        import jax.numpy as jnp

        weights = [variable.value for variable in self.model.trainable_variables]
        seeds = [variable.value for variable in self.model.non_trainable_variables]
        moments = [jnp.zeros_like(weight) for weight in weights]
        memory = self.model.initial_memory(self.work.batch_size, self.span.mem_len)
        state = (weights, moments, moments, seeds, memory, 0.0)
        state = jax.tree.map(lambda x: jnp.array(x, copy=True), state)  # each call takes it over

        def make_step(state: Any, ids: Any) -> Any:
            weights, first, second, seeds, memory, count = state
            differentiate = jax.value_and_grad(self._compute_loss, has_aux=True)
            (loss, (memory, seeds)), gradients = differentiate(weights, seeds, ids, memory)
            norm = jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in gradients))
            gradients = [x * jnp.minimum(1.0, 0.25 / norm) for x in gradients]
            first = [0.9 * m + 0.1 * g for m, g in zip(first, gradients, strict=True)]
            second = [0.999 * v + 0.001 * g * g for v, g in zip(second, gradients, strict=True)]
            count += 1
            rate = 2.5e-4 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
            weights = [
                w - rate * m / (jnp.sqrt(v) + 1e-8)
                for w, m, v in zip(weights, first, second, strict=True)
            ]
            return (weights, first, second, seeds, memory, count), loss

        make_steps = (
            jax.jit(lambda state, ids: jax.lax.scan(make_step, state, ids), donate_argnums=0)
            .lower(state, self.ids)
            .compile()
        )
        self.costs = make_steps.cost_analysis() or {}  # of one step: a loop counts as one run

        def call() -> object:
            nonlocal state
            state, losses = make_steps(state, self.ids)
            return np.asarray(losses)

        return call

    def _compute_loss(self, weights: Any, seeds: Any, ids: Any, memory: Any) -> Any:
        import keras

        with use_engine(self._engine):
            (hidden, memory), seeds = self.model.stateless_call(
                weights, seeds, ids[:, :-1], memory, span=self.span, training=True
            )
        scope = zip(self.model.trainable_variables, weights, strict=True)
        with keras.StatelessScope(state_mapping=scope):
            return keras.ops.mean(self.model.nll(hidden, ids[:, 1:])), (memory, seeds)

    def make_reading_call(self) -> Callable[[], object]:
        """Returns a call that reads `STEPS_PER_CALL` segments and computes their losses."""
        import jax
        import keras

        weights = [variable.value for variable in self.model.trainable_variables]
        memory = self.model.initial_memory(self.work.batch_size, self.span.mem_len)
        span = AttentionSpan(self.span.mem_len, same_length=True)

        def read(weights: Any, memory: Any, ids: Any) -> Any:
            scope = zip(self.model.trainable_variables, weights, strict=True)
            with keras.StatelessScope(state_mapping=scope):
                hidden, memory = self.model(ids[:, :-1], memory, span=span)
                return memory, keras.ops.sum(self.model.nll(hidden, ids[:, 1:]))

        read_all = jax.jit(
            lambda weights, memory, ids: jax.lax.scan(
                lambda memory, ids: read(weights, memory, ids), memory, ids
            )
        )

        def call() -> object:
            nonlocal memory
            memory, nats = read_all(weights, memory, self.ids)
            return np.asarray(nats)

        return call


def measure(call: Callable[[], object], seconds: float) -> float:
    """Returns the median seconds of a call, compiled before."""
    return statistics.median(repeat(call, seconds))


def measure_peak(precision: str) -> float:
    """Returns the FLOP/s of a large matrix product."""
    import jax
    import jax.numpy as jnp

    size = MATRIX if jax.default_backend() != "cpu" else MATRIX // 8
    matrix = jax.random.normal(jax.random.key(0), (size, size), getattr(jnp, precision))
    multiply = jax.jit(lambda left, right: left @ right)
    return 2 * size**3 / measure(lambda: multiply(matrix, matrix).block_until_ready(), 1.0)


def measure_bandwidth() -> float:
    """Returns the bytes/s, read and written, of a copy of a large array."""
    import jax
    import jax.numpy as jnp

    array = jnp.ones(COPIED if jax.default_backend() != "cpu" else COPIED // 16)
    add = jax.jit(lambda x: x + 1)
    return 2 * array.nbytes / measure(lambda: add(array).block_until_ready(), 1.0)


def print_speeds(options: flags.FlagValues) -> None:
    """Measures the works, prints a line for each, and writes them as JSON if wanted.

    Raises:
        UserError: If Keras does not run on JAX, or a work is not of the form base:192:32.
    """
    if os.environ.get("KERAS_BACKEND") != "jax":
        raise UserError("the environment variable KERAS_BACKEND must be jax")
    import jax

    works = [Work.parse(text) for text in options.works]
    peak, bandwidth = measure_peak(options.precision), measure_bandwidth()
    device = jax.devices()[0].device_kind
    print(
        f"{device}: products of {options.precision} {peak / 1e12:,.1f} TFLOP/s, "
        f"a copy {bandwidth / 1e9:,.0f} GB/s",
        flush=True,
    )
    records = []
    for work in works:
        shape = work.shape
        engine = TPU if options.kernels else PLAIN
        steps = Steps(work, options.precision, options.dropout, remat=options.remat, engine=engine)
        step_tokens = shape.batch_size * shape.tgt_len
        tokens = STEPS_PER_CALL * step_tokens
        train = tokens / measure(steps.make_training_call(), options.seconds)
        read = tokens / measure(steps.make_reading_call(), options.seconds)
        model, training = shape.make_configs(options.dropout)
        shares = shape.list_bin_shares("zipf")
        flops = count_step_flops(model, training, bin_shares=shares)
        share = train * flops / step_tokens / peak
        limits = {
            name: step_tokens * speed / steps.costs[key] if steps.costs.get(key) else None
            for name, key, speed in (
                ("matrix_limit", "flops", peak),
                ("memory_limit", "bytes accessed", bandwidth),
            )
        }
        memory_bytes = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
        records.append(
            {
                "work": work._asdict(),
                "train_tokens_per_second": train,
                "read_tokens_per_second": read,
                "share_of_peak": share,
                **limits,
                "peak_memory_bytes": memory_bytes,
            }
        )
        print(
            f"wt103_{work.size}, T = M = {work.tgt_len}, B = {work.batch_size}: "
            f"train {train:,.0f} tokens/s ({share:.1%} of the peak), read {read:,.0f} tokens/s, "
            f"{memory_bytes / 2**30:,.1f} GiB",
            flush=True,
        )
        if all(limits.values()):
            print(
                f"  the compiler's limits: {limits['matrix_limit']:,.0f} tokens/s by products, "
                f"{limits['memory_limit']:,.0f} by memory",
                flush=True,
            )
    machine = {"flops_per_second": peak, "copied_bytes_per_second": bandwidth}
    write_json(options, {"device": device, **machine, "works": records})


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    text = "Works to measure: base or large, T = M, and B, with colons between them."
    define_flag(options, "works", list, ["base:192:32", "large:384:8"], text)
    text = "Precision of hidden states, memory and products."
    define_flag(options, "precision", str, "bfloat16", text, choices=POLICIES)
    define_flag(options, "dropout", float, 0.1, "Rate of all dropout.", lower_bound=0)
    define_flag(options, "remat", bool, False, "Compute layers again in the backward pass.")
    text = "Attention in kernels, on a TPU from v5 on, as --jit=kernels trains."
    define_flag(options, "kernels", bool, False, text)
    define_flag(options, "seconds", float, 5.0, "Time to measure each.", lower_bound=0)
    define_json_flag(options)
    return run_program(__doc__, options, print_speeds, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
