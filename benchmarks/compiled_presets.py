"""The training step of each preset of the paper, with its whole batch, for TPUs and a GPU.

python -m benchmarks.compiled_presets --json compiled-presets.json
python -m benchmarks.compiled_presets --json compiled-presets.json --models wt103_large

It needs the extra `compilers`, and hours of two cores; with `--effort -1` much less. What is in the
file already is not compiled again, so an interrupted call resumes. The batch is that of the
preset, on as few chips as hold it: a chip computes layers again (`remat`) and divides its rows into
two parts (`accumulate_steps`) before more chips are taken. More parts hardly save memory after
that, and each is compiled. At the end it prints a table of all that is in the file.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator

from absl import flags

from benchmarks import chips
from benchmarks.chip_reports import FITS, Program, Report, Reports, make_report_apart, start_report
from benchmarks.tables import print_table
from txl_tf.cli.flags import define_flag
from txl_tf.cli.program import run_program
from txl_tf.config import TrainConfig
from txl_tf.presets.published import PUBLISHED

# Several devices, by their number; v4 and v5p are connected in three dimensions, v4 has two a chip.
_FLAT = {1: "", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8"}
_SOLID = {1: "", 4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4"}
_CORES = {1: "", 8: "2x2x1", 16: "2x2x2", 32: "2x2x4"}
COUNTS = {"v4": _CORES, "v5e": _FLAT, "v5p": _SOLID, "v6e": _FLAT}
GPUS = {1: "", 4: "4", 8: "8"}


def list_layouts(name: str, kind: str) -> Iterator[tuple[Program, str]]:
    """Yields the programs of a preset's batch on a kind of chip, the wanted first."""
    preset = PUBLISHED[name]
    n_lanes = preset.training.train_batch_size
    for count, layout in COUNTS.get(kind, GPUS).items():
        rows, rest = divmod(n_lanes, count)
        if rest:
            continue
        for parts in (1, 2) if rows % 2 == 0 else (1,):
            for remat in (False, True):
                config = dataclasses.replace(
                    preset.training,
                    train_batch_size=rows,
                    accumulate_steps=parts,
                    remat=remat,
                    precision="bfloat16",
                )
                chip = f"{kind}:{layout}" if layout else kind
                yield Program(name, preset.model, config, "bfloat16"), chip


def find_layout(name: str, kind: str, get: Callable[[Program, str], Report]) -> Report:
    """Returns the report of the first program that fits, or the last one that is refused.

    The activations of a refused program tell which parts would not fit either: those are not tried.
    """
    from txl_tf.cli.dry_run import count_kept_memory  # imports JAX

    limit = FITS * chips.CHIPS[kind].memory
    refused: dict[tuple[str, bool], float] = {}  # with chips and remat: bytes of all rows at once
    for program, chip in list_layouts(name, kind):
        config = program.config
        assert isinstance(config, TrainConfig)
        kept = sum(count_kept_memory(program.model, config).values())
        case = (chip, config.remat)
        if case in refused and kept + refused[case] / config.accumulate_steps > limit:
            continue
        report = get(program, chip)
        if report.fits or (report.reason and not report.memory_bytes):  # not for its memory
            return report
        refused[case] = max(report.memory_bytes - kept, 0) * config.accumulate_steps
    return report


def print_fitting(reports: list[Report]) -> None:
    """Prints a table of the programs that fit, by preset and chip."""
    header = (
        *("preset", "chip", "flags", "memory", "MB a token", "by products", "by memory"),
        *("of the peak", "compiled in"),
    )
    rows = []
    for name in PUBLISHED:
        for kind in chips.CHIPS:
            found = [r for r in reports if r.model == name and r.chip.partition(":")[0] == kind]
            fitting = [report for report in found if report.fits]
            if fitting:
                # The one with the most effort.
                best = max(fitting, key=lambda report: report.settings["effort"])
                rows.append(make_row(best))
            elif found:
                size = f"{found[-1].memory_bytes / chips.GIB:.2f} GiB, does not fit"
                rows.append([f"`{name}`", kind, "", size, *[""] * 5])
    print_table(header, rows)


def make_row(report: Report) -> list[str]:
    """Returns the cells of a program that fits."""
    settings = report.settings
    flag_texts = [f"--accumulate_steps {settings['accumulate_steps']}"] * (
        settings["accumulate_steps"] > 1
    )
    flag_texts += ["--remat"] * settings["remat"] + ["--jit kernels"] * settings["kernels"]
    effort = f", effort {settings['effort']:g}" if settings["effort"] else ""
    return [
        f"`{report.model}`",
        report.chip,
        " ".join(f"`{text}`" for text in flag_texts),
        f"{report.memory_bytes / chips.GIB:.2f} GiB",
        f"{report.moved_per_token / 1e6:.2f}",
        f"{report.matrix_limit:,.0f}",
        f"{report.memory_limit:,.0f}",
        f"{report.share:.0%}",
        f"{report.compile_seconds:,.0f} s{effort}",
    ]


def print_presets(options: flags.FlagValues) -> None:
    """Compiles what is not in the file yet, with progress on standard error; prints the table.

    Raises:
        UserError: If there is no such chip, or its compiler is not installed.
    """
    chips.prepare_compilers()
    reports = Reports(options.json, resumes=True, output=sys.stderr)

    def get(program: Program, chip: str) -> Report:
        known = reports.find(start_report(program, chip, effort=options.effort))
        return known or reports.add(make_report_apart(program, chip, effort=options.effort))

    for kind in options.chips:
        for name in options.models:
            find_layout(name, kind, get)
    print_fitting(reports.all)


def main(argv: list[str]) -> int:
    """Runs the program on a command line and returns its exit status."""
    options = flags.FlagValues()
    names = list(PUBLISHED)
    define_flag(options, "models", list, names, "Presets of the paper.", choices=names)
    kinds = ["h100", "v5e", "v4", "v5p", "v6e"]
    define_flag(options, "chips", list, kinds, "Kinds of chips.", choices=list(chips.CHIPS))
    text = "How hard the compiler of a TPU works, -1 to 1; with -1 it takes a fraction of the time."
    define_flag(options, "effort", float, 0.0, text, lower_bound=-1, upper_bound=1)
    text = "File of all reports, read and written."
    define_flag(options, "json", str, "compiled-presets.json", text, is_path=True)
    return run_program(__doc__, options, print_presets, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
