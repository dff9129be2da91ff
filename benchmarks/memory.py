"""Memory of a training step: the estimate that a dry run prints, and what XLA reports.

Compared is the temporary memory of the step: what it needs besides arguments (weights, memory, ids)
and results (gradients, memory). The step is compiled as a whole, and not run.

python -m benchmarks.memory  # a set of shapes; the exit status is 1 if an error exceeds 10 %
python -m benchmarks.memory --preset enwik8_large --measure=false
python -m benchmarks.memory --shape words --d_model 512 --precision bfloat16 --remat
"""

import dataclasses
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import flags

from benchmarks.works import SHAPES, Shape
from txl_tf import presets
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.config import AttentionSpan, ModelConfig, TrainConfig
from txl_tf.config.training import PRECISIONS
from txl_tf.errors import UserError

# XLA's own account of a compiled function.
REPORTS = "*after_optimizations-buffer-assignment.txt"
MODULES = ".*(compute_gradients|inference_run).*"  # the step, and the loop of generation
TEMPORARY = r"^allocation \d+: size (\d+), preallocated-temp"
RESULT = r"^allocation \d+: size (\d+), maybe-live-out"
LARGEST_ERROR = 0.1
SIZES = ("n_layer", "d_model", "n_head", "d_inner", "tgt_len", "mem_len", "batch_size", "n_token")


class Case(NamedTuple):
    """A step whose memory is estimated.

    Args:
        name: What the table calls it.
        model: The model.
        training: Batch, segment, memory, precision and `remat`.
    """

    name: str
    model: ModelConfig
    training: TrainConfig


def make_case(name: str, shape: Shape, dropout: float = 0.1, **changes: Any) -> Case:
    """Returns the case of a shape, with changes of the training config."""
    model, training = shape.make_configs(dropout)
    return Case(name, model, dataclasses.replace(training, **changes))


def list_cases() -> list[Case]:
    """Returns the cases that are measured by default."""
    base = SHAPES["bytes"]
    changed: dict[str, dict[str, Any]] = {
        "1 layer": {"n_layer": 1},
        "16 layers": {"n_layer": 16},
        "d_model 64": {"d_model": 64, "d_inner": 256},
        "d_model 1024": {"d_model": 1024, "d_inner": 4096, "n_head": 16, "n_layer": 2},
        "d_inner 256": {"d_inner": 256},
        "d_inner 2048": {"d_inner": 2048},
        "1 head": {"n_head": 1},
        "4 heads": {"n_head": 4},
        "16 heads": {"n_head": 16},
        "mem_len 0": {"mem_len": 0},
        "mem_len 512": {"mem_len": 512},
        "1 lane": {"batch_size": 1},
        "32 lanes": {"batch_size": 32, "n_layer": 2},
    }
    cases = []
    for name in ("bytes", "bytes_large", "words", "words_divided"):
        for precision in ("float32", "bfloat16"):
            for remat in (False, True):
                title = f"{name}, {precision}{', remat' * remat}"
                changes: dict[str, Any] = {"precision": precision, "remat": remat}
                cases.append(make_case(title, SHAPES[name], **changes))
    cases.append(make_case("bytes, no dropout", base, 0.0))
    cases.append(make_case("bytes, no dropout, remat", base, 0.0, remat=True))
    cases += [make_case(f"bytes, {name}", base._replace(**x)) for name, x in changed.items()]
    wt103 = presets.get("wt103_base")
    return [*cases, Case("wt103_base", wt103.model, wt103.training)]


def choose_cases(options: flags.FlagValues) -> list[Case]:
    """Returns the cases that the flags ask for; the default set if no flag does.

    Raises:
        UserError: If flags contradict each other.
    """
    sizes: dict[str, Any] = {
        name: options[name].value for name in SIZES if options[name].value is not None
    }
    given = (options.preset, options.shape, options.dropout, options.precision, options.remat)
    if not sizes and all(value is None for value in given):
        return list_cases()
    if options.preset:
        if sizes or options.shape or options.dropout is not None:
            raise UserError("--preset goes without sizes, --shape and --dropout")
        preset = presets.get(options.preset)
        cases = [Case(options.preset, preset.model, preset.training)]
    else:
        if "d_model" in sizes:
            sizes.setdefault("d_inner", 4 * sizes["d_model"])
        if "tgt_len" in sizes:
            sizes.setdefault("mem_len", sizes["tgt_len"])
        shape = SHAPES[options.shape or "bytes"]._replace(**sizes)
        dropout = 0.1 if options.dropout is None else options.dropout
        cases = [make_case(shape.spec, shape, dropout)]
    return [
        case._replace(
            name=f"{'with' if remat else 'without'} remat",
            training=dataclasses.replace(
                case.training, remat=remat, precision=options.precision or "float32"
            ),
        )
        for case in cases
        for remat in ((False, True) if options.remat is None else (options.remat,))
    ]


def dump_reports(folder: str) -> None:
    """Has XLA write an account of what it compiles; must come before tensorflow's first use."""
    dump = f"--xla_dump_to={folder} --xla_dump_hlo_module_re={MODULES}"
    # The machine code does not matter, so LLVM need not optimize it.
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} {dump} --xla_backend_optimization_level=0"
    )


def read_allocated_bytes(folder: str, kind: str) -> int:
    """Returns the most bytes of a kind of allocations that XLA wrote down for a function."""
    sizes = [
        sum(int(size) for size in re.findall(kind, path.read_text(), flags=re.MULTILINE))
        for path in Path(folder).glob(REPORTS)
    ]
    return max(sizes)


