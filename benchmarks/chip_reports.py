"""What a compiler says of a program for a chip, and the largest batch that fits the chip."""

import dataclasses
import functools
import json
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from benchmarks import chips
from benchmarks.works import measure_apart
from txl_tf.config import EvalConfig, ModelConfig, TrainConfig
from txl_tf.errors import UserError

FITS = 0.97  # of the memory; the rest is the runtime's
FIRST_ROWS = (2, 4)  # by which the largest batch is predicted
MAX_TRIED = 7


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
        """What is compiled: "train" or "evaluate"."""
        return "train" if isinstance(self.config, TrainConfig) else "evaluate"

    @property
    def tokens(self) -> int:
        """The number of tokens of a step of a chip."""
        if isinstance(self.config, TrainConfig):
            return self.config.train_batch_size * self.config.tgt_len
        return self.config.eval_batch_size * self.config.tgt_len

    def with_rows(self, rows: int) -> "Program":
        """Returns the program with another batch."""
        changes: dict[str, Any] = {f"{self.work}_batch_size".replace("evaluate", "eval"): rows}
        return self._replace(config=dataclasses.replace(self.config, **changes))

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

    Of a refused program only the needed memory may be known, as `temporary_bytes`.

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

    @property
    def memory_bytes(self) -> int:
        """The peak of the memory on a chip."""
        return self.argument_bytes + self.temporary_bytes

    @property
    def moved_per_token(self) -> float:
        """The bytes that all chips move from and to their main memories for a token."""
        return self.moved_bytes * self.n_chips / self.tokens

    @property
    def share(self) -> float:
        """The largest share of the peak that the program can reach."""
        return min(1.0, self.memory_limit / self.matrix_limit)

    def format(self) -> str:
        """Returns the lines that are printed."""
        head = f"{self.model}, {self.work}, {self.chip}: "
        if self.reason:
            return f"{head}does not compile: {self.reason}"
        gib = chips.GIB
        lines = [
            f"{head}compiled in {self.compile_seconds:,.0f} s",
            f"  memory {self.memory_bytes / gib:.2f} GiB ({self.argument_bytes / gib:.2f} of "
            f"arguments), {'fits' if self.fits else 'does not fit'}",
            f"  {self.flops / 1e9:,.1f} GFLOP, {self.moved_bytes / 1e9:,.2f} GB moved "
            f"({self.moved_per_token / 1e6:,.3f} MB a token), "
            f"{self.accessed_bytes / 1e9:,.2f} GB with the fast memory",
            f"  matrix limit {self.matrix_limit:,.0f} tokens/s, memory limit "
            f"{self.memory_limit:,.0f} tokens/s: at most "
            f"{self.share:.0%} of the peak",
        ]
        for name, size in (self.collectives or {}).items():
            lines.append(f"  {name}: {size / 1e6:,.1f} MB a chip")
        if self.n_unknown_loops:
            lines.append(f"  {self.n_unknown_loops} loops of unknown length count as one run each")
        if self.n_doubles:
            lines.append(f"  {self.n_doubles} operations in float64, which TPUs emulate")
        return "\n".join(lines)


def start_report(
    program: Program, chip: str, *, kernels: bool = True, effort: float = 0.0
) -> Report:
    """Returns what is known of a program on a chip before it is compiled."""
    kind = chips.CHIPS[chip.partition(":")[0]]
    settings = {
        **dataclasses.asdict(program.config),
        "precision": program.precision,
        "kernels": kernels and kind.has_kernels and program.work == "train",
        "effort": effort if kind.platform == "tpu" else 0.0,
    }
    return Report(program.name, program.work, chip, len(chips.open_devices(chip)), settings)


def make_report(
    program: Program, chip: str, *, kernels: bool = True, effort: float = 0.0
) -> Report:
    """Compiles a program for a chip, or for several, and returns what the compiler says."""
    report = start_report(program, chip, kernels=kernels, effort=effort)
    devices, settings = chips.open_devices(chip), report.settings
    try:
        module = program.export(len(devices), kernels=settings["kernels"])
        compiled = chips.compile_stablehlo(module, devices, effort=settings["effort"])
    except UserError as error:
        needed = chips.find_needed_bytes(str(error))
        return report._replace(reason=str(error), temporary_bytes=needed)
    return fill_report(report, compiled, program.tokens * len(devices))


def fill_report(report: Report, compiled: chips.Compiled, tokens: int) -> Report:
    """Returns a report with all that follows from the compiled program of a step of `tokens`."""
    from benchmarks.program_costs import count_costs

    costs, kind = count_costs(compiled.module), chips.CHIPS[report.chip.partition(":")[0]]
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
        n_doubles=compiled.n_doubles,
    )


def make_report_apart(
    program: Program, chip: str, *, kernels: bool = True, effort: float = 0.0
) -> Report:
    """Returns `make_report` from a process of its own, which a compiler may crash."""
    options: dict[str, Any] = {"kernels": kernels, "effort": effort}
    try:
        return measure_apart(functools.partial(make_report, **options), program, chip)
    except BrokenProcessPool:
        report = start_report(program, chip, **options)
        return report._replace(reason="the compiler crashed")


def find_largest_batch(report_rows: Callable[[int], Report], limit: float) -> Report | None:
    """Finds the largest batch that fits: memory is nearly linear in it.

    A line through two batches predicts it, and each prediction is compiled, which confirms the line
    or corrects it. Close to the limit the compiler of a TPU saves memory at the cost of time, so
    somewhat more may compile.

    Args:
        report_rows: Compiles a batch of so many rows.
        limit: The memory that a program may use, in bytes.

    Returns:
        The report of the largest batch; `None` if not even one row fits.
    """
    tried = {rows: report_rows(rows) for rows in FIRST_ROWS}
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


class Reports:
    """What the compilers said, printed and written as it comes.

    Args:
        path: The file; `None` for none.
        resumes: Whether to begin with what is in the file.
        output: Where they are printed; `None` for standard output.
    """

    def __init__(self, path: str | None, *, resumes: bool = False, output: TextIO | None = None):
        self._path = Path(path) if path else None
        self._output = output
        self.all: list[Report] = []
        if resumes and self._path and self._path.exists():
            records = json.loads(self._path.read_text(encoding="utf-8"))
            self.all = [Report(**record) for record in records]

    def find(self, program: Report) -> Report | None:
        """Returns the report of a program with the same settings, if there is one."""

        def make_key(report: Report) -> str:  # as JSON, in which tuples are lists
            return json.dumps(report[: Report._fields.index("reason")])

        wanted = make_key(program)
        return next((report for report in self.all if make_key(report) == wanted), None)

    def add(self, report: Report) -> Report:
        """Prints a report, writes the file with it, and returns it."""
        print(report.format(), file=self._output, flush=True)
        self.all.append(report)
        if self._path:
            text = json.dumps([each._asdict() for each in self.all], indent=1) + "\n"
            self._path.write_text(text, encoding="utf-8")
        return report
