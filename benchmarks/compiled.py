"""Compiles a training step for a chip that need not be present; reports its memory and operations.

python -m benchmarks.compiled --models enwik8_base --batch_size 22 --chips v5e,h100
python -m benchmarks.compiled --models wt103_large --batch_size 16 --remat --chips v5e
python -m benchmarks.compiled --models wt103_base --chips h100 --largest_batch

A model is a preset; to compile fewer layers, append a colon and their number. The program compiles
the step of `CausalLM.fit` on JAX: forward and backward pass, the optimizer of the preset, and the
memory. With several replicas, each needs somewhat more, for the gradients that it receives. Chips
are TPUs and GPUs, whose compilers come with the extra `compilers`, and this machine, "cpu". The
compilers for GPUs report only the memory.

"Matrix limit" is the tokens per second if all operations ran at the bfloat16 peak; "memory limit",
if all bytes moved at full memory bandwidth: no program can be faster. Both come from XLA's cost
analysis, which counts a loop, such as that over the bins of a large vocabulary, as a single pass.
"""

import dataclasses
import functools
import itertools
import math
import os
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

from absl import flags

from benchmarks.tables import define_json_flag, write_json
from benchmarks.works import measure_apart
from txl_tf import presets
from txl_tf.config import AttentionSpan, ModelConfig, TrainConfig
from txl_tf.errors import UserError
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