def remove_reports(folder: str) -> None:
    """Removes what XLA wrote down."""
    for path in Path(folder).iterdir():
        path.unlink()


def measure_step(model_config: ModelConfig, training: TrainConfig, folder: str) -> int:
    """Returns the temporary bytes of a training step that XLA compiles as a whole.

    Args:
        model_config: The model.
        training: Batch, segment, memory, precision and `remat`.
        folder: Where XLA writes its accounts.
    """
    import tensorflow as tf

    from txl_tf.model import TransformerXL
    from txl_tf.training import step
    from txl_tf.training.trainer import DTYPE_POLICIES

    model = TransformerXL(
        model_config, seed=1, remat=training.remat, dtype=DTYPE_POLICIES[training.precision]
    )

    def compute_gradients(ids: tf.Tensor, *memory: tf.Tensor) -> Any:
        return step.compute_gradients(model, ids, ids, memory, span=training.span)

    function = tf.function(compute_gradients, jit_compile=True, autograph=False)
    ids = tf.zeros((training.train_batch_size, training.window_len), tf.int32)
    memory = model.initial_memory(training.train_batch_size, training.mem_len)
    function.experimental_get_compiler_ir(ids, *memory)(stage="optimized_hlo")
    size = read_allocated_bytes(folder, TEMPORARY)
    remove_reports(folder)
    return size


def measure_generation(
    model_config: ModelConfig, mem_len: int, n_texts: int, tgt_len: int, dtype: str, folder: str
) -> int:
    """Returns the bytes of a model that continues texts; the arguments are those of the estimate.

    That is the size of its variables and of its state, and what XLA reports of the loop besides.
    """
    from txl_tf.cached_model import CachedModel
    from txl_tf.inference.generation import Generator
    from txl_tf.inference.quantization import quantize
    from txl_tf.inference.sampling import SamplingConfig
    from txl_tf.inference.token_loop import TokenLoop, take_positions
    from txl_tf.model import TransformerXL

    model = TransformerXL(model_config, seed=1)
    if dtype != "float32":
        model = quantize(model, dtype)
    cached = CachedModel(model, AttentionSpan(mem_len), tgt_len)
    session = Generator(cached).start(
        [np.zeros(1, np.int32)] * n_texts, SamplingConfig(), range(n_texts)
    )
    list(session.draw(1))
    state = TokenLoop(cached).begin(
        cached.initial_state(n_texts), np.zeros((n_texts, model_config.n_token), bool)
    )
    tensors = [*model.weights, *cached.positions, *take_positions(cached)]
    tensors += [*state.keys, *state.values, state.seen]
    size = sum(np.prod(tensor.shape) * as_numpy_dtype(tensor).itemsize for tensor in tensors)
    size += sum(read_allocated_bytes(folder, kind) for kind in (TEMPORARY, RESULT))
    remove_reports(folder)
    return int(size)


def as_numpy_dtype(tensor: Any) -> np.dtype:
    """Returns the dtype of a tensor or variable, of TensorFlow or Keras."""
    import tensorflow as tf

    return np.dtype(tf.as_dtype(tensor.dtype).as_numpy_dtype)


def print_memory(options: flags.FlagValues) -> None:
    """Prints estimate and measurement of each case.

    Raises:
        UserError: If an error of the default set exceeds 10 %.
    """
    cases = choose_cases(options)
    worst = 0.0
    print(f"{'':<30} {'estimate, MiB':>14} {'measured, MiB':>14} {'error':>8}")
    with tempfile.TemporaryDirectory() as folder:
        dump_reports(folder)
        from txl_tf.training.step_memory import estimate_activations  # imports TensorFlow

        for name, model, training in cases:
            parts = estimate_activations(model, training, is_widened=True)
            estimate = sum(parts.values())
            line = f"{name:<30} {estimate / 2**20:>14.1f}"
            if options.measure:
                measured = measure_step(model, training, folder)
                error = estimate / measured - 1
                worst = max(worst, abs(error))
                line += f" {measured / 2**20:>14.1f} {error:>+8.1%}"
            print(line, flush=True)
            if not options.measure:
                for part, size in parts.items():
                    print(f"  {part:<28} {size / 2**20:>14.1f}")
    if options.measure:
        print(f"largest error {worst:.1%}")
    if worst > LARGEST_ERROR and cases == list_cases():
        raise UserError(f"an estimate is off by {worst:.1%}, more than {LARGEST_ERROR:.0%}")


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    text = "Preset whose training is estimated, instead of a shape. [default: none]"
    define_flag(options, "preset", str, None, text, choices=presets.names())
    text = "Shape whose training is estimated. [default: bytes, if a size is given]"
    define_flag(options, "shape", str, None, text, choices=list(SHAPES))
    for name in SIZES:
        text = f"Size {name} of the shape. [default: that of the shape]"
        define_flag(options, name, int, None, text, lower_bound=0)
    text = "Rate of every dropout. [default: 0.1]"
    define_flag(options, "dropout", float, None, text, lower_bound=0, upper_bound=1)
    text = "Type of hidden states and products. [default: float32]"
    define_flag(options, "precision", str, None, text, choices=PRECISIONS)
    text = "Whether to use gradient checkpointing. [default: both]"
    define_flag(options, "remat", bool, None, text)
    define_flag(options, "measure", bool, True, "Whether to compile the steps.")
    return run_program(__doc__, options, print_memory, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
