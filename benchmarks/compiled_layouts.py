"""Data and model parallel steps of Keras' JAX backend, compiled for TPUs: no chip is needed.

KERAS_BACKEND=jax python -m benchmarks.compiled_layouts --models bytes:1 --grids v5e:2x2:1,v5e:2x2:4
KERAS_BACKEND=jax python -m benchmarks.compiled_layouts --models wt103_large:2 --grids v5e:16x16:2

It needs the extra `compilers`. A grid is a number of TPUs, as for `benchmarks.compiled`, and how
many of them share a model: heads and feed-forward layers are divided over them, the rows over the
others. The step and the layout are those of `examples/model_parallel.py`.
"""

import os
import re
import sys
import time
from typing import Any

from absl import flags

from benchmarks import chips
from benchmarks.chip_reports import Report, Reports, fill_report
from benchmarks.works import SHAPES, Shape
from examples import model_parallel
from txl_tf.config import AttentionSpan, ModelConfig, TrainConfig
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def describe_step(
    config: ModelConfig, training: TrainConfig, mesh: Any, policy: str, *, remat: bool
) -> tuple[Any, Any, Any]:
    """Returns the step, and the shapes and layouts of its state and of its ids."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from txl_tf.models.transformer_xl import TransformerXL

    axes = model_parallel.list_axes(config, mesh.shape["model"])
    model = TransformerXL(config, seed=0, remat=remat, dtype=policy)
    optimizer = model_parallel.make_optimizer(model)

    def describe(variables: Any) -> list[Any]:
        """Returns shapes, dtypes and layouts of variables."""
        specs = []
        for each in variables:
            found = [value for path, value in axes.items() if re.fullmatch(path, each.path)]
            layout = NamedSharding(mesh, PartitionSpec(*(found[0] if found else ())))
            value = each.value
            specs.append(jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=layout))
        return specs

    def describe_rows(*shape: int, dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(
            (training.train_batch_size, *shape),
            dtype,
            sharding=NamedSharding(mesh, PartitionSpec("batch")),
        )

    states = describe_rows(training.mem_len, config.d_model, dtype=model.compute_dtype)
    state = (
        describe(model.trainable_variables),
        describe(optimizer.variables),
        describe(model.non_trainable_variables),
        (states,) * config.n_layer,
    )
    layouts = jax.tree.map(lambda each: each.sharding, state)
    step = jax.jit(
        model_parallel.make_step(model, optimizer, AttentionSpan(training.mem_len), mesh),
        donate_argnums=0,
        out_shardings=(layouts, NamedSharding(mesh, PartitionSpec())),
    )
    return step, state, describe_rows(training.tgt_len + 1, dtype=np.int32)


def report_step(name: str, grid: str, options: flags.FlagValues, reports: Reports) -> None:
    """Compiles the training step of a preset for a grid of chips, if its report is not there."""
    import jax
    import numpy as np
    from jax.sharding import Mesh

    base, _, n_layer = name.partition(":")
    chip, _, parts = grid.rpartition(":")
    shape = SHAPES[base] if base in SHAPES else Shape.from_preset(base)
    shape = shape._replace(
        n_layer=int(n_layer or shape.n_layer), batch_size=options.batch_size or shape.batch_size
    )
    config, training = shape.make_configs(options.dropout)
    devices, model_axis, n_rows = chips.open_devices(chip), int(parts), shape.batch_size
    settings = {
        "batch_size": n_rows,
        "model_axis": model_axis,
        "precision": options.precision,
        "dropout": options.dropout,
        "remat": options.remat,
        "effort": options.effort,
    }
    report = Report(name, "train", chip, len(devices), settings)
    if known := reports.find(report):
        print(known.format())
        return
    mesh = Mesh(np.array(devices).reshape(-1, model_axis), ("batch", "model"))
    step, state, ids = describe_step(
        config, training, mesh, POLICIES[options.precision], remat=options.remat
    )
    lowered = step.trace(state, ids).lower(lowering_platforms=("tpu",))
    start = time.perf_counter()
    try:
        compiled = lowered.compile({"exec_time_optimization_effort": options.effort})
    except jax.errors.JaxRuntimeError as error:
        needed = chips.find_needed_bytes(str(error))
        reports.add(report._replace(reason=str(error).splitlines()[0], temporary_bytes=needed))
        return
    seconds = time.perf_counter() - start
    described = chips.describe_executable(compiled.runtime_executable(), seconds)
    reports.add(fill_report(report, described, n_rows * training.tgt_len))


def print_reports(options: flags.FlagValues) -> None:
    """Compiles each model for each grid, prints what is said, and writes it as JSON.

    Raises:
        UserError: If Keras does not run on JAX, or a compiler is not installed.
    """
    if os.environ.get("KERAS_BACKEND") != "jax":
        raise UserError("the environment variable KERAS_BACKEND must be jax")
    chips.prepare_compilers()
    reports = Reports(options.json, resumes=True)
    for name in options.models:
        for grid in options.grids:
            report_step(name, grid, options, reports)


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    text = "Presets, each with a number of layers after a colon if not all are wanted."
    define_flag(options, "models", list, ["bytes"], text)
    text = "TPUs, and after a colon how many of them share a model."
    define_flag(options, "grids", list, ["v5e:2x2:1", "v5e:2x2:4"], text)
    text = "Rows of all chips. [default: those of the preset]"
    define_flag(options, "batch_size", int, None, text, lower_bound=1)
    text = "Precision of hidden states, memory and products."
    define_flag(options, "precision", str, "bfloat16", text, choices=POLICIES)
    define_flag(options, "dropout", float, 0.1, "Rate of all dropout.", lower_bound=0)
    text = "Compute layers again in the backward pass."
    define_flag(options, "remat", bool, False, text)
    text = "How hard the compiler optimizes, from -1 to 1."
    define_flag(options, "effort", float, 0.0, text, lower_bound=-1)
    text = "File for all reports; what is in it is not compiled again. [default: none]"
    define_flag(options, "json", str, None, text, is_path=True)
    return run_program(__doc__, options, print_reports, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
