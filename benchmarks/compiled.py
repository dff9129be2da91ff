"""What the compilers of TPUs and GPUs say of training and evaluation: no chip is needed.

python -m benchmarks.compiled --models enwik8_base --chips v5e,h100
python -m benchmarks.compiled --models wt103_large --batch_size 16 --remat --chips v5e:4x4
python -m benchmarks.compiled --models enwik8_base:12 --works evaluate --json enwik8.json
python -m benchmarks.compiled --models wt103_base --chips h100 --largest_batch

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
import sys
from typing import Any

from absl import flags

from benchmarks import chips
from benchmarks.chip_reports import (
    FITS,
    Program,
    Report,
    Reports,
    find_largest_batch,
    make_report_apart,
)
from benchmarks.works import SHAPES
from txl_tf import presets
from txl_tf.config import EvalConfig, TrainConfig
from txl_tf.programs.cli.flags import define_flag
from txl_tf.programs.cli.program import run_program

WORKS = ("train", "evaluate")


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


def report_program(
    program: Program, chip: str, options: flags.FlagValues, reports: Reports
) -> None:
    """Compiles a program for a chip, or several batches of it to find the largest."""

    def compile_program(program: Program) -> Report:
        made = make_report_apart(program, chip, kernels=options.kernels, effort=options.effort)
        return reports.add(made)

    if not options.largest_batch:
        compile_program(program)
        return
    limit = FITS * chips.CHIPS[chip.partition(":")[0]].memory
    largest = find_largest_batch(lambda rows: compile_program(program.with_rows(rows)), limit)
    if largest:
        rows = largest.tokens // largest.settings["tgt_len"]
        print(
            f"  the largest batch that fits: {rows:,} rows on {largest.n_chips} chips", flush=True
        )
    else:
        print("  not even one row fits", flush=True)


def print_reports(options: flags.FlagValues) -> None:
    """Compiles each work of each model for each chip, prints what is said, and writes it as JSON.

    Raises:
        UserError: If a flag has a wrong value, or a compiler is not installed.
    """
    chips.prepare_compilers()
    reports = Reports(options.json)
    for name in options.models:
        for work in options.works:
            program = make_program(name, work, options)
            for chip in options.chips:
                report_program(program, chip, options, reports)
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
    text = "Find the largest batch that fits the memory, with a few compilations."
    define_flag(options, "largest_batch", bool, False, text)
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
    text = "How hard the compiler of a TPU works, -1 to 1; with -1 it takes a fraction of the time."
    define_flag(options, "effort", float, 0.0, text, lower_bound=-1, upper_bound=1)
    text = "Optimizer. [default: that of the preset]"
    define_flag(options, "optimizer", str, None, text)
    text = "File for all reports. [default: none]"
    define_flag(options, "json", str, None, text, is_path=True)
    return run_program(__doc__, options, print_reports, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
