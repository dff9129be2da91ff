"""Chips whose compilers run on any machine: nothing needs the chip itself.

The compiler of TPUs comes with `libtpu`, that of GPUs with `jax-cuda12-pjrt`; both are in the extra
`compilers`. They say whether a program compiles, how much memory it takes, and, by
`benchmarks.program_costs`, what it computes and moves. They do not say how long it takes.
"""

import os
import re
import time
from typing import Any, NamedTuple

import numpy as np

from txl_tf.errors import UserError

GIB = 2**30

_TPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_MIN_LOG_LEVEL": "2",
}

# The error of the compiler for a product that its autotuning, which needs a GPU, gives to cuBLAS.
_NO_TILES = "Couldn't find output tile sizes"


class Chip(NamedTuple):
    """A kind of chip, with its limits by the vendor's data sheet.

    Args:
        platform: "tpu" or "cuda".
        has_kernels: Whether the kernels of `txl_tf.layers.fused.tpu_kernels` compile for it.
        flops: Products of bfloat16 with sums in float32, FLOP/s.
        bandwidth: Bytes/s of the memory.
        memory: Bytes of the memory that a program may use.
        host: The topology of the smallest host, such as "2x2"; of a TPU only.
        gpu: What the compiler must know of a GPU; empty for a TPU.
    """

    platform: str
    has_kernels: bool
    flops: float
    bandwidth: float
    memory: float
    host: str = ""
    gpu: str = ""


def _describe_gpu(
    name: str, capability: tuple[int, int], n_cores: int, bandwidth: float, memory: int
) -> str:
    """Returns a GpuTargetConfigProto as a text."""
    major, minor = capability
    shared = 232448 if major > 8 else 166912
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: {shared + 1024}
  shared_memory_per_block_optin: {shared}
  core_count: {n_cores} fpus_per_core: {128 if major > 8 else 64}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth:.0f} l2_cache_size: {50 * 2**20 if major > 8 else 40 * 2**20}
  clock_rate_ghz: {1.98 if major > 8 else 1.41} device_memory_size: {memory}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} device_description_str: "{name}"
"""


CHIPS = {
    # A device is one of the two cores, with half of the chip.
    "v4": Chip("tpu", False, 137.5e12, 0.614e12, 16 * GIB, "2x2x1"),
    "v5e": Chip("tpu", True, 197e12, 0.819e12, 16 * GIB, "2x2"),
    "v5p": Chip("tpu", True, 459e12, 2.765e12, 95 * GIB, "2x2x1"),
    "v6e": Chip("tpu", True, 918e12, 1.64e12, 32 * GIB, "2x2"),
    "a100": Chip(
        *("cuda", False, 312e12, 2.039e12, 80 * GIB, ""),
        _describe_gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 2.039e12, 85_000_000_000),
    ),
    "h100": Chip(
        *("cuda", False, 989e12, 3.352e12, 80 * GIB, ""),
        _describe_gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 3.352e12, 84_978_434_048),
    ),
}


class Compiled(NamedTuple):
    """A program for a chip.

    Args:
        seconds: How long it took to compile.
        argument_bytes: Memory of the arguments, which are the weights, the optimizer, the state and
            the batch.
        temporary_bytes: Memory that the program takes besides.
        module: The optimized program, a serialized HloModuleProto.
        n_doubles: The number of operations in float64 that were asked for; a TPU has none, so its
            compiler makes others of them.
    """

    seconds: float
    argument_bytes: int
    temporary_bytes: int
    module: bytes
    n_doubles: int

    @property
    def memory_bytes(self) -> int:
        """The peak of the memory on a chip."""
        return self.argument_bytes + self.temporary_bytes


def prepare_compilers() -> None:
    """Sets what the compilers read from the environment. Call it before JAX is imported."""
    os.environ.update(_TPU_ENVIRONMENT)
    os.environ["JAX_PLATFORMS"] = "cpu"
    # Kernels are not timed: there is no device.
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_autotune_level=0".strip()


def open_devices(name: str) -> list[Any]:
    """Returns the devices of a chip, or of several: "v5e", "v5e:4x4", "h100", "h100:8".

    Raises:
        UserError: If there is no such chip, or its compiler is not installed.
    """
    from jax.experimental import topologies

    kind, _, layout = name.partition(":")
    if kind not in CHIPS:
        raise UserError(f"`chips` must be of {', '.join(CHIPS)}. Received: {name}")
    chip = CHIPS[kind]
    try:
        if chip.platform == "tpu":
            topology = topologies.get_topology_desc(
                platform="tpu", topology_name=f"{kind}:{layout or chip.host}"
            )
        else:
            topology = topologies.get_topology_desc(
                platform="cuda",
                topology_name="",
                target_config=chip.gpu,
                topology=f"1x1x{layout or 1}",
            )
    except Exception as error:  # JAX raises several kinds
        raise UserError(
            f"no compiler for {name}: install txl_tf[compilers] ({_first_line(error)})"
        ) from error
    return list(topology.devices) if layout else list(topology.devices)[:1]


def compile_stablehlo(module: bytes, devices: list[Any], *, effort: float = 0.0) -> Compiled:
    """Compiles a program, the same for each of the devices, which are its replicas.

    Args:
        module: StableHLO in its binary form.
        devices: The devices from `open_devices`.
        effort: How hard XLA optimizes for speed, from -1 to 1, where 0 is its default.

    Raises:
        UserError: If the compiler refuses it, with the compiler's reason.
    """
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir
    from jaxlib import _jax

    with mlir.make_ir_context():
        program = ir.Module.parse(module)
        lines = program.operation.get_asm(large_elements_limit=16).splitlines()
    options = _jax.CompileOptions()
    build = options.executable_build_options
    options.num_replicas = build.num_replicas = len(devices)
    options.num_partitions = build.num_partitions = 1
    assignment = np.array([[device.id] for device in devices])
    build.device_assignment = _jax.DeviceAssignment.create(assignment)
    build.exec_time_optimization_effort = effort
    start = time.perf_counter()
    for overrides in ([], [("xla_gpu_enable_triton_gemm", False)]):
        options.env_option_overrides = overrides
        try:
            executable = devices[0].client.compile(
                program, _jax.DeviceList(tuple(devices)), options
            )
        except Exception as error:
            if overrides or _NO_TILES not in str(error):
                raise UserError(_first_line(error)) from error
        else:
            break
    seconds = time.perf_counter() - start
    return describe_executable(executable, seconds, sum("f64" in line for line in lines))


def describe_executable(executable: Any, seconds: float, n_doubles: int = 0) -> Compiled:
    """Returns what XLA tells of an executable, whose compilation took `seconds`."""
    stats = executable.get_compiled_memory_stats()
    optimized = executable.hlo_modules()[0].as_serialized_hlo_module_proto()
    n_arguments = stats.argument_size_in_bytes + stats.output_size_in_bytes
    n_arguments -= stats.alias_size_in_bytes
    return Compiled(seconds, n_arguments, stats.temp_size_in_bytes, optimized, n_doubles)


def find_needed_bytes(reason: str) -> int:
    """Returns the memory that a refused program needs, by the compiler's words; 0 if not given.

    >>> find_needed_bytes("the total memory required for HLO temporaries (2.50G) exceeds 1.00G")
    2684354560
    """
    found = re.search(r"(?:temporaries \(|Used )([\d.]+)([MG])", reason)
    return int(float(found[1]) * (GIB if found[2] == "G" else 2**20)) if found else 0


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return re.sub(r"\s+", " ", lines[0])[:300] if lines else type(error).__name__
