"""What the compilers of TPUs and GPUs say of training and evaluation: no chip is needed.

python -m benchmarks.compiled --models enwik8_base --chips v5e,h100
python -m benchmarks.compiled --models wt103_large --batch_size 16 --remat --chips v5e:4x4
python -m benchmarks.compiled --models enwik8_base:12 --works evaluate --json enwik8.json

It needs the extra `compilers`. A model is a preset, with a number of layers after a colon if not
all are wanted. The programs are TensorFlow's own: the training step that a replica runs under
`TPUStrategy` or `MirroredStrategy`, with weights, optimizer and memory, and the segment of an
evaluation with its cache. Each is compiled for each chip, or for several chips, each with a replica
of `batch_size` rows.

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
from txl_tf import presets
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.config import ModelConfig
from txl_tf.errors import UserError

WORKS = ("train", "evaluate")
FITS = 0.97  # of the memory; the rest is the runtime's


class Settings(NamedTuple):
    """What is compiled, besides the model and the chip."""

    work: str
    precision: str
    batch_size: int
    tgt_len: int
    mem_len: int
    options: dict[str, Any]  # fields of TrainConfig


class Report(NamedTuple):
    """A program on a chip; sizes in bytes. The fields after `reason` are 0 if there is a reason.

    Args:
        reason: Why the compiler refuses the program, in its words; empty if it does not.
        flops: Operations of a chip in a step.
        moved_bytes: Bytes that a chip moves in a step.
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
    tokens: int = 0
    matrix_limit: float = 0.0
    memory_limit: float = 0.0
    collectives: dict[str, float] | None = None
    n_unknown_loops: int = 0

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
            f"({self.moved_bytes * self.n_chips / self.tokens / 1e6:,.3f} MB a token)",
            f"  matrix limit {self.matrix_limit:,.0f} tokens/s, memory limit "
            f"{self.memory_limit:,.0f} tokens/s: at most "
            f"{min(1, self.memory_limit / self.matrix_limit):.0%} of the peak",
        ]
        for name, size in (self.collectives or {}).items():
            lines.append(f"  {name}: {size / 1e6:,.1f} MB a chip")
        if self.n_unknown_loops:
            lines.append(f"  {self.n_unknown_loops} loops of unknown length count as one run each")
        return "\n".join(lines)


def make_report(model: str, settings: Settings, chip: str, n_chips: int, module: bytes) -> Report:
    """Compiles a program for a chip, or for several, and returns what the compiler says."""
    from benchmarks.program_costs import count_costs

    report = Report(model, settings.work, chip, n_chips, settings._asdict())
    try:
        compiled = chips.compile_stablehlo(module, chips.open_devices(chip))
    except UserError as error:
        return report._replace(reason=str(error))
    costs = count_costs(compiled.module)
    kind = chips.CHIPS[chip.partition(":")[0]]
    tokens = settings.batch_size * settings.tgt_len * n_chips
    return report._replace(
        compile_seconds=compiled.seconds,
        argument_bytes=compiled.argument_bytes,
        temporary_bytes=compiled.temporary_bytes,
        fits=compiled.memory_bytes <= FITS * kind.memory,
        flops=costs.flops,
        moved_bytes=costs.bytes,
        tokens=tokens,
        matrix_limit=tokens / (costs.flops / kind.flops),
        memory_limit=tokens / (costs.bytes / kind.bandwidth),
        collectives=costs.collectives,
        n_unknown_loops=costs.n_unknown,
    )


def export(name: str, settings: Settings, n_replicas: int, kernels: bool) -> bytes:
    """Returns the program of a preset as StableHLO."""
    from benchmarks import step_programs

    preset = presets.get(name.partition(":")[0])
    model = _choose_layers(preset.model, name.partition(":")[2])
    lengths = {"tgt_len": settings.tgt_len, "mem_len": settings.mem_len}
    if settings.work == "train":
        training = dataclasses.replace(
            preset.training,
            train_batch_size=settings.batch_size,
            precision=settings.precision,
            **lengths,
            **settings.options,
        )
        return step_programs.export_training_step(model, training, n_replicas, kernels=kernels)
    evaluation = dataclasses.replace(
        preset.evaluation, eval_batch_size=settings.batch_size, **lengths
    )
    return step_programs.export_evaluation_segment(model, evaluation, settings.precision)


def _choose_layers(model: ModelConfig, n_layer: str) -> ModelConfig:
    return dataclasses.replace(model, n_layer=int(n_layer)) if n_layer else model


def make_settings(name: str, work: str, options: flags.FlagValues) -> Settings:
    """Returns the settings of a preset with what the flags change."""
    preset = presets.get(name.partition(":")[0])
    if work == "train":
        config = preset.training
        batch_size = config.train_batch_size
        changes = {"remat": options.remat, "accumulate_steps": options.accumulate_steps}
        changes |= {"optimizer": options.optimizer or config.optimizer}
    else:
        config, changes = preset.evaluation, {}
        batch_size = config.eval_batch_size
    return Settings(
        work,
        options.precision,
        options.batch_size or batch_size,
        options.tgt_len or config.tgt_len,
        config.mem_len if options.mem_len is None else options.mem_len,
        changes,
    )


def print_reports(options: flags.FlagValues) -> None:
    """Compiles each work of each model for each chip, prints what is said, and writes it as JSON.

    Raises:
        UserError: If a flag has a wrong value, or a compiler is not installed.
    """
    chips.prepare_compilers()
    counts = {chip: len(chips.open_devices(chip)) for chip in options.chips}
    reports = []
    for model in options.models:
        for work in options.works:
            settings = make_settings(model, work, options)
            for chip, count in counts.items():
                kernels = options.kernels and chips.CHIPS[chip.partition(":")[0]].platform == "tpu"
                module = export(model, settings, count if work == "train" else 1, kernels)
                report = make_report(model, settings, chip, count, module)
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
    define_flag(options, "remat", bool, False, "Compute layers again in the backward pass.")
    text = "Parts of a batch, one after the other."
    define_flag(options, "accumulate_steps", int, 1, text, lower_bound=1)
    text = "Let the kernels for TPUs compute attention, as training on a TPU does."
    define_flag(options, "kernels", bool, True, text)
    text = "Optimizer. [default: that of the preset]"
    define_flag(options, "optimizer", str, None, text)
    text = "File for all reports. [default: none]"
    define_flag(options, "json", str, None, text, is_path=True)
    return run_program(__doc__, options, print_reports, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