GIB = 2**30
FITS = 0.97  # the share of the memory that a program may use; the runtime needs the rest
MAX_TRIED = 7  # batch sizes to try, to find the largest
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
CHANGES = ("precision", "tgt_len", "mem_len", "remat", "optimizer")
ENVIRONMENT = {
    **{"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"},
    # What libtpu would otherwise request from the TPU host.
    **{"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_ID": "0"},
    **{"TPU_WORKER_HOSTNAMES": "localhost", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"},
    # Without a GPU, no kernel can be timed.
    "XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false",
}


class Chip(NamedTuple):
    """A kind of chip, with its limits according to the vendor's data sheet.

    Args:
        flops: FLOP/s of bfloat16 products with float32 sums.
        bandwidth: Memory bandwidth in bytes/s.
        memory: Memory in bytes.
        platform: The name of the platform in JAX.
        topology: For a TPU, its smallest host, such as "2x2"; for a GPU, what the compiler must
            know about it.
    """

    flops: float
    bandwidth: float
    memory: float
    platform: str
    topology: str = ""


# A GpuTargetConfigProto, with numbers from the data sheet.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472 core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352000000000 l2_cache_size: 52428800 device_memory_size: 84978434048
  cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
CHIPS = {
    "cpu": Chip(math.inf, math.inf, math.inf, "cpu"),
    "v5e": Chip(197e12, 0.819e12, 16 * GIB, "tpu", "2x2"),
    "v5p": Chip(459e12, 2.765e12, 95 * GIB, "tpu", "2x2x1"),
    "v6e": Chip(918e12, 1.64e12, 32 * GIB, "tpu", "2x2"),
    "h100": Chip(989e12, 3.352e12, 80 * GIB, "cuda", _H100),
}


class Report(NamedTuple):
    """What a compiler reports; 0 for what it does not report.

    Args:
        reason: Why the compiler rejects the program, in its own words; empty if it does not.
        memory_bytes: The memory that the program needs, including its arguments.
        argument_bytes: That of the weights, optimizer, memory of the model and batch.
        flops: Operations in a step.
        moved_bytes: Bytes that the operations in a step read and write.
    """

    model: str
    chip: str
    rows: int
    reason: str = ""
    seconds: float = 0.0
    memory_bytes: int = 0
    argument_bytes: int = 0
    fits: bool = False
    flops: float = 0.0
    moved_bytes: float = 0.0
    tokens: int = 0

    def format(self) -> str:
        """Returns the lines that are printed."""
        head, chip = f"{self.model}, {self.rows:,} rows, {self.chip}: ", CHIPS[self.chip]
        if self.reason:
            return f"{head}does not compile: {self.reason}"
        text = (
            f"{head}compiled in {self.seconds:,.0f} s\n"
            f"  memory {self.memory_bytes / GIB:.2f} GiB ({self.argument_bytes / GIB:.2f} of "
            f"arguments), {'fits' if self.fits else 'does not fit'}"
        )
        if not self.flops:
            return f"{text}\n  the compiler tells neither operations nor bytes"
        return (
            f"{text}\n"
            f"  {self.flops / 1e9:,.1f} GFLOP, {self.moved_bytes / 1e9:,.2f} GB "
            f"({self.moved_bytes / self.tokens / 1e6:,.3f} MB a token)\n"
            f"  matrix limit {self.tokens * chip.flops / self.flops:,.0f} tokens/s, memory limit "
            f"{self.tokens * chip.bandwidth / self.moved_bytes:,.0f} tokens/s"
        )


def open_device(name: str) -> Any:
    """Returns the device of a chip.

    Raises:
        UserError: If its compiler is not installed.
    """
    import jax
    from jax.experimental import topologies

    chip = CHIPS[name]
    if name == "cpu":
        return jax.devices("cpu")[0]
    options = {"topology_name": f"{name}:{chip.topology}"}
    if chip.platform == "cuda":
        options = {"topology_name": "", "topology": "1x1x1", "target_config": chip.topology}
    try:
        return topologies.get_topology_desc(platform=chip.platform, **options).devices[0]
    except Exception as error:  # JAX raises several types
        raise UserError(f"no compiler for {name}: install txl_tf[compilers] ({error})") from error


def make_report(name: str, model: ModelConfig, training: TrainConfig, chip: str) -> Report:
    """Compiles a training step for a chip and returns a report; to be run in a new process."""
    os.environ.update(ENVIRONMENT)
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from txl_tf import CausalLM

    rows = training.train_batch_size
    report, mesh = Report(name, chip, rows), Mesh(np.array([open_device(chip)]), ("replica",))
    lm = CausalLM(
        model,
        batch_size=rows,
        span=training.span,
        eval_span=AttentionSpan(0),  # no memory for evaluations
        remat=training.remat,
        dtype=POLICIES[training.precision],
    )
    lm.compile(lm.make_optimizer(training))
    lm.optimizer.build(lm.trainable_variables)
    place = NamedSharding(mesh, PartitionSpec())

    def describe(value: Any) -> Any:
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=place)

    groups = (lm.trainable_variables, lm.non_trainable_variables, lm.optimizer.variables)
    state = tuple([describe(x.value) for x in group] for group in (*groups, lm.metrics_variables))
    ids = describe(np.zeros((rows, training.tgt_len), np.int32))
    step = jax.jit(lm.train_step, donate_argnums=0, out_shardings=place)
    lowered = step.trace(state, (ids, ids, None)).lower(lowering_platforms=(CHIPS[chip].platform,))
    start = time.perf_counter()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        reason = re.sub(r"\s+", " ", str(error))[:300]
        return report._replace(reason=reason, memory_bytes=find_needed_bytes(str(error)))
    seconds = time.perf_counter() - start
    costs, sizes = compiled.cost_analysis() or {}, compiled.memory_analysis()  # GPUs have no costs
    n_new = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    arguments = sizes.argument_size_in_bytes + n_new
    memory = arguments + sizes.temp_size_in_bytes
    return report._replace(
        seconds=seconds,
        memory_bytes=memory,
        argument_bytes=arguments,
        fits=memory <= FITS * CHIPS[chip].memory,
        flops=costs.get("flops", 0.0),
        moved_bytes=costs.get("bytes accessed", 0.0),
        tokens=rows * training.tgt_len,
    )


