"""What the compilers of TPUs and GPUs say of training and evaluation: no chip is needed.

python -m benchmarks.compiled --models enwik8_base --chips v5e,h100
python -m benchmarks.compiled --models wt103_large --batch_size 16 --remat --chips v5e:4x4
python -m benchmarks.compiled --models enwik8_base:12 --works evaluate --json enwik8.json

It needs the extra `compilers`. A model is a preset or a name of `benchmarks.works.SHAPES`, with a
number of layers after a colon if not all are wanted. The programs are TensorFlow's own: the
training step that a replica runs under `TPUStrategy` or `MirroredStrategy`, with weights, optimizer
and memory, and the segment of an evaluation with its cache. Each is compiled for each chip, or for
several chips, each with a replica of `batch_size` rows.

"Matrix limit" is the tokens per second of all chips if their products ran at the peak of bfloat16,
"memory limit" those if the bytes moved at the full speed of the memory: no program is faster than
the lower one. The time itself is not known without the chip.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from benchmarks import chips
from benchmarks.works import SHAPES
from txl_tf import presets
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.config import EvalConfig, ModelConfig, TrainConfig
from txl_tf.errors import UserError

WORKS = ("train", "evaluate")
FITS = 0.97  # of the memory; the rest is the runtime's


class Program(NamedTuple):
    """What is compiled, besides the chip.

    Args:
        name: The preset, and the number of layers if not all are wanted.
        model: The model.
        config: The training, or the evaluation.
        precision: Of hidden states, memory and products.
    """

    name: str
    model: ModelConfig
    config: TrainConfig | EvalConfig
    precision: str

    @property
    def work(self) -> str:
        """One of `WORKS`."""
        return "train" if isinstance(self.config, TrainConfig) else "evaluate"

    @property
    def tokens(self) -> int:
        """The number of tokens of a step of a chip."""
        if isinstance(self.config, TrainConfig):
            return self.config.train_batch_size * self.config.tgt_len
        return self.config.eval_batch_size * self.config.tgt_len

    def export(self, n_replicas: int, *, kernels: bool) -> bytes:
        """Returns the program as StableHLO; evaluation has one replica, and no kernels."""
        from benchmarks import step_programs

        if isinstance(self.config, EvalConfig):
            return step_programs.export_evaluation_segment(self.model, self.config, self.precision)
        return step_programs.export_training_step(
            self.model, self.config, n_replicas, kernels=kernels
        )


class Report(NamedTuple):
    """A program on a chip; sizes in bytes. The fields after `reason` are 0 if there is a reason.

    Args:
        reason: Why the compiler refuses the program, in its words; empty if it does not.
        flops: Operations of a chip in a step.
        moved_bytes: Bytes that a chip moves from and to its main memory in a step.
        accessed_bytes: The same with the fast memory, as XLA counts "bytes accessed".
        tokens: Tokens of a step of all chips.
        matrix_limit: Tokens per second of all chips by `flops`.
        memory_limit: Tokens per second of all chips by `moved_bytes`.
    """

    model: str
    work: str
    chip: str
    n_chips: int
    settings: dict[str, Any]
    reason: str = ""
    compile_seconds: float = 0.0
    argument_bytes: int = 0
    temporary_bytes: int = 0
    fits: bool = False
    flops: float = 0.0
    moved_bytes: float = 0.0
    accessed_bytes: float = 0.0
    tokens: int = 0
    matrix_limit: float = 0.0
    memory_limit: float = 0.0
    collectives: dict[str, float] | None = None
    n_unknown_loops: int = 0
    n_doubles: int = 0

    def format(self) -> str:
        """Returns the lines that are printed."""
        head = f"{self.model}, {self.work}, {self.chip}: "
        if self.reason:
            return f"{head}does not compile: {self.reason}"
        memory = self.argument_bytes + self.temporary_bytes
        gib = chips.GIB
        lines = [
            f"{head}compiled in {self.compile_seconds:,.0f} s",
            f"  memory {memory / gib:.2f} GiB ({self.argument_bytes / gib:.2f} of arguments), "
            f"{'fits' if self.fits else 'does not fit'}",
            f"  {self.flops / 1e9:,.1f} GFLOP, {self.moved_bytes / 1e9:,.2f} GB moved "
            f"({self.moved_bytes * self.n_chips / self.tokens / 1e6:,.3f} MB a token), "
            f"{self.accessed_bytes / 1e9:,.2f} GB with the fast memory",
            f"  matrix limit {self.matrix_limit:,.0f} tokens/s, memory limit "
            f"{self.memory_limit:,.0f} tokens/s: at most "
            f"{min(1, self.memory_limit / self.matrix_limit):.0%} of the peak",
        ]
        for name, size in (self.collectives or {}).items():
            lines.append(f"  {name}: {size / 1e6:,.1f} MB a chip")
        if self.n_unknown_loops:
            lines.append(f"  {self.n_unknown_loops} loops of unknown length count as one run each")
        if self.n_doubles:
            lines.append(f"  {self.n_doubles} operations in float64, which TPUs emulate")
        return "\n".join(lines)


def make_report(program: Program, chip: str, *, kernels: bool) -> Report:
    """Compiles a program for a chip, or for several, and returns what the compiler says."""
    from benchmarks.program_costs import count_costs

    devices, kind = chips.open_devices(chip), chips.CHIPS[chip.partition(":")[0]]
    has_kernels = kernels and kind.has_kernels and program.work == "train"
    settings = {**dataclasses.asdict(program.config), "kernels": has_kernels}
    report = Report(program.name, program.work, chip, len(devices), settings)
    try:
        module = program.export(len(devices), kernels=has_kernels)
        compiled = chips.compile_stablehlo(module, devices)
    except UserError as error:
        return report._replace(reason=str(error))
    costs, tokens = count_costs(compiled.module), program.tokens * len(devices)
    return report._replace(
        compile_seconds=compiled.seconds,
        argument_bytes=compiled.argument_bytes,
        temporary_bytes=compiled.temporary_bytes,
        fits=compiled.memory_bytes <= FITS * kind.memory,
        flops=costs.flops,
        moved_bytes=costs.bytes,
        accessed_bytes=costs.accessed,
        tokens=tokens,
        matrix_limit=tokens / (costs.flops / kind.flops),
        memory_limit=tokens / (costs.bytes / kind.bandwidth),
        collectives=costs.collectives,
        n_unknown_loops=costs.n_unknown,
        n_doubles=costs.n_doubles,
    )


def make_program(name: str, work: str, options: flags.FlagValues) -> Program:
    """Returns the program of a preset, such as "enwik8_base:2", with what the flags change."""
    base, _, n_layer = name.partition(":")
    if base in SHAPES:
        model, training = SHAPES[base].make_configs(dropout=0.1)
        evaluation = EvalConfig(tgt_len=training.tgt_len, mem_len=training.mem_len)
    else:
        preset = presets.get(base)
        model, training, evaluation = preset.model, preset.training, preset.evaluation
    if n_layer:
        model = dataclasses.replace(model, n_layer=int(n_layer))
    changes = {name: options[name].value for name in ("tgt_len", "mem_len")}
    config: TrainConfig | EvalConfig = evaluation
    if work == "train":
        config = training
        changes["train_batch_size"] = options.batch_size
        names = ("precision", "remat", "accumulate_steps", "optimizer", "reset_at_documents")
        changes |= {name: options[name].value for name in names}
    else:
        changes["eval_batch_size"] = options.batch_size
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    return Program(name, model, dataclasses.replace(config, **given), options.precision)


def print_reports(options: flags.FlagValues) -> None:
    """Compiles each work of each model for each chip, prints what is said, and writes it as JSON.

    Raises:
        UserError: If a flag has a wrong value, or a compiler is not installed.
    """
    chips.prepare_compilers()
    reports = []
    for name in options.models:
        for work in options.works:
            program = make_program(name, work, options)
            for chip in options.chips:
                report = make_report(program, chip, kernels=options.kernels)
                print(report.format(), flush=True)
                reports.append(report._asdict())
                if options.json:
                    text = json.dumps(reports, indent=1) + "\n"
                    Path(options.json).write_text(text, encoding="utf-8")
    if options.json:
        print(f"Wrote {options.json}")


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    text = "Presets, each with a number of layers after a colon if not all are wanted."
    define_flag(options, "models", list, ["enwik8_base"], text)
    text = f"Chips ({', '.join(chips.CHIPS)}), several as in v5e:4x4 or h100:8."
    define_flag(options, "chips", list, ["v5e", "h100"], text)
    define_flag(options, "works", list, ["train"], f"Of {', '.join(WORKS)}.", choices=WORKS)
    text = "Precision of hidden states, memory and products."
    define_flag(options, "precision", str, "bfloat16", text, choices=("float32", "bfloat16"))
    text = "Rows of a chip. [default: those of the preset]"
    define_flag(options, "batch_size", int, None, text, lower_bound=1)
    text = "Segment length. [default: that of the preset]"
    define_flag(options, "tgt_len", int, None, text, lower_bound=1)
    text = "Memory length. [default: that of the preset]"
    define_flag(options, "mem_len", int, None, text, lower_bound=0)
    text = "Compute layers again in the backward pass. [default: as the preset]"
    define_flag(options, "remat", bool, None, text)
    text = "Parts of a batch, one after the other. [default: those of the preset]"
    define_flag(options, "accumulate_steps", int, None, text, lower_bound=1)
    text = "Begin documents with an empty memory. [default: as the preset]"
    define_flag(options, "reset_at_documents", bool, None, text)
    text = "Attention in kernels where there are some, as --jit=kernels trains."
    define_flag(options, "kernels", bool, True, text)
    text = "Optimizer. [default: that of the preset]"
    define_flag(options, "optimizer", str, None, text)
    text = "File for all reports. [default: none]"
    define_flag(options, "json", str, None, text, is_path=True)
    return run_program(__doc__, options, print_reports, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
