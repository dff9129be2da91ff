"""Trains on several devices, each with a part of every layer, with the JAX backend of Keras.

export KERAS_BACKEND=jax
XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/model_parallel.py --model_axis 2

The devices form a grid: along "batch" they have different rows, along "model" different heads and
columns of the feed-forward layers. `list_axes` declares this for the weights, and the compiler does
the rest: losses are those of one device. `--model_axis 1` is data parallel. The text is this file.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from txl_tf.config import AttentionSpan, ModelConfig
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

CONFIG = ModelConfig(
    n_token=256, n_layer=2, d_model=64, d_embed=64, n_head=4, d_head=16, d_inner=256, dropout=0.1
)
BATCH_SIZE, TGT_LEN, MEM_LEN = 8, 32, 32


def list_axes(config: ModelConfig, model_axis: int) -> dict[str, tuple[str | None, ...]]:
    """Returns, by the path of a weight, the grid axis over which each of its axes is divided.

    The keys are regular expressions, as in `keras.distribution.LayoutMap`; "." matches "/" in a
    weight's path and "_" in that of its moments. A weight that no key matches is on all devices.

    Args:
        config: The model.
        model_axis: The number of devices along "model"; it must divide heads and `d_inner`.
    """
    biases = (None,) * config.untie_r + ("model", None)
    axes: dict[str, tuple[str | None, ...]] = {
        # Queries, keys and values lie side by side, so equal parts of their kernel are not heads,
        # and the compiler exchanges its products.
        ".*content_bias.*": biases,
        ".*position_bias.*": biases,
        ".*attention.qkv_kernel.*": (None, "model"),
        ".*attention.r_kernel.*": (None, "model"),
        ".*attention.o_kernel.*": ("model", None),
        ".*feed_forward.inner.kernel.*": (None, "model"),
        ".*feed_forward.inner.bias.*": ("model",),
        ".*feed_forward.outer.kernel.*": ("model", None),
    }
    for index, (low, high) in enumerate(config.bins):
        if (high - low) % model_axis == 0:
            axes[f".*embedding.table_{index}.*"] = ("model", None)
            axes[f".*softmax.bias_{index}.*"] = ("model",)
    return axes


def make_step(
    model: Any, optimizer: Any, span: AttentionSpan, mesh: Any
) -> Callable[[Any, Any], Any]:
    """Returns a training step, for `jax.jit`, on a JAX mesh.

    It takes the state that `make_state` returns and ids (B, T + 1), and returns the new state and
    the mean loss in nats.
    """
    import jax
    import keras

    def score(weights: Any, hidden: Any, targets: Any) -> Any:
        scope = zip(model.trainable_variables, weights, strict=True)
        with keras.StatelessScope(state_mapping=scope):
            return model.nll(hidden, targets)

    # With cutoffs, the loss sorts tokens by bin. Each device should sort those of its own rows;
    # otherwise, all devices compute the losses of all rows.
    rows = jax.sharding.PartitionSpec("batch")
    score_rows = score
    if mesh.shape["batch"] > 1:
        score_rows = jax.shard_map(
            score,
            mesh=mesh,
            in_specs=(jax.sharding.PartitionSpec(), rows, rows),
            out_specs=rows,
            axis_names={"batch"},
            check_vma=False,
        )

    def compute_loss(weights: Any, seeds: Any, memory: Any, ids: Any) -> Any:
        (hidden, memory), seeds = model.stateless_call(
            weights, seeds, ids[:, :-1], memory, span=span, training=True
        )
        return keras.ops.mean(score_rows(weights, hidden, ids[:, 1:])), (seeds, memory)

    def step(state: Any, ids: Any) -> Any:
        weights, moments, *rest = state
        differentiate = jax.value_and_grad(compute_loss, has_aux=True)
        (loss, rest), gradients = differentiate(weights, *rest, ids)
        weights, moments = optimizer.stateless_apply(moments, gradients, weights)
        return (weights, moments, *rest), loss

    return step


def make_state(model: Any, optimizer: Any, memory: Any) -> Any:
    """Returns the state that a step changes: weights, optimizer variables, seeds and memory."""
    parts = (model.trainable_variables, optimizer.variables, model.non_trainable_variables)
    return (*([variable.value for variable in part] for part in parts), memory)


def make_optimizer(model: Any) -> Any:
    """Returns Adam with gradient clipping, built for the model."""
    import keras

    optimizer = keras.optimizers.Adam(2.5e-3, global_clipnorm=0.25)
    optimizer.build(model.trainable_variables)
    return optimizer


def train(options: flags.FlagValues) -> None:
    """Trains some steps and prints their losses.

    Raises:
        UserError: If Keras does not run on JAX, or the devices cannot be divided that way.
    """
    if os.environ.get("KERAS_BACKEND") != "jax":
        raise UserError("the environment variable KERAS_BACKEND must be jax")
    import jax
    import keras

    from txl_tf.models.transformer_xl import TransformerXL

    devices, model_axis = keras.distribution.list_devices(), options.model_axis
    shape = (len(devices) // model_axis, model_axis)
    if len(devices) % model_axis or CONFIG.n_head % model_axis or BATCH_SIZE % shape[0]:
        raise UserError(
            f"`model_axis` must divide {len(devices)} devices and {CONFIG.n_head} heads, and the "
            f"devices {BATCH_SIZE} rows. Received: {model_axis}"
        )
    mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), devices)
    layouts = keras.distribution.LayoutMap(mesh)
    for path, axes in list_axes(CONFIG, model_axis).items():
        layouts[path] = axes
    distribution = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    keras.distribution.set_distribution(distribution)

    model = TransformerXL(CONFIG, seed=0)
    optimizer = make_optimizer(model)
    rows = keras.distribution.TensorLayout(("batch",), mesh)

    def distribute(tensor: Any) -> Any:
        return keras.distribution.distribute_tensor(tensor, rows)

    text = np.frombuffer(Path(__file__).read_bytes(), np.uint8).astype(np.int32)
    lanes = np.stack(np.split(text[: len(text) // BATCH_SIZE * BATCH_SIZE], BATCH_SIZE))
    memory = tuple(map(distribute, model.initial_memory(BATCH_SIZE, MEM_LEN)))
    state = make_state(model, optimizer, memory)
    step = make_step(model, optimizer, AttentionSpan(MEM_LEN), mesh.backend_mesh)
    step = jax.jit(step, donate_argnums=0)
    parts = sum(weight.addressable_shards[0].data.nbytes for weight in state[0])
    print(f"{shape[0]} x {shape[1]} devices, {parts:,} bytes of weights on each")
    for index in range(options.steps):
        start = index * TGT_LEN % (lanes.shape[1] - TGT_LEN)
        state, loss = step(state, distribute(lanes[:, start : start + TGT_LEN + 1]))
        print(f"step {index + 1}: {float(loss):.7f} nats")


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    text = "Devices over which heads and feed-forward layers are divided."
    define_flag(options, "model_axis", int, 2, text, lower_bound=1)
    define_flag(options, "steps", int, 5, "Number of training steps.", lower_bound=1)
    return run_program(__doc__, options, train, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
