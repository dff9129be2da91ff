"""Shows where the time of compiled calls goes, by XLA's own trace.

python -m benchmarks.profile
python -m benchmarks.profile --works generate-bytes --operations 20

Each work of `benchmarks.compare` runs in float32, compiled as a whole, in a process of its own, and
one call is traced. The first table divides the time of that call: at least one matrix product runs,
only other operations run, or none. A product that waits for memory counts as running. For each
work, another table shows the operations that take the most time; the layers of a model share a row.
Tracing slows small operations down; the tokens per second are those of a call without it.
"""

import collections
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from absl import flags

from benchmarks.compare import WORKS, describe, format_speed
from benchmarks.peers.protocol import Shape, Work
from benchmarks.tables import print_table
from benchmarks.works import (
    draw_ids,
    make_config,
    measure_apart,
    prepare_drawing,
    prepare_reading,
)
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

USUAL = [name for name in WORKS if not name.endswith(("-alone", "-wt103"))]
STEPS = 4  # of training, in a call
WARM_CALLS = 2
# These contain other operations.
CONTAINERS = ("while", "call", "conditional")
# An instruction: its name, shape and operation, and what TensorFlow calls it.
_INSTRUCTION = re.compile(
    r'^ *(?:ROOT )?%?(\S+) = (\w+\[[\d,]*\])\S* ([\w-]+)\((?:.*op_name="(?:[^"]*/)?([^"/]+)")?',
    re.M,
)


class Kind(NamedTuple):
    """What the same instruction has in common in all layers; the name is that of TensorFlow."""

    operation: str
    shape: str
    name: str

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product."""
        return self.operation == "dot"


def find_kinds(module: str) -> dict[str, Kind]:
    """Returns the kinds of all instructions in the text of a compiled module, by their names."""
    kinds = {}
    for instruction, shape, operation, name in _INSTRUCTION.findall(module):
        if operation not in CONTAINERS:
            kinds[instruction] = Kind(operation, shape, re.sub(r"[_.\d]+$", "", name))
    return kinds


class Operation(NamedTuple):
    """An instruction that ran on a thread, with its start and end in seconds."""

    kind: Kind
    start: float
    end: float


class Trace(NamedTuple):
    """A traced call: its duration in seconds, and the operations; and its speed without tracing."""

    seconds: float
    operations: list[Operation]
    tokens_per_second: float


def prepare_training(shape: Shape) -> tuple[Callable[[], Any], int]:
    """Returns a call of some training steps, and the number of their tokens."""
    import tensorflow as tf

    from txl_tf import TransformerXL
    from txl_tf.config import TrainConfig
    from txl_tf.training import TrainStep, make_optimizer

    model = TransformerXL(make_config(shape, 0.1), seed=0)
    step = TrainStep(model, make_optimizer(TrainConfig(mem_len=shape.mem_len)))
    compiled_step = tf.function(step, jit_compile=True)
    ids = draw_ids(shape.n_token, "uniform", (shape.batch_size, shape.tgt_len + 1))
    memory = model.initial_memory(batch_size=shape.batch_size, mem_len=shape.mem_len)

    def call() -> float:
        nonlocal memory
        for _ in range(STEPS):
            result, memory = compiled_step(ids[:, :-1], ids[:, 1:], memory)
        return float(result.nats)

    return call, STEPS * shape.n_tokens


def trace(work: Work) -> Trace:
    """Traces a call of a work; this process must not have imported TensorFlow."""
    with tempfile.TemporaryDirectory() as folder:
        dump = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        with mock.patch.dict(os.environ, XLA_FLAGS=dump, TF_CPP_MIN_LOG_LEVEL="3"):
            import tensorflow as tf

            if work.kind == "train":
                call, n_tokens = prepare_training(work.shape)
            elif work.kind == "eval":
                call, n_tokens = prepare_reading(work.shape, "float32", "whole")
            else:
                call, n_tokens = prepare_drawing(work.shape, "float32")
            for _ in range(WARM_CALLS):
                call()
        start = time.perf_counter()
        call()
        speed = n_tokens / (time.perf_counter() - start)
        tf.profiler.experimental.start(folder)
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        tf.profiler.experimental.stop()
        # Modules share names; those of the largest one count.
        modules = sorted(Path(folder).glob("*after_optimizations.txt"), key=os.path.getsize)
        kinds: dict[str, Kind] = {}
        for module in modules:
            kinds |= find_kinds(module.read_text(encoding="utf-8"))
        (found,) = Path(folder).rglob("*.xplane.pb")
        return Trace(seconds, read_operations(found.read_bytes(), kinds), speed)


def read_operations(profile: bytes, kinds: dict[str, Kind]) -> list[Operation]:
    """Returns the operations in a profile of TensorFlow."""
    from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

    operations = []
    for plane in XSpace.FromString(profile).planes:
        for line in plane.lines:
            for event in line.events:
                kind = kinds.get(plane.event_metadata[event.metadata_id].name)
                if kind:
                    start = line.timestamp_ns / 1e9 + event.offset_ps / 1e12
                    operations.append(Operation(kind, start, start + event.duration_ps / 1e12))
    return operations


def measure_union(operations: Iterable[Operation]) -> float:
    """Returns the seconds during which at least one of the operations runs."""
    total, until = 0.0, 0.0
    for _, start, end in sorted(operations, key=lambda operation: operation.start):
        total += max(end - max(start, until), 0)
        until = max(until, end)
    return total


def print_profiles(options: flags.FlagValues) -> None:
    """Traces the works, and prints the tables."""
    traces = {name: measure_apart(trace, WORKS[name]) for name in options.works}
    header = ["work", "tokens/s", "products run", "only others run", "nothing runs"]
    print_table(header, (_make_row(name, found) for name, found in traces.items()))
    for name, found in traces.items():
        print(f"{describe(WORKS[name])}: {found.seconds:.2f} seconds")
        print_operations(found.operations, options.operations)


def _make_row(name: str, found: Trace) -> list[str]:
    products = measure_union(each for each in found.operations if each.kind.is_product)
    everything = measure_union(found.operations)
    parts = (products, everything - products, found.seconds - everything)
    shares = [f"{part / found.seconds:.0%}" for part in parts]
    return [describe(WORKS[name]), format_speed(found.tokens_per_second), *shares]


def print_operations(operations: list[Operation], n_rows: int) -> None:
    """Prints the kinds of operations that take the most time, added up over all threads."""
    durations = collections.defaultdict(list)
    for kind, start, end in operations:
        durations[kind].append(end - start)
    total = sum(map(sum, durations.values()))
    longest = sorted(durations.items(), key=lambda item: -sum(item[1]))[:n_rows]
    print_table(
        ["operation", "result", "name", "times", "each, µs", "share"],
        (
            [
                *(kind.operation, f"`{kind.shape}`", kind.name, len(each)),
                *(f"{1e6 * sum(each) / len(each):,.0f}", f"{sum(each) / total:.0%}"),
            ]
            for kind, each in longest
        ),
    )


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    define_flag(options, "works", list, USUAL, "Works to trace.", choices=WORKS)
    text = "Number of rows for each work."
    define_flag(options, "operations", int, 8, text, lower_bound=1)
    return run_program(__doc__, options, print_profiles, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