def find_needed_bytes(reason: str) -> int:
    """Returns the bytes that a rejected program needs, according to the compiler; 0 if unknown.

    >>> find_needed_bytes("the total memory required for HLO temporaries (2.50G) exceeds 1.00G")
    2684354560
    """
    found = re.search(r"(?:temporaries \(|Used )([\d.]+)([MG])", reason)
    return int(float(found[1]) * {"M": 2**20, "G": GIB}[found[2]]) if found else 0


def find_largest_batch(report_rows: Callable[[int], Report], limit: float) -> Report | None:
    """Returns the report of the largest batch that fits; `None` if not even one row does.

    Memory is nearly linear in the number of rows: a line through two batch sizes predicts the
    largest, and compiling each prediction confirms or corrects the line.

    Args:
        report_rows: Compiles a batch with a number of rows.
        limit: The memory that a program may use, in bytes.
    """
    tried = {rows: report_rows(rows) for rows in (2, 4)}
    while len(tried) < MAX_TRIED:
        low = max((rows for rows, report in tried.items() if report.fits), default=0)
        high = min((rows for rows, report in tried.items() if not report.fits), default=2**31)
        known = [(rows, report.memory_bytes) for rows, report in tried.items()]
        known.sort(key=lambda item: abs(item[1] - limit))
        (rows, size), (other, other_size) = known[:2]
        slope = max((size - other_size) / (rows - other), 1.0)
        predicted = min(max(rows + int((limit - size) // slope), low), high - 1)
        if predicted == low:
            break
        tried[predicted] = report_rows(predicted)
    fitting = [rows for rows, report in tried.items() if report.fits]
    return tried[max(fitting)] if fitting else None


def read_settings(name: str, options: flags.FlagValues) -> tuple[ModelConfig, TrainConfig]:
    """Returns the configs of a preset, such as "enwik8_base:2", with the changes of the flags."""
    base, _, n_layer = name.partition(":")
    preset = presets.get(base)
    model, changes = preset.model, {name: options[name].value for name in CHANGES}
    if n_layer:
        model = dataclasses.replace(model, n_layer=int(n_layer))
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    return model, dataclasses.replace(preset.training, **given)


def print_reports(options: flags.FlagValues) -> None:
    """Compiles each model for each chip, prints the reports, and writes them as JSON."""
    reports: list[Report] = []

    def report(name: str, chip: str, rows: int | None = None) -> Report:
        model, training = read_settings(name, options)
        rows = rows or options.batch_size or training.train_batch_size
        training = dataclasses.replace(training, train_batch_size=rows)
        try:
            made = measure_apart(make_report, name, model, training, chip)
        except BrokenProcessPool:
            made = Report(name, chip, rows, "the compiler crashed")
        print(made.format(), flush=True)
        reports.append(made)
        write_json(options, [each._asdict() for each in reports])
        return made

    for name, chip in itertools.product(options.models, options.chips):
        if not options.largest_batch or chip == "cpu":
            report(name, chip)
            continue
        report_rows = functools.partial(report, name, chip)
        largest = find_largest_batch(report_rows, FITS * CHIPS[chip].memory)
        print(f"  the largest batch that fits: {largest.rows if largest else 0:,} rows", flush=True)


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define = functools.partial(define_flag, options)
    text = "Presets; PRESET:N compiles only N layers."
    define("models", list, ["enwik8_base"], text)
    define("chips", list, ["v5e", "h100"], "Chips to compile for.", choices=CHIPS)
    text = "Precision of hidden states, memory and products."
    define("precision", str, "bfloat16", text, choices=POLICIES)
    text = "Find the largest batch that fits into memory, with a few compilations."
    define("largest_batch", bool, False, text)
    for name in ("batch_size", "tgt_len", "mem_len", "remat", "optimizer"):
        kind = {"remat": bool, "optimizer": str}.get(name, int)
        define(name, kind, None, "As in `txl train`. [default: that of the preset]")
    define_json_flag(options)
    return run_program(__doc__, options, print_reports, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
